"""The pieces that transcripts are cut into: a SentencePiece model, learnt once and kept beside the data."""

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sketchy import files
from sketchy.experiments.workloads.conformer.ctc import BLANK
from sketchy.extras import missing

PIECES = 1024
MODEL = "sketchy-pieces.model"
_CHARACTERS = 10_000_000  # of transcripts, to learn the pieces from


class Pieces:
    """A model. Its unknown piece is CTC's blank, and a text ends with the piece for the end of a sentence."""

    def __init__(self, place: Path) -> None:
        self.model: Any = _package().SentencePieceProcessor()
        try:
            self.model.load(str(place))
        except (RuntimeError, OSError) as error:
            raise ValueError(f"{place}: {error}; remove it to make it again") from error

    def cut(self, text: str, path: Path) -> list[int]:
        """The pieces of a text; ``path`` is named if it has a character that no piece has."""
        found: list[int] = self.model.encode(text, add_eos=True)
        if BLANK in found:
            raise ValueError(
                f"{path}: its text has a character that no transcript had when the pieces were learnt:"
                f" {text!r}; remove {MODEL} to learn them again"
            )
        return found

    @property
    def spellings(self) -> list[str]:
        """The text of each piece, with a space where a word begins."""
        silent = [i == BLANK or self.model.is_control(i) for i in range(len(self.model))]
        return ["" if no else self.model.id_to_piece(i).replace("▁", " ") for i, no in enumerate(silent)]


def pieces_of(root: Path, texts: Iterable[str]) -> Pieces:
    """The pieces of the data in a folder; learnt from ``texts`` if they are not there."""
    place = root / MODEL
    if not place.is_file():
        try:
            files.write(place, _learnt(texts))
        except OSError as error:
            raise ValueError(f"{place}: can't be written: {error.strerror}. It keeps the pieces") from error
    return Pieces(place)


def _learnt(texts: Iterable[str]) -> bytes:
    """1024 pieces of a unigram model, or as many as there can be."""
    some, characters = [], 0
    for text in texts:
        some.append(text)
        characters += len(text)
        if characters >= _CHARACTERS:
            break
    content = io.BytesIO()
    _package().SentencePieceTrainer.train(
        sentence_iterator=iter(some),
        model_writer=content,
        vocab_size=PIECES,
        model_type="unigram",
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return content.getvalue()


def _package() -> Any:
    try:
        import sentencepiece
    except ImportError as error:
        raise ValueError(missing("sentencepiece", "speech")) from error
    return sentencepiece

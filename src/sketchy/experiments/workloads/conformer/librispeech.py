"""LibriSpeech's folders: recordings, transcripts, and the pieces that transcripts are cut into."""

import importlib
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sketchy import files
from sketchy.experiments.workloads.conformer.ctc import BLANK
from sketchy.experiments.workloads.conformer.recordings import Recording, Recordings
from sketchy.experiments.workloads.workload import Data
from sketchy.extras import missing

RATE = 16_000
PIECES = 1024
FOLDERS = {
    "train": ("train-clean-100", "train-clean-360", "train-other-500"),
    "validation": ("dev-clean", "dev-other"),
    "test": ("test-clean",),
}
COUNTS = {"train": 263_840, "validation": 5_348, "test": 2_472}  # utterances that are kept, if all are there
LONGEST, MOST_PIECES = 320_000, 256  # longer ones are left out
_SHORTEST = 401  # samples: one frame
_MODEL = "sketchy-pieces.model"
_CHARACTERS = 10_000_000  # of transcripts, to learn the pieces from
_LAYOUT = """\
  train-clean-100, train-clean-360, train-other-500, dev-clean, dev-other and test-clean, each with
  SPEAKER/CHAPTER/*.flac and SPEAKER/CHAPTER/SPEAKER-CHAPTER.trans.txt (https://www.openslr.org/12)"""


@dataclass(frozen=True)
class Utterance:
    path: Path
    text: str  # lower case
    samples: int


class Utterances(Recordings):
    """A split of files. Each is read when a batch needs it."""

    def __init__(
        self,
        rows: Sequence[Utterance],
        pieces: Sequence[Sequence[int]],
        spellings: Sequence[str],
        numbers: int,
    ) -> None:
        super().__init__(spellings, numbers)
        self.rows, self.pieces = rows, pieces

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def lengths(self) -> Tensor:
        return torch.tensor([row.samples for row in self.rows])

    def recording(self, row: int, draw: torch.Generator | None) -> Recording:
        path = self.rows[row].path
        with _readable(path):
            samples, rate = _package("soundfile").read(path, dtype="int16")
        check(path, rate, samples.shape)
        return samples, self.pieces[row]


def open_librispeech(directory: Path, *, numbers: int) -> Data:
    """Its train folders, both dev folders, and test-clean. Long utterances are left out."""
    root = next((place for place in _places(directory) if (place / FOLDERS["train"][0]).is_dir()), None)
    if root is None:
        raise ValueError(
            f"librispeech is not in {directory} (--data-dir, else $SKETCHY_DATA). It should have\n{_LAYOUT}"
        )
    listed = {
        part: [each for folder in folders for each in utterances(root / folder)]
        for part, folders in FOLDERS.items()
    }
    model = pieces_of(root, (row.text for row in listed["train"]))
    spellings = ["" if i == BLANK else model.id_to_piece(i).replace("▁", " ") for i in range(len(model))]
    spellings = ["" if model.is_control(i) else text for i, text in enumerate(spellings)]
    splits, notes = {}, []
    for part, rows in listed.items():
        cut = [_cut(model, row) for row in rows]
        kept = [i for i, row in enumerate(rows) if row.samples <= LONGEST and len(cut[i]) <= MOST_PIECES]
        if not kept:
            raise ValueError(f"{root}: no utterance of the {part} split is short enough")
        splits[part] = Utterances([rows[i] for i in kept], [cut[i] for i in kept], spellings, numbers)
        expected = "" if len(kept) == COUNTS[part] else f" (published: {COUNTS[part]:,})"
        notes.append(f"{part} {len(kept):,} of {len(rows):,} utterances{expected}")
    return Data(**splits, note="; ".join(notes))


def _places(directory: Path) -> tuple[Path, ...]:
    return directory / "LibriSpeech", directory / "librispeech", directory


def utterances(folder: Path) -> list[Utterance]:
    """All utterances of a folder, by name."""
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder. LibriSpeech should have\n{_LAYOUT}")
    transcripts = sorted(folder.glob("*/*/*.trans.txt"))
    if not transcripts:
        raise ValueError(f"{folder}: has no SPEAKER/CHAPTER/*.trans.txt")
    return [each for transcript in transcripts for each in _chapter(transcript)]


def _chapter(transcript: Path) -> Iterator[Utterance]:
    for number, line in enumerate(transcript.read_text(encoding="utf-8").splitlines(), 1):
        name, _, text = line.partition(" ")
        path = transcript.parent / f"{name}.flac"
        if not text.strip():
            raise ValueError(f"{transcript}, line {number}: must be the name of a recording and its text")
        if not path.is_file():
            raise ValueError(f"{path}: no such file; {transcript.name} names it in line {number}")
        with _readable(path):
            about = _package("soundfile").info(path)
        check(
            path, about.samplerate, (about.frames,) if about.channels == 1 else (about.frames, about.channels)
        )
        yield Utterance(path, text.strip().lower(), about.frames)


def check(path: Path, rate: int, shape: tuple[int, ...]) -> None:
    if rate != RATE or len(shape) != 1:
        raise ValueError(f"{path}: must have one channel and {RATE:,} samples a second; it has {rate:,}")
    if shape[0] < _SHORTEST:
        raise ValueError(f"{path}: has {shape[0]} samples, too few for one frame ({_SHORTEST})")


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Errors inside name the recording."""
    try:
        yield
    except (RuntimeError, OSError) as error:  # soundfile's
        raise ValueError(f"{path}: can't be read as a recording: {error}") from error


def pieces_of(root: Path, texts: Iterator[str]) -> Any:
    """The SentencePiece model of a LibriSpeech; it is learnt from transcripts once, and kept beside them."""
    place, package = root / _MODEL, _package("sentencepiece")
    if not place.is_file():
        try:
            files.write(place, _learnt(package, texts))
        except OSError as error:
            raise ValueError(f"{place}: can't be written: {error.strerror}. It keeps the pieces") from error
    model = package.SentencePieceProcessor()
    try:
        model.load(str(place))
    except (RuntimeError, OSError) as error:
        raise ValueError(f"{place}: {error}; remove it to make it again") from error
    return model


def _learnt(package: Any, texts: Iterator[str]) -> bytes:
    """1024 pieces of a unigram model, or as many as there can be."""
    some, characters = [], 0
    for text in texts:
        some.append(text)
        characters += len(text)
        if characters >= _CHARACTERS:
            break
    content = io.BytesIO()
    package.SentencePieceTrainer.train(
        sentence_iterator=iter(some),
        model_writer=content,
        vocab_size=PIECES,
        model_type="unigram",
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return content.getvalue()


def _cut(model: Any, row: Utterance) -> list[int]:
    """The pieces of a transcript, and the end of the sentence."""
    found: list[int] = model.encode(row.text, add_eos=True)
    if BLANK in found:
        raise ValueError(
            f"{row.path}: its text has a character that no transcript had when the pieces were learnt: "
            f"{row.text!r}; remove {_MODEL} to learn them again"
        )
    return found


def _package(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ValueError(missing(name, "speech")) from error

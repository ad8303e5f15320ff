"""LibriSpeech: 960 hours of read books to train, in its published folders."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from sketchy.experiments.workloads.conformer.chapters import LAYOUT, Utterance, utterances
from sketchy.experiments.workloads.conformer.pieces import pieces_of
from sketchy.experiments.workloads.conformer.recordings import Recording, Recordings
from sketchy.experiments.workloads.workload import Data

FOLDERS = {
    "train": ("train-clean-100", "train-clean-360", "train-other-500"),
    "validation": ("dev-clean", "dev-other"),
    "test": ("test-clean",),
}
COUNTS = {"train": 263_840, "validation": 5_348, "test": 2_472}  # utterances that are kept, if all are there
LONGEST, MOST_PIECES = 320_000, 256  # longer ones are left out


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
        self._lengths = torch.tensor([row.samples for row in rows])

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def lengths(self) -> Tensor:
        return self._lengths

    def recording(self, row: int, draw: torch.Generator | None) -> Recording:
        return self.rows[row].read(), self.pieces[row]


def open_librispeech(directory: Path, *, numbers: int) -> Data:
    """Its train folders, both dev folders, and test-clean. Long utterances are left out."""
    places = directory / "LibriSpeech", directory / "librispeech", directory
    root = next((place for place in places if (place / FOLDERS["train"][0]).is_dir()), None)
    if root is None:
        raise ValueError(
            f"librispeech is not in {directory} (--data-dir, else $SKETCHY_DATA). It should have\n{LAYOUT}"
        )
    listed = {
        part: [each for folder in folders for each in utterances(root / folder)]
        for part, folders in FOLDERS.items()
    }
    pieces = pieces_of(root, (row.text for row in listed["train"]))
    splits, notes = {}, []
    for part, rows in listed.items():
        cut = [pieces.cut(row.text, row.path) for row in rows]
        kept = [i for i, row in enumerate(rows) if row.samples <= LONGEST and len(cut[i]) <= MOST_PIECES]
        if not kept:
            raise ValueError(f"{root}: no utterance of the {part} split is short enough")
        own = [rows[i] for i in kept], [cut[i] for i in kept]
        splits[part] = Utterances(*own, pieces.spellings, numbers)
        expected = "" if len(kept) == COUNTS[part] else f" (published: {COUNTS[part]:,})"
        notes.append(f"{part} {len(kept):,} of {len(rows):,} utterances{expected}")
    return Data(**splits, note="; ".join(notes))

"""Recordings with their pieces as batches: padded with silence, and with random numbers for SpecAugment."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sketchy.experiments.workloads.workload import Batch, Draw

Recording = tuple[np.ndarray, Sequence[int]]  # 16-bit samples, and the pieces that are said


class Recordings(ABC):
    """A split. ``spellings``: of each piece, with a space where a word begins; of the blank, nothing."""

    def __init__(self, spellings: Sequence[str], numbers: int) -> None:
        """``numbers``: random numbers that the masks of a row need."""
        self.spelling, self.numbers = spelled(spellings), numbers

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def recording(self, row: int, draw: torch.Generator | None) -> Recording: ...

    @property
    def lengths(self) -> Tensor | None:
        return None

    def batch(self, rows: Sequence[int], draw: Draw | None) -> Batch:
        draws = [None if draw is None else draw(row) for row in rows]
        found = [self.recording(*pair) for pair in zip(rows, draws, strict=True)]
        samples, targets = ([torch.as_tensor(x) for x in column] for column in zip(*found, strict=True))
        batch = {
            "samples": _padded(samples),
            "sample_counts": torch.tensor([len(x) for x in samples]),
            "targets": _padded(targets).long(),
            "target_counts": torch.tensor([len(x) for x in targets]),
            "spelling": self.spelling,
        }
        masks = [torch.rand(self.numbers, generator=each) for each in draws if each is not None]
        return batch | ({"masks": torch.stack(masks)} if masks else {})


def _padded(rows: Sequence[Tensor]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)


def spelled(spellings: Sequence[str]) -> Tensor:
    """The UTF-8 bytes of each piece, (pieces, longest), filled with zeros."""
    rows = [torch.tensor(list(text.encode()), dtype=torch.uint8) for text in spellings]
    return _padded(rows)


def text(pieces: Sequence[int], spelling: Tensor) -> str:
    """The words that pieces spell.

    >>> text([1, 2, 1], spelled(["", " a", "b"]))
    'ab a'
    """
    found = b"".join(bytes(spelling[piece].tolist()).rstrip(b"\0") for piece in pieces)
    return found.decode(errors="replace").strip()

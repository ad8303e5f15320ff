"""Where the data of these tests is, and random numbers of a row."""

import os
from pathlib import Path

import torch

SHARED = Path(os.environ.get("SKETCHY_DATA") or Path(__file__).parents[4] / "shared" / "data")


def draw(row: int) -> torch.Generator:
    """As in training: they follow from the number of the row."""
    return torch.Generator().manual_seed(row)

"""Checkpoints of a run in its folder: the last two are kept, so that one is whole whatever happens."""

from pathlib import Path
from typing import Any

import torch

from sketchy.files import save

KEPT = 2
KEYS = ("network", "optimizer", "record", "losses")


def write(folder: Path, state: dict[str, Any]) -> None:
    """Save a state under the number of its step, then remove older ones."""
    save(folder / f"checkpoint-{state['record']['step']:08}.pt", state)
    for old in _all(folder)[KEPT:]:
        old.unlink(missing_ok=True)


def newest(folder: Path, device: torch.device) -> tuple[dict[str, Any] | None, list[str]]:
    """The newest checkpoint that can be read, if there is one; and what was wrong with those after it."""
    complaints = []
    for path in _all(folder):
        try:
            state = torch.load(path, map_location=device, weights_only=True)
            if missing := [key for key in KEYS if key not in state]:
                raise ValueError(f"{missing[0]!r} is missing")
        except Exception as error:  # damaged in any way: the one before is used
            complaints.append(f"{path}: damaged ({type(error).__name__}), so an older one is used")
        else:
            return state, complaints
    return None, complaints


def clear(folder: Path) -> None:
    """Remove all checkpoints: the run has ended."""
    for path in _all(folder):
        path.unlink(missing_ok=True)


def _all(folder: Path) -> list[Path]:
    return sorted(folder.glob("checkpoint-*.pt"), reverse=True)

"""Molecules that took long to read are kept as arrays, in the user's cache."""

import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import fields
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from sketchy.experiments.workloads.claims import claimed
from sketchy.experiments.workloads.gnn.graphs import Molecules
from sketchy.files import write


def kept(
    name: str, key: str, make: Callable[[], tuple[Molecules, list[np.ndarray]]]
) -> tuple[Molecules, list[np.ndarray]]:
    """Molecules and the rows of their splits: from the cache, or else made and put there.

    ``key``: all that they depend on. If several processes ask at once, one of them makes them.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sketchy" / "packed"
    folder = cache / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    path = folder / "molecules.npz"
    while not path.exists():
        with claimed(folder) as mine:
            if mine and not path.exists():
                _save(path, *make())
        if not mine:
            time.sleep(1.0)
    with np.load(path) as arrays:
        molecules = Molecules(*(arrays[field.name] for field in fields(Molecules)))
        return molecules, [arrays[name] for name in _SPLITS]


_SPLITS = ("train", "validation", "test")


def _save(path: Path, molecules: Molecules, splits: list[np.ndarray]) -> None:
    content = BytesIO()
    arrays: dict[str, Any] = {**vars(molecules), **dict(zip(_SPLITS, splits, strict=True))}
    np.savez(content, **arrays)
    write(path, content.getvalue())

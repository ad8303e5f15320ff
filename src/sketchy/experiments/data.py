"""Data sets for the online runs: known public ones by name, and any svmlight file.

Features are not scaled. A label is positive if it is above zero. A constant feature is added as the last one.
"""

import hashlib
import lzma
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sketchy.experiments import published

SCIKIT = ("digits", "breast_cancer")  # come with scikit-learn; in digits, 0 against the rest


@dataclass(frozen=True)
class Dataset:
    """Examples, in the order of the rounds."""

    name: str
    X: Tensor  # (rows, dim), the last column constant; uint8 if every value fits, else float64
    y: Tensor  # (rows,), True for positive labels

    @property
    def rows(self) -> int:
        return self.X.shape[0]

    @property
    def dim(self) -> int:
        return self.X.shape[1]

    def digest(self) -> str:
        """A hash of all rows. A resumed run checks with it that the data is the same."""
        total = hashlib.sha256(f"{tuple(self.X.shape)}".encode())
        total.update(self.X.numpy().data)
        total.update(self.y.numpy().data)
        return total.hexdigest()

    def notes(self) -> list[str]:
        """Warnings about a single pass over these rows."""
        changes = int((self.y[1:] != self.y[:-1]).sum())
        if changes == 0:
            return ["all labels are of one class (a label is positive if it is above zero)"]
        if changes == 1 and self.rows > 2:
            return ["the rows are sorted by label, so one pass in this order means little; try --shuffle 0"]
        return []


def load(
    name: str,
    *,
    directory: str | Path | None = None,
    download: bool = False,
    rows: int | None = None,
    shuffle: int | None = None,
    max_gib: float = published.MAX_GIB,
) -> Dataset:
    """The known data set ``name``, or the svmlight file at that path: shuffled, then cut to ``rows``.

    Raises ValueError if the rows would take more than ``max_gib`` GiB of memory.

    >>> digits = load("digits", rows=100)
    >>> digits.X.shape, digits.y.sum()
    (torch.Size([100, 65]), tensor(89))
    """
    if not max_gib > 0:
        raise ValueError(f"max-gib={max_gib}: must be above 0")
    if name in SCIKIT:
        features, labels = _scikit(name)
    elif name in published.KNOWN:
        features, labels = published.read(name, data_directory(directory), download=download)
    elif Path(name).is_file():
        features, labels = svmlight(Path(name), max_gib)
    else:
        known = ", ".join((*published.KNOWN, *SCIKIT))
        raise ValueError(f"data={name!r}: no such file or known data set; known are {known}")
    if len(labels) == 0:
        raise ValueError(f"data={name!r}: has no rows")
    if rows is not None and not 1 <= rows <= len(labels):
        raise ValueError(f"rows={rows}: must be from 1 to {len(labels)}, the number of rows of {name}")
    if shuffle is not None and shuffle < 0:
        raise ValueError(f"shuffle={shuffle}: must be at least 0 (a random seed)")
    count, dim = rows or len(labels), features.shape[1]
    if (size := 8 * count * dim / 2**30) > max_gib:
        raise ValueError(
            f"data={name!r}: {count:,} rows of {dim:,} features take {size:,.1f} GiB, more than {max_gib:g}; "
            "check the largest index, use fewer rows, or allow more with --max-gib"
        )
    order = slice(rows) if shuffle is None else np.random.default_rng(shuffle).permutation(len(labels))[:rows]
    return Dataset(name, _with_constant(features[order]), torch.from_numpy(labels[order] > 0))


def data_directory(given: str | Path | None = None) -> Path:
    """``given``, or else ``$SKETCHY_DATA``, or else the user's cache directory."""
    if given is not None and Path(given).exists() and not Path(given).is_dir():
        raise ValueError(f"data-dir={str(given)!r}: is not a directory")
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(given or os.environ.get("SKETCHY_DATA") or Path(cache) / "sketchy")


def svmlight(path: Path, max_gib: float = published.MAX_GIB) -> published.Read:
    """Features (a scipy CSR matrix) and labels of an svmlight file, plain or compressed (.bz2, .gz, .xz)."""
    try:
        with published.opened(path, path.suffix) as content:
            X, y = published.parse_svmlight(content, max_gib=max_gib)
    except (ValueError, EOFError, OSError, lzma.LZMAError, zlib.error) as error:
        raise ValueError(f"{path}: cannot be read as an svmlight file: {error}") from error
    if not np.isfinite(X.data).all():
        raise ValueError(f"{path}: has features that are not finite numbers")
    return X, y


def _scikit(name: str) -> published.Read:
    from sklearn import datasets

    features, labels = getattr(datasets, f"load_{name}")(return_X_y=True)
    return features, labels


def _with_constant(features: Any) -> Tensor:
    values = features if isinstance(features, np.ndarray) else features.toarray()
    small = values.astype(np.uint8) if values.min() >= 0 and values.max() <= 255 else values
    exact = small if (small == values).all() else values.astype(np.float64)
    X = torch.from_numpy(np.ones((len(exact), exact.shape[1] + 1), exact.dtype))
    X[:, :-1] = torch.from_numpy(exact)
    return X

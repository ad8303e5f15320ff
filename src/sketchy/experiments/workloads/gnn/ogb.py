"""ogbg-molpcba as it is published: tables in raw/, and the scaffold split."""

import gzip
import zlib
from pathlib import Path

import numpy as np

from sketchy.experiments.workloads.gnn.graphs import UNTESTED, Molecules
from sketchy.experiments.workloads.gnn.packed import kept
from sketchy.experiments.workloads.gnn.sets import in_splits
from sketchy.experiments.workloads.workload import Data

FOLDER = "ogbg_molpcba"
SIZES = {"atom_features": 9, "bond_features": 3, "assays": 128}
_TABLES = ("num-node-list", "num-edge-list", "node-feat", "edge", "edge-feat", "graph-label")
_SPLITS = ("train", "valid", "test")


def open_ogb(directory: Path, *, both_ways: bool) -> Data:
    """The published molecules and split. They are read once, and then kept as arrays."""
    folder = directory / FOLDER
    paths = {name: folder / "raw" / f"{name}.csv.gz" for name in _TABLES}
    paths |= {name: folder / "split" / "scaffold" / f"{name}.csv.gz" for name in _SPLITS}
    if missing := [path for path in paths.values() if not path.is_file()]:
        raise ValueError(
            f"{missing[0]}: is missing, of ogbg-molpcba in the data directory {directory} (--data-dir, else "
            "$SKETCHY_DATA); published at https://ogb.stanford.edu/docs/graphprop/, unpack molpcba.zip there"
        )
    stats = [(str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns) for path in paths.values()]
    molecules, splits = kept(FOLDER, repr(stats), lambda: _read(paths))
    return in_splits(molecules, splits, both_ways=both_ways, note="scaffold split, as published")


def _read(paths: dict[str, Path]) -> tuple[Molecules, list[np.ndarray]]:
    counts = [_table(paths[name], 1, np.int64)[:, 0] for name in _TABLES[:2]]
    molecules = Molecules(
        atoms=_table(paths["node-feat"], SIZES["atom_features"], np.int16),
        ends=_table(paths["edge"], 2, np.int16),
        bonds=_table(paths["edge-feat"], SIZES["bond_features"], np.int16),
        n_atoms=counts[0],
        n_bonds=counts[1],
        labels=labels(paths["graph-label"], SIZES["assays"]),
    )
    molecules.check(str(paths["graph-label"].parent))
    splits = [_table(paths[name], 1, np.int64)[:, 0] for name in _SPLITS]
    for name, rows in zip(_SPLITS, splits, strict=True):
        if len(bad := np.flatnonzero((rows < 0) | (rows >= len(molecules)))):
            raise ValueError(
                f"{paths[name]}, line {bad[0] + 1}: molecule {rows[bad[0]]}: must be from 0 to "
                f"{len(molecules) - 1}"
            )
    if len(twice := np.flatnonzero(np.bincount(np.concatenate(splits)) > 1)):
        raise ValueError(f"{paths['train'].parent}: molecule {twice[0]} is listed twice")
    return molecules, splits


def _table(path: Path, columns: int, dtype: type) -> np.ndarray:
    """Integers, (rows, columns)."""
    try:
        with gzip.open(path, "rt") as file:
            found: np.ndarray = np.loadtxt(file, dtype, delimiter=",", ndmin=2)
    except (ValueError, EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{path}: damaged ({error}); unpack molpcba.zip again") from error
    if found.size and found.shape[1] != columns:
        raise ValueError(f"{path}: has {found.shape[1]} columns: must have {columns}")
    return found.reshape(-1, columns)


def labels(path: Path, columns: int) -> np.ndarray:
    """0, 1, or UNTESTED where a cell is empty or nan; (rows, columns) of int8."""
    try:
        content = gzip.decompress(path.read_bytes()).replace(b"\r", b"")
    except (EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{path}: damaged ({error}); unpack molpcba.zip again") from error
    text = np.frombuffer(content if content.endswith(b"\n") else content + b"\n", np.uint8)
    ends = np.flatnonzero((text == ord(",")) | (text == ord("\n")))
    lines = np.flatnonzero(text[ends] == ord("\n"))
    if len(wrong := np.flatnonzero(np.diff(lines, prepend=-1) != columns)):
        raise ValueError(f"{path}, line {wrong[0] + 1}: must have {columns} cells")
    starts = np.concatenate([[0], ends[:-1] + 1])
    lengths, first = ends - starts, text[starts]
    digit = (first == ord("0")) | (first == ord("1"))
    padded = np.concatenate([text, np.zeros(2, np.uint8)])
    fraction = (padded[starts + 1] == ord(".")) & (padded[starts + 2] == ord("0"))
    number = digit & ((lengths == 1) | ((lengths == 3) & fraction))
    empty = (lengths == 0) | ((lengths == 3) & (first == ord("n")))
    if len(bad := np.flatnonzero(~(number | empty))):
        cell = text[starts[bad[0]] : ends[bad[0]]].tobytes().decode(errors="replace")
        row, column = divmod(int(bad[0]), columns)
        raise ValueError(f"{path}, line {row + 1}, column {column + 1}: {cell!r}: must be 0, 1 or empty")
    return np.where(number, first.astype(np.int8) - ord("0"), UNTESTED).astype(np.int8).reshape(-1, columns)

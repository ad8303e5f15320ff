"""Molecules as flat arrays: all atoms one after the other, then all bonds, then labels."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sketchy.experiments.workloads.workload import Batch, Draw

UNTESTED = -1  # the label of a molecule that was not tested in an assay


@dataclass(frozen=True)
class Molecules:
    """Graphs with labels. Counts say which atoms and bonds belong to which molecule."""

    atoms: np.ndarray  # (all atoms, features), integers
    ends: np.ndarray  # (all bonds, 2): places of two atoms in their molecule
    bonds: np.ndarray  # (all bonds, features), integers
    n_atoms: np.ndarray  # (molecules,)
    n_bonds: np.ndarray  # (molecules,)
    labels: np.ndarray  # (molecules, assays), int8: 0, 1, or UNTESTED

    def __len__(self) -> int:
        return len(self.labels)

    def check(self, where: str) -> None:
        """Raise ValueError if the arrays don't fit each other."""
        for what, counts, rows in (("atoms", self.n_atoms, self.atoms), ("bonds", self.n_bonds, self.bonds)):
            if len(counts) != len(self) or int(counts.sum()) != len(rows):
                raise ValueError(
                    f"{where}: {len(self):,} molecules, {len(counts):,} numbers of {what} that add up to "
                    f"{int(counts.sum()):,}, and {len(rows):,} {what}: these must agree"
                )
        if len(self.ends) != len(self.bonds):
            raise ValueError(f"{where}: {len(self.ends):,} bonds, but features of {len(self.bonds):,}")
        most = np.repeat(self.n_atoms, self.n_bonds)[:, None]
        if len(wrong := np.flatnonzero(((self.ends < 0) | (self.ends >= most)).any(1))):
            raise ValueError(f"{where}: bond {wrong[0] + 1} joins an atom that its molecule does not have")
        if len(bad := np.argwhere((self.labels < UNTESTED) | (self.labels > 1))):
            row, assay = bad[0]
            found = self.labels[row, assay]
            raise ValueError(
                f"{where}: label {found} of molecule {row + 1}, assay {assay + 1}: must be 0 or 1"
            )


class GraphSplit:
    """Rows of a set of molecules, in memory."""

    lengths: Tensor | None = None

    def __init__(self, molecules: Molecules, rows: np.ndarray, *, both_ways: bool = False) -> None:
        """``both_ways``: each bond is two edges, one in each direction."""
        self.all, self.rows, self.both_ways = molecules, rows, both_ways
        self.first_atom, self.first_bond = _starts(molecules.n_atoms), _starts(molecules.n_bonds)

    def __len__(self) -> int:
        return len(self.rows)

    def batch(self, rows: Sequence[int], draw: Draw | None) -> Batch:
        """One graph of many parts: there is no padding, and no augmentation."""
        chosen = self.rows[np.asarray(rows)]
        n_atoms, n_bonds = self.all.n_atoms[chosen], self.all.n_bonds[chosen]
        atoms = _ranges(self.first_atom[chosen], n_atoms)
        bonds = _ranges(self.first_bond[chosen], n_bonds)
        ends = self.all.ends[bonds] + np.repeat(_starts(n_atoms), n_bonds)[:, None]
        features, of_edge = self.all.bonds[bonds], np.repeat(np.arange(len(chosen)), n_bonds)
        if self.both_ways:
            ends = np.concatenate([ends, ends[:, ::-1]])
            features, of_edge = np.concatenate([features, features]), np.concatenate([of_edge, of_edge])
        arrays = {
            "atoms": self.all.atoms[atoms],
            "bonds": features,
            "senders": ends[:, 0].astype(np.int64),
            "receivers": ends[:, 1].astype(np.int64),
            "graph_of_node": np.repeat(np.arange(len(chosen)), n_atoms),
            "graph_of_edge": of_edge,
            "labels": self.all.labels[chosen],
        }
        return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}


def _starts(counts: np.ndarray) -> np.ndarray:
    """Where each group starts, if groups of these sizes follow each other."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)[:-1]]).astype(np.int64)


def _ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """start, start + 1, ..., start + count - 1 of each group, one after the other."""
    return np.arange(int(counts.sum())) + np.repeat(starts - _starts(counts), counts)

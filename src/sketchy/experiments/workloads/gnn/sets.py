"""The data sets of the GNN at reduced scale: random graphs, and Tox21."""

import hashlib
from pathlib import Path
from typing import IO

import numpy as np

from sketchy.experiments import published
from sketchy.experiments.published import Form, Known, Read
from sketchy.experiments.tasks.sets import SETS
from sketchy.experiments.workloads.gnn.graphs import GraphSplit, Molecules
from sketchy.experiments.workloads.workload import Data


def open_tox21(directory: Path, *, both_ways: bool) -> Data:
    """Tox21, 80 / 10 / 10 %. Equal graphs, such as those of stereoisomers, are in the same split."""
    molecules, _ = published.read("tox21", directory, among=_KNOWN)
    parts = by_group(_fingerprints(molecules), (0.8, 0.1, 0.1))
    return in_splits(molecules, parts, both_ways=both_ways, note="random split, equal graphs to one side")


def open_random(*, both_ways: bool) -> Data:
    """120 random trees. An assay is positive if a feature is frequent among the atoms: that can be learnt."""
    draw = np.random.default_rng(0)
    n_atoms = draw.integers(2, 12, 120)
    n_bonds = n_atoms - 1
    ends = np.concatenate([[(int(draw.integers(i)), i) for i in range(1, n)] for n in n_atoms])
    atoms = draw.integers(0, 3, (int(n_atoms.sum()), RANDOM["atom_features"]))
    molecule = np.repeat(np.arange(120), n_atoms)
    sums = np.stack([np.bincount(molecule, atoms[:, j]) for j in range(RANDOM["assays"])], 1)
    labels = (sums > n_atoms[:, None]).astype(np.int8)
    labels[draw.random(labels.shape) < 0.2] = -1
    bonds = draw.integers(0, 3, (int(n_bonds.sum()), RANDOM["bond_features"]))
    molecules = Molecules(atoms, ends, bonds, n_atoms, n_bonds, labels)
    return in_splits(
        molecules, np.split(np.arange(120), [80, 100]), both_ways=both_ways, note="random graphs"
    )


RANDOM = {"atom_features": 4, "bond_features": 3, "assays": 3}


def in_splits(molecules: Molecules, parts: "list[np.ndarray]", *, both_ways: bool, note: str) -> Data:
    """Train, validation and test rows of a set of molecules."""
    train, validation, test = (GraphSplit(molecules, rows, both_ways=both_ways) for rows in parts)
    return Data(train, validation, test, note)


def by_group(groups: np.ndarray, shares: tuple[float, ...]) -> list[np.ndarray]:
    """Rows in parts of about these shares, in a fixed random order of the groups; a group stays together."""
    names = np.unique(groups)
    order = np.random.default_rng(0).permutation(len(names))
    cuts = np.round(np.cumsum(shares)[:-1] * len(names)).astype(int)
    place = np.empty(len(names), int)
    place[order] = np.searchsorted(cuts, np.arange(len(names)), side="right")
    part = place[np.searchsorted(names, groups)]
    return [np.flatnonzero(part == i) for i in range(len(shares))]


def _fingerprints(molecules: Molecules) -> np.ndarray:
    """A text for each molecule, equal for equal graphs."""
    atoms = np.split(molecules.atoms, np.cumsum(molecules.n_atoms)[:-1])
    bonds = np.split(np.hstack([molecules.ends, molecules.bonds]), np.cumsum(molecules.n_bonds)[:-1])
    pairs = zip(atoms, bonds, strict=True)
    return np.array([hashlib.sha256(a.tobytes() + b"|" + b.tobytes()).hexdigest() for a, b in pairs])


def _molecules(content: IO[bytes]) -> Read:
    """All molecules with atoms, and their labels."""
    with np.load(content) as arrays:
        kept = arrays["n_atoms"] > 0
        found = Molecules(
            atoms=arrays["atom"],
            ends=arrays["bond_ends"].astype(np.int64),
            bonds=arrays["bond"],
            n_atoms=arrays["n_atoms"][kept].astype(np.int64),
            n_bonds=arrays["n_bonds"][kept].astype(np.int64),
            labels=arrays["labels"][kept],
        )
    found.check("tox21")
    return found, found.labels


_KNOWN = {"tox21": Known(SETS["tox21"].page, (Form(SETS["tox21"].forms[0].files, _molecules),))}

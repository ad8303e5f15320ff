"""PCBA from its SMILES: graphs with the features of OGB, by RDKit, and a scaffold split."""

import csv
import io
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from sketchy.experiments import published
from sketchy.experiments.published import File, Form, Known, Read
from sketchy.experiments.workloads.gnn.graphs import UNTESTED, Molecules
from sketchy.experiments.workloads.gnn.packed import kept
from sketchy.experiments.workloads.gnn.sets import in_splits
from sketchy.experiments.workloads.workload import Data
from sketchy.extras import missing

SIZES = {"atom_features": 9, "bond_features": 3, "assays": 128}
SHARES = (0.8, 0.1, 0.1)


def open_pcba(directory: Path, molecules: int, *, both_ways: bool) -> Data:
    """A random part of PCBA, the molecules of ogbg-molpcba. It is read once, and then kept as arrays."""

    def make() -> tuple[Molecules, list[np.ndarray]]:
        smiles, labels = published.read("pcba", directory, among=_KNOWN)
        tested = np.flatnonzero((labels != UNTESTED).any(1))
        chosen = np.sort(np.random.default_rng(0).permutation(tested)[:molecules])
        return build([smiles[row] for row in chosen], labels[chosen])

    found, splits = kept("pcba", f"{_SHA} {molecules} {SHARES}", make)
    note = "scaffold split: large groups to train, rare scaffolds to validate and to test"
    return in_splits(found, splits, both_ways=both_ways, note=note)


def build(smiles: Sequence[str], labels: np.ndarray) -> tuple[Molecules, list[np.ndarray]]:
    """Graphs of the SMILES that RDKit can read, and their split."""
    Chem, MurckoScaffold = _rdkit()
    graphs, kept_rows, scaffolds = [], [], []
    for row, text in _tracked(smiles):
        if (molecule := Chem.MolFromSmiles(text)) is not None and molecule.GetNumAtoms():
            graphs.append(graph(molecule))
            kept_rows.append(row)
            scaffolds.append(MurckoScaffold.MurckoScaffoldSmiles(mol=molecule, includeChirality=False))
    atoms, ends, bonds = (
        np.concatenate([each[i] for each in graphs]).astype(np.uint8 if i != 1 else np.int16)
        for i in range(3)
    )
    n_atoms, n_bonds = (np.array([len(each[i]) for each in graphs]) for i in (0, 2))
    found = Molecules(atoms, ends, bonds, n_atoms, n_bonds, labels[kept_rows])
    found.check("pcba")
    return found, by_scaffold(scaffolds, SHARES)


def by_scaffold(scaffolds: Sequence[str], shares: Sequence[float]) -> list[np.ndarray]:
    """Molecules of one scaffold stay together; the largest groups come first, as in OGB's split."""
    groups: dict[str, list[int]] = {}
    for row, scaffold in enumerate(scaffolds):
        groups.setdefault(scaffold, []).append(row)
    limits = np.cumsum(shares) * len(scaffolds)
    parts: list[list[int]] = [[] for _ in shares]
    for rows in sorted(groups.values(), key=lambda rows: (-len(rows), rows[0])):
        sizes = np.cumsum([len(part) for part in parts])
        fits = (i for i in range(len(parts)) if sizes[i] + len(rows) <= limits[i] + 1e-9)
        parts[next(fits, len(parts) - 1)] += rows
    return [np.array(sorted(part), int) for part in parts]


# ---- features: the place of a value in the list of OGB; what is not listed has the last place

_ATOM: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("GetAtomicNum", (*range(1, 119), None)),
    ("GetChiralTag", ("CHI_UNSPECIFIED", "CHI_TETRAHEDRAL_CW", "CHI_TETRAHEDRAL_CCW", "CHI_OTHER", None)),
    ("GetTotalDegree", (*range(11), None)),
    ("GetFormalCharge", (*range(-5, 6), None)),
    ("GetTotalNumHs", (*range(9), None)),
    ("GetNumRadicalElectrons", (*range(5), None)),
    ("GetHybridization", ("SP", "SP2", "SP3", "SP3D", "SP3D2", None)),
    ("GetIsAromatic", (False, True)),
    ("IsInRing", (False, True)),
)
_BOND: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("GetBondType", ("SINGLE", "DOUBLE", "TRIPLE", "AROMATIC", None)),
    ("GetStereo", ("STEREONONE", "STEREOZ", "STEREOE", "STEREOCIS", "STEREOTRANS", "STEREOANY")),
    ("GetIsConjugated", (False, True)),
)


def graph(molecule: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features of atoms (n, 9), ends of bonds (b, 2) and their features (b, 3)."""
    atoms = [_features(atom, _ATOM) for atom in molecule.GetAtoms()]
    bonds = list(molecule.GetBonds())
    ends = [(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in bonds]
    features = [_features(bond, _BOND) for bond in bonds]
    return np.array(atoms), np.array(ends, int).reshape(-1, 2), np.array(features, int).reshape(-1, 3)


def _features(thing: Any, table: tuple[tuple[str, tuple[Any, ...]], ...]) -> list[int]:
    found = []
    for getter, values in table:
        value = getattr(thing, getter)()
        value = value if type(value) in (int, bool) else str(value)  # RDKit's own kinds have names
        found.append(values.index(value) if value in values else len(values) - 1)
    return found


def _rdkit() -> tuple[Any, Any]:
    try:
        from rdkit import Chem, RDLogger
        from rdkit.Chem.Scaffolds import MurckoScaffold
    except ImportError as error:
        raise ValueError(missing("rdkit", "molecules")) from error
    RDLogger.DisableLog("rdApp.*")  # type: ignore[attr-defined]
    return Chem, MurckoScaffold


def _tracked(smiles: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Numbered, with a progress bar if there are many."""
    from rich.console import Console
    from rich.progress import track

    few = len(smiles) < 1000 or not sys.stderr.isatty()
    yield from track(
        enumerate(smiles), "molecules, once", len(smiles), console=Console(stderr=True), disable=few
    )


def _csv(content: IO[bytes]) -> Read:
    """SMILES, and labels (molecules, assays)."""
    lines = csv.reader(io.TextIOWrapper(content))
    columns = len(next(lines)) - 1
    values = {"0": 0, "1": 1, "": UNTESTED}
    smiles, found = [], []
    for number, (text, *cells) in enumerate(lines, start=2):
        if len(cells) != columns or not values.keys() >= set(cells):
            raise ValueError(f"pcba.csv, line {number}: must have {columns} cells: 0, 1 or empty")
        smiles.append(text)
        found.append(np.array([values[cell] for cell in cells], np.int8))
    return smiles, np.stack(found)


_SHA = "238b64a6590641ec1203d788b26030a0c9c71d2bad75a9bc9f0a3f1a5cb2c3ac"
_KNOWN = {
    "pcba": Known("https://moleculenet.org", (Form((File("molecules/pcba.csv", _SHA),), _csv),)),
}

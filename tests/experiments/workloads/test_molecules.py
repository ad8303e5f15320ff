"""Molecules as OGB publishes them and from SMILES: what is read, what is refused, how rows are split."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sketchy.experiments.data import data_directory
from sketchy.experiments.workloads.gnn import GNN, ogb, sets
from sketchy.experiments.workloads.gnn.graphs import GraphSplit
from sketchy.experiments.workloads.gnn.smiles import build, by_scaffold

TABLES = {
    "raw/num-node-list": "3\n2\n1\n2\n",
    "raw/num-edge-list": "2\n1\n0\n1\n",
    "raw/node-feat": "".join(f"{i},0,1,5,2,0,2,0,1\n" for i in range(8)),
    "raw/edge": "0,1\n1,2\n0,1\n1,0\n",
    "raw/edge-feat": "0,0,1\n1,0,0\n3,0,1\n0,0,0\n",
    "raw/graph-label": "".join(
        ",".join(row) + "\n" for row in (["0", "1", "", "1.0"] * 32, ["nan", "0.0"] * 64)
    )
    * 2,
    "split/scaffold/train": "2\n0\n",
    "split/scaffold/valid": "1\n",
    "split/scaffold/test": "3\n",
}


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory with the published layout, four molecules."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, text in TABLES.items():
        store(tmp_path, name, text)
    return tmp_path


def store(directory: Path, name: str, text: str) -> Path:
    path = directory / "ogbg_molpcba" / f"{name}.csv.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()))
    return path


def test_the_published_tables_are_read_and_kept(published: Path) -> None:
    data = ogb.open_ogb(published, both_ways=False)
    assert [len(split) for split in (data.train, data.validation, data.test)] == [2, 1, 1]
    batch = data.train.batch([0, 1], None)  # molecules 2 and 0
    assert batch["atoms"][:, 0].tolist() == [5, 0, 1, 2]
    assert (batch["senders"].tolist(), batch["receivers"].tolist()) == ([1, 2], [2, 3])
    assert batch["bonds"].tolist() == [[0, 0, 1], [1, 0, 0]]
    assert batch["labels"][:, :4].tolist() == [[0, 1, -1, 1]] * 2
    assert data.validation.batch([0], None)["labels"][0, :4].tolist() == [-1, 0, -1, 0]
    (kept,) = (published / "cache").rglob("molecules.npz")
    written = kept.stat().st_mtime_ns
    again = ogb.open_ogb(published, both_ways=False)
    assert kept.stat().st_mtime_ns == written
    assert again.train.batch([0], None)["labels"].equal(batch["labels"][:1])


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("raw/edge", "0,1\n1,5\n0,1\n1,0\n", "bond 2 joins an atom that its molecule does not have"),
        ("raw/edge", "0,1\n1,x\n", r"raw/edge\.csv\.gz: damaged \(could not convert string 'x'"),
        ("raw/node-feat", "1,2\n", r"node-feat\.csv\.gz: has 2 columns: must have 9"),
        ("raw/num-node-list", "3\n2\n1\n", "4 molecules, 3 numbers of atoms that add up to 6, and 8 atoms"),
        ("raw/graph-label", "0,1\n", r"graph-label\.csv\.gz, line 1: must have 128 cells"),
        ("raw/graph-label", ",".join(["0"] * 127 + ["2"]), r"line 1, column 128: '2': must be 0, 1 or empty"),
        ("split/scaffold/valid", "4\n", r"valid\.csv\.gz, line 1: molecule 4: must be from 0 to 3"),
        ("split/scaffold/test", "1\n", "scaffold: molecule 1 is listed twice"),
    ],
)
def test_a_wrong_table_is_named_with_what_is_wrong(published: Path, name: str, text: str, says: str) -> None:
    store(published, name, text)
    with pytest.raises(ValueError, match=says):
        ogb.open_ogb(published, both_ways=False)
    store(published, name, TABLES[name])
    assert len(ogb.open_ogb(published, both_ways=False).train) == 2


@pytest.mark.parametrize("name", TABLES)
def test_a_missing_table_and_a_cut_one_are_named(published: Path, name: str) -> None:
    path = published / "ogbg_molpcba" / f"{name}.csv.gz"
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(ValueError, match=rf"{path.name}: damaged"):
        ogb.open_ogb(published, both_ways=False)
    path.unlink()
    with pytest.raises(ValueError, match=rf"{path.name}: is missing"):
        ogb.open_ogb(published, both_ways=False)


def test_features_of_smiles_are_those_of_ogb() -> None:
    pytest.importorskip("rdkit")
    texts = ["C[C@H](N)C(=O)[O-]", "c1ccccc1", "not a molecule", "F/C=C/F", "[Na+]"]
    labels = np.arange(5, dtype=np.int8)[:, None] % 2
    found, parts = build(texts, labels)
    assert found.n_atoms.tolist() == [6, 6, 4, 1] and found.labels[:, 0].tolist() == [0, 1, 1, 0]
    alanine, benzene = found.atoms[:6].tolist(), found.atoms[6:12].tolist()
    assert alanine[0] == [5, 0, 4, 5, 3, 0, 2, 0, 0]  # C, 4 bonds, charge 0, 3 H, SP3
    assert alanine[1][0] == 5 and alanine[1][1] in (1, 2)  # its chirality
    assert alanine[5] == [7, 0, 1, 4, 0, 0, alanine[5][6], 0, 0]  # O, charge -1
    assert benzene == [[5, 0, 3, 5, 1, 0, 1, 1, 1]] * 6  # aromatic, in a ring, SP2
    assert found.bonds[5:11].tolist() == [[3, 0, 1]] * 6  # aromatic, conjugated
    double = found.bonds[11:14][found.bonds[11:14, 0] == 1].tolist()
    assert double == [[1, 2, 0]]  # C=C, E
    assert sorted(row for part in parts for row in part.tolist()) == [0, 1, 2, 3]


@given(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=60))
def test_a_scaffold_is_in_one_part_and_large_ones_are_trained_on(scaffolds: list[str]) -> None:
    parts = by_scaffold(scaffolds, (0.8, 0.1, 0.1))
    assert sorted(row for part in parts for row in part.tolist()) == list(range(len(scaffolds)))
    train, validation, test = ({scaffolds[row] for row in part} for part in parts)
    assert not (train & validation or train & test or validation & test)
    assert len(parts[0]) <= 0.8 * len(scaffolds) + 1e-9
    if validation and train:
        biggest = max(map(scaffolds.count, scaffolds))
        assert biggest > 0.8 * len(scaffolds) or any(scaffolds.count(one) == biggest for one in train)


def test_tox21_has_its_numbers_and_equal_graphs_on_one_side() -> None:
    try:
        data = GNN.sources["tox21"].open(data_directory(), GNN.presets["quarter"].scale)
    except ValueError as error:
        pytest.skip(str(error).partition("\n")[0])
    splits = data.train, data.validation, data.test
    assert sum(map(len, splits)) == 7823
    assert [round(len(split) / 7823, 2) for split in splits] == [0.8, 0.1, 0.1]
    names = []
    for split in splits:
        assert isinstance(split, GraphSplit)
        names.append(set(sets._fingerprints(split.all)[split.rows]))
    assert not (names[0] & names[1] or names[0] & names[2] or names[1] & names[2])

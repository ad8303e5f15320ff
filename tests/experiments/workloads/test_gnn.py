"""The graph network: its weights, its formula, its loss and its score."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sketchy.experiments.workloads.gnn import GNN
from sketchy.experiments.workloads.gnn.graphs import GraphSplit, Molecules
from sketchy.experiments.workloads.gnn.network import GraphNetwork, Joint
from sketchy.experiments.workloads.gnn.precision import average_precision, mean_average_precision
from sketchy.experiments.workloads.gnn.sets import by_group, open_random

TINY = GNN.presets["tiny"].scale


def tiny_network(seed: int = 0) -> GraphNetwork:
    torch.manual_seed(seed)
    network = GNN().network(TINY, GNN.sources["synthetic"].sizes)
    assert isinstance(network, GraphNetwork)
    return network.eval()


def test_the_network_of_the_paper_has_its_number_of_weights() -> None:
    sizes = {"atom_features": 9, "bond_features": 3, "assays": 128}
    with torch.device("meta"):
        network = GNN().network(GNN.presets["paper"].scale, sizes)
    assert sum(p.numel() for p in network.parameters()) == 3_554_176


def plain(network: GraphNetwork, molecules: Molecules, row: int) -> Tensor:
    """The logits of one molecule: loops over its bonds and atoms, joined inputs, one product."""

    def joint(layer: Joint, *inputs: Tensor) -> Tensor:
        return torch.relu(layer.norm(layer.linear(torch.cat(inputs))))

    first_atom, first_bond = molecules.n_atoms[:row].sum(), molecules.n_bonds[:row].sum()
    atoms = molecules.atoms[first_atom : first_atom + molecules.n_atoms[row]]
    bonds = molecules.bonds[first_bond : first_bond + molecules.n_bonds[row]]
    ends = molecules.ends[first_bond : first_bond + molecules.n_bonds[row]]
    nodes = [network.atoms(torch.tensor(atom).float()) for atom in atoms]
    edges = [network.bonds(torch.tensor(bond).float()) for bond in bonds]
    total = torch.zeros(network.outputs)
    for step in network.steps:
        edges = [
            joint(step.edge, e, nodes[a], nodes[b], total) for e, (a, b) in zip(edges, ends, strict=True)
        ]
        zero = torch.zeros_like(nodes[0])
        sent = [
            sum((e for e, (a, _) in zip(edges, ends, strict=True) if a == i), zero) for i in range(len(nodes))
        ]
        got = [
            sum((e for e, (_, b) in zip(edges, ends, strict=True) if b == i), zero) for i in range(len(nodes))
        ]
        nodes = [joint(step.node, n, s, r, total) for n, s, r in zip(nodes, sent, got, strict=True)]
        total = joint(step.globals, sum(nodes, zero), sum(edges, zero), total)
    return network.head(total)


def test_a_batch_gives_what_a_plain_loop_over_bonds_and_atoms_gives() -> None:
    network, split = tiny_network(), open_random(both_ways=False).train
    assert isinstance(split, GraphSplit)
    rows = [5, 0, 7, 5]
    with torch.no_grad():
        together = network(split.batch(rows, None))
        alone = torch.stack([plain(network, split.all, int(split.rows[row])) for row in rows])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_a_molecule_without_bonds_has_logits() -> None:
    lonely = Molecules(
        atoms=np.ones((3, 4), np.int64),
        ends=np.array([[0, 1]]),
        bonds=np.ones((1, 3), np.int64),
        n_atoms=np.array([1, 2]),
        n_bonds=np.array([0, 1]),
        labels=np.zeros((2, 3), np.int8),
    )
    with torch.no_grad():
        logits = tiny_network()(GraphSplit(lonely, np.arange(2)).batch([0, 1], None))
    assert logits.isfinite().all()


def test_both_ways_doubles_the_edges_and_only_them() -> None:
    once, twice = (open_random(both_ways=ways).train.batch([3, 4], None) for ways in (False, True))
    n = len(once["senders"])
    assert torch.equal(twice["senders"], torch.cat([once["senders"], once["receivers"]]))
    assert torch.equal(twice["receivers"], torch.cat([once["receivers"], once["senders"]]))
    assert torch.equal(twice["bonds"][n:], once["bonds"])
    assert torch.equal(twice["graph_of_edge"][n:], once["graph_of_edge"])
    assert torch.equal(twice["atoms"], once["atoms"])


@given(st.data())
def test_average_precision_is_that_of_scikit_learn_also_with_equal_scores(data: st.DataObject) -> None:
    from sklearn.metrics import average_precision_score

    labels = data.draw(st.lists(st.integers(0, 1), min_size=2, max_size=30).filter(lambda x: sum(x) > 0))
    scores = data.draw(st.lists(st.integers(-3, 3), min_size=len(labels), max_size=len(labels)))
    ours = average_precision(torch.tensor(scores).float(), torch.tensor(labels) == 1)
    assert ours == pytest.approx(average_precision_score(labels, scores), abs=1e-12)


def test_the_mean_takes_assays_with_both_classes_and_tested_molecules() -> None:
    scores = torch.tensor([[3.0, 1, 1, 9], [2, 2, 2, 1], [1, 3, 3, 2]])
    labels = torch.tensor([[1, 1, 0, -1], [0, 1, -1, 1], [1, 1, 0, 0]])  # assays 1 and 2 have one class
    first, last = (1 + 2 / 3) / 2, 1 / 2
    assert mean_average_precision(scores, labels) == pytest.approx((first + last) / 2)
    assert mean_average_precision(scores, labels, least=2) == pytest.approx(first)
    assert np.isnan(mean_average_precision(scores, labels, least=3))


def test_loss_and_count_of_parts_add_up_to_those_of_the_whole() -> None:
    workload, network, split = GNN(), tiny_network(), open_random(both_ways=False).train
    parts = [workload.loss(network, split.batch(rows, None), TINY) for rows in ([1, 2, 3], [4])]
    whole = workload.loss(network, split.batch([1, 2, 3, 4], None), TINY)
    torch.testing.assert_close(sum(loss for loss, _ in parts), whole[0])
    assert sum(int(count) for _, count in parts) == int(whole[1])


def test_untested_cells_have_no_loss() -> None:
    workload, network = GNN(), tiny_network()
    batch = open_random(both_ways=False).train.batch([1, 2], None)
    labels = torch.tensor([[1, -1, -1], [-1, 0, -1]], dtype=torch.int8)
    loss, count = workload.loss(network, {**batch, "labels": labels}, TINY)
    logits = network(batch)
    expected = -torch.nn.functional.logsigmoid(torch.stack([logits[0, 0], -logits[1, 1]])).sum()
    torch.testing.assert_close(loss, expected)
    assert int(count) == 2


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"n_atoms": np.array([1, 3])}, "add up to 4, and 3 atoms"),
        ({"ends": np.array([[0, 2]])}, "bond 1 joins an atom that its molecule does not have"),
        ({"labels": np.array([[0], [2]], np.int8)}, "label 2 of molecule 2, assay 1"),
    ],
)
def test_molecules_that_do_not_fit_are_refused(change: dict[str, np.ndarray], says: str) -> None:
    good = Molecules(
        atoms=np.ones((3, 4), np.int64),
        ends=np.array([[0, 1]]),
        bonds=np.ones((1, 3), np.int64),
        n_atoms=np.array([1, 2]),
        n_bonds=np.array([0, 1]),
        labels=np.zeros((2, 1), np.int8),
    )
    good.check("here")
    with pytest.raises(ValueError, match=f"here: .*{says}"):
        replace(good, **change).check("here")


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40))
def test_groups_stay_together_and_rows_are_in_one_part(groups: list[int]) -> None:
    parts = by_group(np.array(groups), (0.6, 0.2, 0.2))
    assert sorted(row for part in parts for row in part.tolist()) == list(range(len(groups)))
    held = [{groups[row] for row in part} for part in parts]
    assert not (held[0] & held[1] or held[0] & held[2] or held[1] & held[2])

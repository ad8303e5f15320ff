"""Tox21: packing loses nothing, the network depends on the graph only, untested labels don't count."""

import io
import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from sketchy.experiments import tasks
from sketchy.experiments.tasks.molecules import BONDS, FEATURES, MoleculeNetwork, packed

SHARED = Path(os.environ.get("SKETCHY_DATA") or Path(__file__).parents[3] / "shared" / "data")


@cache
def tox21() -> tasks.Task:
    try:
        return tasks.load("tox21", directory=SHARED)
    except ValueError as error:
        if "is not in" in str(error):
            pytest.skip(str(error).splitlines()[0])
        raise


def graphs(*molecules: tuple[int, list[tuple[int, int, int]]]) -> io.BytesIO:
    """A file of molecules: how many atoms, all different, and the bonds as (end, end, type)."""
    ends = [bond[:2] for _, bonds in molecules for bond in bonds]
    kinds = [(bond[2], 0, 0) for _, bonds in molecules for bond in bonds]
    sizes = [atoms for atoms, _ in molecules]
    content = io.BytesIO()
    np.savez(
        content,
        atom=np.array([[1 + i, 0, 10, 0, 0, 0, 0] for size in sizes for i in range(size)], np.uint8),
        bond_ends=np.array(ends, np.uint16).reshape(-1, 2),
        bond=np.array(kinds, np.uint8).reshape(-1, 3),
        n_atoms=np.array(sizes, np.uint16),
        n_bonds=np.array([len(bonds) for _, bonds in molecules], np.uint16),
        labels=np.arange(len(sizes), dtype=np.int8)[:, None],
    )
    content.seek(0)
    return content


def table(*molecules: tuple[int, list[tuple[int, int, int]]]) -> Tensor:
    return torch.from_numpy(packed(graphs(*molecules))[0])


CHAIN = (3, [(0, 1, 1), (1, 2, 2)])
PAIR = (2, [(0, 1, 1)])


def test_every_bond_is_written_at_both_its_ends_and_empty_molecules_are_left_out() -> None:
    molecules, labels = packed(graphs(PAIR, (0, []), CHAIN))
    assert molecules.shape == (2, 3, FEATURES + 2 * BONDS) and labels.tolist() == [[0], [2]]
    pair, chain = molecules
    assert pair[:, 0].tolist() == [1, 2, 0]
    neighbours, kinds = chain[:, FEATURES:][:, :BONDS], chain[:, FEATURES + BONDS :]
    assert neighbours[1, :2].tolist() == [0, 2] and kinds[1].tolist() == [4, 8, 0, 0, 0, 0]
    assert neighbours[[0, 2], 0].tolist() == [1, 1] and kinds[[0, 2], 0].tolist() == [4, 8]


@pytest.fixture
def network() -> MoleculeNetwork:
    torch.manual_seed(0)
    return MoleculeNetwork(4, width=16, layers=2)


def test_a_molecule_is_judged_alone_whatever_else_is_in_the_batch(network: MoleculeNetwork) -> None:
    together = network(table(PAIR, CHAIN, PAIR))
    torch.testing.assert_close(together[0], network(table(PAIR))[0])
    torch.testing.assert_close(together[1], network(table(CHAIN))[0])
    torch.testing.assert_close(together[0], together[2])


def test_the_order_of_the_atoms_does_not_matter_and_the_bonds_do(network: MoleculeNetwork) -> None:
    chain = table(CHAIN)
    turned = chain[:, [2, 1, 0]].clone()
    exists = turned[..., FEATURES + BONDS :] > 0
    places = turned[..., FEATURES : FEATURES + BONDS]
    turned[..., FEATURES : FEATURES + BONDS] = torch.where(exists, 2 - places, places)
    torch.testing.assert_close(network(turned), network(chain))
    other_bond, no_bond = table((3, [(0, 1, 2), (1, 2, 2)])), table((3, [(0, 1, 1)]))
    assert not torch.allclose(network(other_bond), network(chain))
    assert not torch.allclose(network(no_bond), network(chain))


def test_what_the_network_says_equals_message_passing_with_a_dense_adjacency(
    network: MoleculeNetwork,
) -> None:
    network.double()
    molecule = table(CHAIN)
    kinds = torch.zeros(3, 3, dtype=torch.long)
    for one, other, kind in CHAIN[1]:
        kinds[one, other] = kinds[other, one] = 4 * kind
    h = network.embed_atom(molecule[0, :, :FEATURES].long() + network.offsets).sum(1)
    for layer in network.layers:
        x = layer.norm(h)
        messages = (x[None] + layer.embed_bond(kinds)).relu() * (kinds > 0)[..., None]
        h = h + layer.network_out(
            torch.nn.functional.gelu(layer.network_in(x + messages.sum(1)))  # over the second end
        )
    expected = network.head(network.norm(h.mean(0)))
    torch.testing.assert_close(network(molecule)[0], expected)


def test_the_graphs_are_those_of_the_published_file() -> None:
    task = tox21()
    assert len(task.train) + len(task.validation) == 7831 - 8
    assert len(task.validation) == pytest.approx(7823 / 5, rel=0.01)
    inputs = torch.cat([task.train.inputs, task.validation.inputs])
    targets = torch.cat([task.train.targets, task.validation.targets])
    assert int((inputs[..., 0] > 0).sum()) == 145_256
    assert int((inputs[..., FEATURES + BONDS :] > 0).sum()) == 2 * 150_901
    assert float((targets >= 0).float().mean()) == pytest.approx(0.829, abs=1e-3)
    assert sorted(set(targets.flatten().tolist())) == [-1, 0, 1]


def test_an_untested_assay_adds_nothing_to_the_loss_or_to_the_gradient() -> None:
    task = tox21()
    logits = torch.randn(5, 12, requires_grad=True)
    targets = task.train.targets[:5]
    assert (targets < 0).any()
    loss = task.loss(logits, targets)
    loss.backward()
    assert logits.grad is not None
    assert (logits.grad[targets < 0] == 0).all() and (logits.grad[targets >= 0] != 0).all()
    cells = binary_cross_entropy_with_logits(logits, targets.clamp_min(0).float(), reduction="none")
    assert loss.item() == pytest.approx((cells * (targets >= 0)).sum().item() / 5, rel=1e-6)


def test_no_graph_is_in_both_splits() -> None:
    task = tox21()
    train, held_out = (
        {row.numpy().tobytes() for row in split.inputs} for split in (task.train, task.validation)
    )
    assert not train & held_out

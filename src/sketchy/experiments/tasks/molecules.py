"""Molecules: how a graph lies in one table of bytes, and a message-passing network that reads it."""

from typing import IO

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from sketchy.experiments.published import Read

# values of an atom's features: element, degree, charge + 10, hydrogens, hybridization, aromatic, in a ring
VALUES = (119, 11, 21, 9, 9, 2, 2)
FEATURES = len(VALUES)
BONDS = 6  # of an atom, at most
BOND_KINDS = 6 * 2 * 2  # type 1..5, conjugated or not, in a ring or not; kinds below 4 do not occur


def packed(content: IO[bytes]) -> Read:
    """Molecules that have atoms, (molecules, atoms, 7 + 6 + 6) bytes, and labels: 0, 1, -1 for untested.

    An atom's line holds its features, its neighbours' places in the molecule and the kinds of those bonds.
    A line that starts with 0 holds no atom, and a kind of 0 is no bond.
    """
    with np.load(content) as arrays:
        atoms, ends, bonds, n_atoms, n_bonds, labels = (
            arrays[name] for name in ("atom", "bond_ends", "bond", "n_atoms", "n_bonds", "labels")
        )
    table = np.zeros((len(n_atoms), n_atoms.max(), FEATURES + 2 * BONDS), np.uint8)
    table[np.arange(n_atoms.max()) < n_atoms[:, None], :FEATURES] = atoms
    kinds = 4 * bonds[:, 0] + 2 * bonds[:, 1] + bonds[:, 2]
    filled = np.zeros(table.shape[:2], int)  # bonds of an atom that have their place
    molecules = np.repeat(np.arange(len(n_atoms)), n_bonds)
    for molecule, (one, other), kind in zip(molecules, ends.astype(int), kinds, strict=True):
        for here, there in ((one, other), (other, one)):
            place = FEATURES + filled[molecule, here]
            table[molecule, here, [place, place + BONDS]] = there, kind
            filled[molecule, here] += 1
    return table[n_atoms > 0], labels[n_atoms > 0]


class MoleculeNetwork(nn.Module):
    """(molecules, atoms, 19) bytes, see ``packed``, to (molecules, tasks) of logits.

    Only the atoms and bonds that exist are computed with.
    """

    offsets: Tensor  # where the rows of each feature begin in the embedding

    def __init__(self, tasks: int, *, width: int, layers: int) -> None:
        super().__init__()
        self.embed_atom = nn.Embedding(sum(VALUES), width)
        self.register_buffer("offsets", torch.tensor((0, *VALUES[:-1])).cumsum(0), persistent=False)
        self.layers = nn.ModuleList(Messages(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, tasks)
        for embedding in (module for module in self.modules() if isinstance(module, nn.Embedding)):
            nn.init.normal_(embedding.weight, std=FEATURES**-0.5)

    def forward(self, molecules: Tensor) -> Tensor:
        exists = molecules[..., 0] > 0
        molecule, place = exists.nonzero(as_tuple=True)
        features, neighbours, kinds = molecules[exists].long().split((FEATURES, BONDS, BONDS), dim=1)
        target, bond = kinds.nonzero(as_tuple=True)
        first = target - place[target]  # where the molecule of each bond begins
        source, kind = first + neighbours[target, bond], kinds[target, bond]
        h = self.embed_atom(features + self.offsets).sum(1)
        for layer in self.layers:
            h = layer(h, source, target, kind)
        sums = h.new_zeros(len(molecules), h.shape[1]).index_add(0, molecule, h)
        return self.head(self.norm(sums / exists.sum(1, keepdim=True)))


class Messages(nn.Module):
    """Every atom hears its neighbours through their bonds, and adds what it makes of it to its vector."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.embed_bond = nn.Embedding(BOND_KINDS, width)
        self.network_in = nn.Linear(width, 2 * width)
        self.network_out = nn.Linear(2 * width, width)

    def forward(self, h: Tensor, source: Tensor, target: Tensor, kind: Tensor) -> Tensor:
        x = self.norm(h)
        messages = functional.relu(x[source] + self.embed_bond(kind))
        heard = torch.zeros_like(x).index_add(0, target, messages)
        return h + self.network_out(functional.gelu(self.network_in(x + heard)))

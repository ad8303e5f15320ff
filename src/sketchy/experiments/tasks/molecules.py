"""Molecules: graphs stored as tables of bytes, and a message-passing network for them."""

from typing import IO

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from sketchy.experiments.published import Read

# the number of values of each feature of an atom:
# element, degree, charge + 10, hydrogens, hybridization, aromatic, in a ring
VALUES = (119, 11, 21, 9, 9, 2, 2)
FEATURES = len(VALUES)
BONDS = 6  # the largest number of bonds of an atom
BOND_KINDS = 6 * 2 * 2  # type 1..5, conjugated or not, in a ring or not; kinds below 4 do not occur


def packed(content: IO[bytes]) -> Read:
    """The molecules, (molecules, atoms, 7 + 6 + 6) bytes, and their labels: 0, 1, or -1 for untested.

    The row of an atom holds its features, the indices of its neighbours in the molecule, and the kinds of
    these bonds. A row that starts with 0 is not an atom, and a kind of 0 is not a bond. Molecules without
    atoms are left out.
    """
    with np.load(content) as arrays:
        atoms, ends, bonds, n_atoms, n_bonds, labels = (
            arrays[name] for name in ("atom", "bond_ends", "bond", "n_atoms", "n_bonds", "labels")
        )
    table = np.zeros((len(n_atoms), n_atoms.max(), FEATURES + 2 * BONDS), np.uint8)
    table[np.arange(n_atoms.max()) < n_atoms[:, None], :FEATURES] = atoms
    kinds = 4 * bonds[:, 0] + 2 * bonds[:, 1] + bonds[:, 2]
    filled = np.zeros(table.shape[:2], int)  # the number of bonds of each atom that are in the table
    molecules = np.repeat(np.arange(len(n_atoms)), n_bonds)
    for molecule, (one, other), kind in zip(molecules, ends.astype(int), kinds, strict=True):
        for here, there in ((one, other), (other, one)):
            place = FEATURES + filled[molecule, here]
            table[molecule, here, [place, place + BONDS]] = there, kind
            filled[molecule, here] += 1
    return table[n_atoms > 0], labels[n_atoms > 0]


class MoleculeNetwork(nn.Module):
    """Maps molecules (molecules, atoms, 19), see ``packed``, to logits (molecules, tasks).

    Padding is removed first, so only existing atoms and bonds are computed.
    """

    offsets: Tensor  # the first row of each feature in the embedding

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
        first = target - place[target]  # index of the first atom of each bond's molecule
        source, kind = first + neighbours[target, bond], kinds[target, bond]
        h = self.embed_atom(features + self.offsets).sum(1)
        for layer in self.layers:
            h = layer(h, source, target, kind)
        sums = h.new_zeros(len(molecules), h.shape[1]).index_add(0, molecule, h)
        return self.head(self.norm(sums / exists.sum(1, keepdim=True)))


class Messages(nn.Module):
    """A layer of message passing: each atom sums messages from its neighbours and updates its vector."""

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

"""Battaglia's graph network, as in the paper's third workload: 3,554,176 weights at width 256.

One step, with a network of its own for edges, nodes and the graph ("globals"):

    edge'   = f(edge, sender, receiver, global)
    node'   = g(node, sum of edges sent, sum of edges received, global)
    global' = h(sum of nodes, sum of edges, global)
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from sketchy.experiments.workloads.initial import lecun_linear
from sketchy.experiments.workloads.workload import Batch


class Joint(nn.Module):
    """Linear, layer norm, ReLU and dropout of several inputs side by side.

    It is a sum of products of each part with its columns of the weight, so that a node's row is multiplied
    once and then copied to its edges.
    """

    def __init__(self, parts: Sequence[int], width: int, dropout: float) -> None:
        super().__init__()
        self.parts = list(parts)
        self.linear = lecun_linear(sum(parts), width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.dropout = nn.Dropout(dropout)

    def forward(self, *inputs: tuple[Tensor, Tensor | None]) -> Tensor:
        """Of each part its rows, and which of them each output row takes (None: its own)."""
        total: Tensor | None = None
        bias: Tensor | None = self.linear.bias
        for (rows, taken), weight in zip(inputs, self.linear.weight.split(self.parts, 1), strict=True):
            product = functional.linear(rows, weight, bias)
            product = product if taken is None else product[taken]
            total, bias = product if total is None else total + product, None
        assert total is not None
        return self.dropout(functional.relu(self.norm(total)))


class Graphs(NamedTuple):
    """Edges, nodes and globals of a batch, one row each."""

    edges: Tensor
    nodes: Tensor
    globals: Tensor


class Step(nn.Module):
    """One step of message passing; ``inputs`` is the width of the globals that come in."""

    def __init__(self, width: int, inputs: int, dropout: float) -> None:
        super().__init__()
        self.edge = Joint((width, width, width, inputs), width, dropout)
        self.node = Joint((width, width, width, inputs), width, dropout)
        self.globals = Joint((width, width, inputs), width, dropout)

    def forward(self, old: Graphs, batch: Batch) -> Graphs:
        of_edge, of_node = batch["graph_of_edge"], batch["graph_of_node"]
        sender, receiver = batch["senders"], batch["receivers"]
        edges = self.edge(
            (old.edges, None), (old.nodes, sender), (old.nodes, receiver), (old.globals, of_edge)
        )
        sent, received = (_sums(edges, end, len(old.nodes)) for end in (sender, receiver))
        nodes = self.node((old.nodes, None), (sent, None), (received, None), (old.globals, of_node))
        graphs = len(old.globals)
        sums = (_sums(nodes, of_node, graphs), None), (_sums(edges, of_edge, graphs), None)
        return Graphs(edges, nodes, self.globals(*sums, (old.globals, None)))


class GraphNetwork(nn.Module):
    """Logits (graphs, outputs) of a batch of graphs. The globals start as zeros, one for each output."""

    def __init__(
        self, atom_features: int, bond_features: int, outputs: int, *, width: int, steps: int, dropout: float
    ) -> None:
        super().__init__()
        self.outputs = outputs
        self.atoms = lecun_linear(atom_features, width)
        self.bonds = lecun_linear(bond_features, width)
        self.steps = nn.ModuleList(Step(width, width if i else outputs, dropout) for i in range(steps))
        self.head = lecun_linear(width, outputs)

    def forward(self, batch: Batch) -> Tensor:
        edges, nodes = self.bonds(batch["bonds"].float()), self.atoms(batch["atoms"].float())
        graphs = Graphs(edges, nodes, nodes.new_zeros(len(batch["labels"]), self.outputs))
        for step in self.steps:
            graphs = step(graphs, batch)
        return self.head(graphs.globals)


def _sums(rows: Tensor, group: Tensor, groups: int) -> Tensor:
    """The sum of the rows of each group."""
    return torch.zeros(groups, rows.shape[1], dtype=rows.dtype, device=rows.device).index_add(0, group, rows)

"""The paper's third workload: a graph network that predicts the results of assays from molecules."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from sketchy.experiments.workloads.gnn import ogb, sets, smiles
from sketchy.experiments.workloads.gnn.network import GraphNetwork
from sketchy.experiments.workloads.gnn.precision import mean_average_precision
from sketchy.experiments.workloads.scale import Preset, Range, Scale, Tuning
from sketchy.experiments.workloads.workload import Batch, Metric, Score, Sizes, Source, Workload


@dataclass(frozen=True, kw_only=True)
class GNNScale(Scale):
    """`Scale`, and the sizes of the graph network."""

    width: int = 256
    message_steps: int = 5
    dropout: float = 0.05
    both_ways: bool = False  # whether a bond is two edges, as in AlgoPerf; once, as in init2winit
    least_positives: int = 1  # of an assay in a split, for its average precision to count
    molecules: int = 100_000  # taken of `pcba`


Look = tuple[Tensor, Tensor]  # logits and labels, (graphs, assays)

_RANGES = {
    "lr": Range(1e-4, 1e-2),
    "weight_decay": Range(1e-3, 0.5),
    "beta1": Range(1e-3, 0.5, one_minus=True),
    "beta2": Range(1e-3, 0.5, one_minus=True),
}
_PAPER = GNNScale(
    batch=1024,
    micro_batch=128,
    steps=10_260,  # 30 epochs of 342
    tuning_steps=10_260,
    look_every=342,
    lr=1e-3,
    weight_decay=0.02,
    block_size=1024,
    rank=256,
)
_QUARTER = _PAPER.changed(
    {"batch": 64, "micro_batch": 64, "steps": 1000, "tuning_steps": 750, "look_every": 50}
    | {"width": 64, "block_size": 256, "rank": 64, "clip": 10.0, "graft": "rmsprop_normalized"}
)
_TINY = _QUARTER.changed(
    {"batch": 16, "micro_batch": 8, "steps": 20, "tuning_steps": 10, "look_every": 5, "start_step": 5}
    | {"width": 16, "message_steps": 2, "block_size": 32, "rank": 8}
)


class GNN(Workload[GNNScale]):
    """Masked binary cross-entropy over the assays; average precision, mean over the assays."""

    name: ClassVar[str] = "gnn"
    metric: ClassVar[Metric] = Metric("average precision", higher_is_better=True, error=True, short="AP")
    loss_name: ClassVar[str] = "binary cross-entropy of a label"
    presets: ClassVar[Mapping[str, Preset]] = {
        "paper": Preset(_PAPER, Tuning(_RANGES, trials=128), "ogbg-molpcba"),
        "quarter": Preset(
            _QUARTER,
            Tuning(_RANGES, trials=128, chosen_by="loss"),
            "tox21",
            "Tox21 (7,823 molecules, 12 assays) instead of ogbg-molpcba; width 64, blocks of 256, rank 64: "
            "a quarter of the paper's; batches of 64 instead of 1024; 750 steps to tune and 1,000 to report "
            "instead of 10,260; gradients clipped at 10; graft RMSProp-normalized; chosen by validation loss",
        ),
        "tiny": Preset(_TINY, Tuning(_RANGES, trials=2), "synthetic", "a test of the program, not a result"),
    }
    sources: ClassVar[Mapping[str, Source]] = {
        "synthetic": Source(
            sets.RANDOM, lambda _, scale: sets.open_random(both_ways=scale.both_ways), "120 random graphs"
        ),
        "tox21": Source(
            {"atom_features": 7, "bond_features": 3, "assays": 12},
            lambda directory, scale: sets.open_tox21(directory, both_ways=scale.both_ways),
            "Tox21 of MoleculeNet: 7,823 molecules",
        ),
        "pcba": Source(
            smiles.SIZES,
            lambda directory, scale: smiles.open_pcba(directory, scale.molecules, both_ways=scale.both_ways),
            "PCBA of MoleculeNet from SMILES: as many molecules as --set molecules says; needs RDKit",
        ),
        "ogbg-molpcba": Source(
            ogb.SIZES,
            lambda directory, scale: ogb.open_ogb(directory, both_ways=scale.both_ways),
            "437,929 molecules as OGB publishes them, in ogbg_molpcba/",
        ),
    }

    def network(self, scale: GNNScale, sizes: Sizes) -> nn.Module:
        return GraphNetwork(
            sizes["atom_features"],
            sizes["bond_features"],
            sizes["assays"],
            width=scale.width,
            steps=scale.message_steps,
            dropout=scale.dropout,
        )

    def loss(self, network: nn.Module, batch: Batch, scale: GNNScale) -> tuple[Tensor, Tensor]:
        return _loss(network(batch).float(), batch["labels"])

    def look(self, network: nn.Module, batch: Batch, scale: GNNScale) -> Look:
        return network(batch).float().cpu(), batch["labels"].cpu()

    def score(self, looks: Sequence[Look], scale: GNNScale) -> Score:
        logits, labels = (torch.cat(parts) for parts in zip(*looks, strict=True))
        total, count = _loss(logits.double(), labels)
        precision = mean_average_precision(logits, labels, least=scale.least_positives)
        return Score(float(total / count), precision)


def _loss(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Over the molecules and assays that were tested."""
    tested = labels >= 0
    losses = binary_cross_entropy_with_logits(logits, labels.clamp_min(0).to(logits), reduction="none")
    return (losses * tested).sum(), tested.sum()

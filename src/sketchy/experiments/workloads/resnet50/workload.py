"""The paper's first workload: ResNet-50 that names what is in a picture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sketchy.experiments.workloads.resnet50 import sets
from sketchy.experiments.workloads.resnet50.network import ResNet
from sketchy.experiments.workloads.scale import Choice, Preset, Range, Ranges, Scale, Tuning
from sketchy.experiments.workloads.workload import Batch, Metric, Score, Sizes, Source, Workload


@dataclass(frozen=True, kw_only=True)
class ResNetScale(Scale):
    """`Scale`, and the sizes of ResNet-50."""

    width: int = 64
    blocks: str = "3-4-6-3"  # of each stage
    stem: Literal["7x7", "3x3"] = "7x7"  # 7x7: with a pool, as on ImageNet; 3x3: without, for small pictures
    virtual: int = 32  # rows that share statistics in batch norms
    side: int = 224  # of a picture that is cut out of a file

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.stages) != 4 or min(self.stages) < 1:
            raise ValueError(f"blocks={self.blocks}: must be four numbers, such as 3-4-6-3")
        if self.micro_batch > self.virtual and self.micro_batch % self.virtual:
            raise ValueError(
                f"micro_batch={self.micro_batch}: must be a multiple of the virtual batch of {self.virtual}"
            )

    @property
    def stages(self) -> list[int]:
        return [int(count) if count.isdecimal() else 0 for count in self.blocks.split("-")]


Look = tuple[float, int, int]  # sum of losses, right answers, rows

_SEARCHED: Ranges = {
    "lr": Range(1e-4, 1e-2),
    "weight_decay": Range(1e-3, 0.1),
    "beta1": Range(1e-4, 0.1, one_minus=True),
    "beta2": Range(1e-4, 0.1, one_minus=True),
}
_ALL: Ranges = {
    **_SEARCHED,
    "label_smoothing": Range(0.0, 0.2, log=False),
    "dropout": Range(0.0, 0.2, log=False),
    "clip": Choice(1.0, 10.0, 100.0, 1000.0),
}
_GRAFTS: Ranges = {"graft": Choice("adagrad", "rmsprop", "adagrad_normalized", "rmsprop_normalized")}
_OWN: Mapping[str, Ranges] = {
    "adamw": {"warmup": Range(0.02, 0.1, log=False)},
    "shampoo": _GRAFTS,
    "s-shampoo": _GRAFTS,
}
_EPOCH = 1_281_167 // 1024
_PAPER = ResNetScale(
    batch=1024,
    micro_batch=128,
    steps=90 * _EPOCH,
    tuning_steps=66 * _EPOCH,
    look_every=_EPOCH,
    lr=1e-3,
    weight_decay=0.01,
    label_smoothing=0.1,
    block_size=1024,
    rank=256,
)
_QUARTER = _PAPER.changed(
    {"batch": 64, "micro_batch": 64, "steps": 1400, "tuning_steps": 1050, "look_every": 140}
    | {"width": 16, "stem": "3x3", "side": 32, "block_size": 256, "rank": 64, "clip": 10.0}
    | {"graft": "rmsprop_normalized"}
)
_TINY = _QUARTER.changed(
    {"batch": 16, "micro_batch": 8, "steps": 20, "tuning_steps": 10, "look_every": 5, "start_step": 5}
    | {"width": 4, "blocks": "1-1-1-1", "virtual": 8, "side": 16, "block_size": 32, "rank": 8}
)


class ResNet50(Workload[ResNetScale]):
    """Cross-entropy with label smoothing; the share of right answers."""

    name: ClassVar[str] = "resnet50"
    metric: ClassVar[Metric] = Metric("accuracy", higher_is_better=True, error=True)
    loss_name: ClassVar[str] = "cross-entropy of a picture"
    presets: ClassVar[Mapping[str, Preset]] = {
        "paper": Preset(_PAPER, Tuning(_ALL, trials=256, own=_OWN), "imagenet"),
        "quarter": Preset(
            _QUARTER,
            Tuning(_SEARCHED, trials=12),
            "cifar10",
            "CIFAR-10 (45,000 pictures of 32 x 32 to train, random shifts and flips) instead of ImageNet and "
            "ImageNet v2; width 16, blocks of 256 and rank 64, a quarter of the paper's; a stem of 3 x 3 "
            "without a pool; batches of 64 instead of 1024; 1,050 steps to tune and 1,400 to report instead "
            "of 82,566 and 112,590; label smoothing 0.1, dropout 0, clipping at 10 and the graft "
            "RMSProp-normalized are fixed instead of searched",
        ),
        "tiny": Preset(
            _TINY, Tuning(_SEARCHED, trials=2), "synthetic", "a test of the program, not a result"
        ),
    }
    sources: ClassVar[Mapping[str, Source]] = {
        "synthetic": Source(sets.RANDOM, lambda _, scale: sets.open_random(), "128 random pictures"),
        "cifar10": Source(
            {"classes": 10}, lambda directory, scale: sets.open_cifar10(directory), "60,000 small pictures"
        ),
        "imagenet": Source(
            {"classes": sets.CLASSES},
            lambda directory, scale: sets.open_imagenet(directory, side=scale.side),
            "1.3 million pictures, and ImageNet v2 for the test",
        ),
    }

    def network(self, scale: ResNetScale, sizes: Sizes) -> nn.Module:
        return ResNet(
            sizes["classes"],
            width=scale.width,
            blocks=scale.stages,
            stem=int(scale.stem[0]),
            dropout=scale.dropout,
            virtual=scale.virtual,
            batch=scale.batch,
        )

    def loss(self, network: nn.Module, batch: Batch, scale: ResNetScale) -> tuple[Tensor, Tensor]:
        logits, labels = network(batch).float(), batch["labels"]
        losses = cross_entropy(logits, labels, label_smoothing=scale.label_smoothing, reduction="sum")
        return losses, labels.new_tensor(len(labels))

    def look(self, network: nn.Module, batch: Batch, scale: ResNetScale) -> Look:
        logits, labels = network(batch).double(), batch["labels"]
        right = int((logits.argmax(1) == labels).sum())
        return float(cross_entropy(logits, labels, reduction="sum")), right, len(labels)

    def score(self, looks: Sequence[Look], scale: ResNetScale) -> Score:
        loss, right, rows = (sum(column) for column in zip(*looks, strict=True))
        return Score(loss / rows, right / rows)

"""The contract of the paper's three workloads: a network, its data, its loss and its score.

The training loop knows workloads by this page only. A row is an index into a split. Batches, augmentation and
dropout follow from (seed, epoch, row) or (seed, step): a resumed run needs its number of steps only.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from sketchy.experiments.workloads.scale import Preset, Scale

S = TypeVar("S", bound=Scale)
Batch = dict[str, Tensor]  # made on the CPU; the loop moves it to the device
Draw = Callable[[int], torch.Generator]  # of a row: a new generator that (seed, epoch, row) determine
Sizes = Mapping[str, int]  # of the data: what the network must know, such as the number of classes


class Split(Protocol):
    """Rows of a data set: a map-style data set that makes whole batches."""

    def __len__(self) -> int: ...

    def batch(self, rows: Sequence[int], draw: Draw | None) -> Batch:
        """The batch of these rows, padded or joined; augmented if there is ``draw``, and by it alone.

        It may run in a worker process. A file that can't be read raises ValueError with its path.
        """
        ...

    @property
    def lengths(self) -> Tensor | None:
        """The length of each row, if batches should have rows of similar lengths; else None."""
        ...


@dataclass(frozen=True)
class Data:
    """An open data set. Settings are chosen on ``validation``; ``test`` is for reports only."""

    train: Split
    validation: Split
    test: Split
    note: str = ""  # how rows were split or left out, in a few words


@dataclass(frozen=True)
class Source:
    """A data set by name."""

    sizes: Sizes  # known before the data is there
    open: Callable[[Path, Any], Data]  # from data directory and scale; ValueError says what is missing
    about: str  # in a few words: where it comes from


@dataclass(frozen=True)
class Metric:
    """What the paper reports of a workload."""

    name: str  # "average precision"
    higher_is_better: bool
    error: bool = False  # whether tables show 1 - metric
    short: str = ""  # of the name, for tables

    @property
    def worst(self) -> float:
        return 0.0 if self.higher_is_better else 1.0

    def better(self, one: float, other: float) -> bool:
        return one > other if self.higher_is_better else one < other


@dataclass(frozen=True)
class Score:
    """A look at all rows of a split."""

    loss: float  # the mean over what the loss counts
    metric: float


class Workload(ABC, Generic[S]):
    """One of the paper's workloads."""

    name: ClassVar[str]
    metric: ClassVar[Metric]
    loss_name: ClassVar[str]  # the unit of the loss, as printed
    presets: ClassVar[Mapping[str, Preset]]  # paper, quarter and tiny
    sources: ClassVar[Mapping[str, Source]]  # one of them is "synthetic": random rows that need no file

    @abstractmethod
    def network(self, scale: S, sizes: Sizes) -> nn.Module:
        """A new network, with random numbers of torch's generator, which the caller seeds.

        Its forward pass takes a `Batch`. Dropout uses torch's generator, too. Buffers of floating point
        (running statistics) are averaged over ranks before a look or a checkpoint.
        """

    @abstractmethod
    def loss(self, network: nn.Module, batch: Batch, scale: S) -> tuple[Tensor, Tensor]:
        """The sum of the losses and what it counts (labels, pieces, rows): both add up over micro-batches.

        ``network`` may be wrapped (DDP, autocast): call it once. The sum is float32.
        """

    @abstractmethod
    def look(self, network: nn.Module, batch: Batch, scale: S) -> Any:
        """What `score` needs of a batch: small, picklable, on the CPU. Without gradients, in eval mode."""

    @abstractmethod
    def score(self, looks: Sequence[Any], scale: S) -> Score:
        """Loss and metric over a whole split, from the looks at its batches in order."""

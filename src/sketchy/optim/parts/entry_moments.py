"""Adam's path: a second moment for each entry, for vectors, embeddings and output heads."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from sketchy.core.moments import correction, divide_by_root, observe_root_
from sketchy.core.sketch import Sketch
from sketchy.core.tasks import Task
from sketchy.optim.parts.contracts import WeightSpec
from sketchy.optim.parts.sketches import Sketches
from sketchy.optim.slots import Codec, Meaning, Slots
from sketchy.optim.stack import Gradient, Stack


@dataclass(frozen=True)
class EntryMoments:
    least_axes: ClassVar[int] = 0
    waits: ClassVar[bool] = False

    slots: Slots

    @classmethod
    def of(cls, weight: WeightSpec, statistics: Sketches) -> "EntryMoments":
        return cls({"root_moment": weight.slot(Meaning.MOMENT, Codec(weight.wide))})

    def update(
        self, stack: Stack, G: Gradient, old: Sequence[Sketch | None], new: Sequence[Sketch | None]
    ) -> Task[None]:
        yield from ()
        root = stack.stacked("root_moment")
        observe_root_(root, G.whole, stack.group["betas"][1], stack.good)
        stack.put_back("root_moment", root)

    def apply_(self, stack: Stack, x: Tensor, scale: Tensor, learned: None) -> tuple[Tensor, Tensor]:
        root = stack.stacked("root_moment").reshape(x.shape)
        filled = correction(stack.group["betas"][1], stack.count)
        divide_by_root(x, root, filled, stack.group["eps"], out=x)
        return x, scale

"""Adam's path: a second moment for each entry, for vectors, embeddings and output heads."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from sketchy.core.moments import divide_by_root, longest, observe_root_
from sketchy.core.sketch import Sketch
from sketchy.core.tasks import Task
from sketchy.optim.parts.contracts import Preconditioner, WeightSpec
from sketchy.optim.parts.few_bits import FEWEST, Roots
from sketchy.optim.parts.sketches import Sketches
from sketchy.optim.slots import Codec, Meaning, Slots
from sketchy.optim.stack import Gradient, Stack


@dataclass(frozen=True)
class EntryMoments:
    least_axes: ClassVar[int] = 0
    waits: ClassVar[bool] = False
    adams_length: ClassVar[bool] = False  # its entries are limited one by one

    slots: Slots
    codes: Roots | None = None  # how the roots are stored, if in few bits

    @classmethod
    def of(cls, weight: WeightSpec, statistics: Sketches) -> "EntryMoments":
        if weight.options["adam_dtype"] != "int8" or math.prod(weight.layout.shape) < FEWEST:
            wide = weight.wide if weight.options["adam_dtype"] == "int8" else weight.dtype("adam_dtype")
            return cls({"root_moment": weight.slot(Meaning.MOMENT, Codec(wide, weight.work))})
        codes = Roots("root_moment", weight)
        return cls(codes.slots, codes)

    def update(
        self, stack: Stack, G: Gradient, old: Sequence[Sketch | None], new: Sequence[Sketch | None]
    ) -> Task[None]:
        root = self.read(stack)
        observe_root_(root, G.whole, stack.group["betas"][1], stack.good)
        yield from self.write(stack, root)

    def apply_(self, stack: Stack, x: Tensor, scale: Tensor, learned: None) -> Task[tuple[Tensor, Tensor]]:
        root = self.read(stack).reshape(x.shape)
        filled = yield from stack.filled(stack.group["betas"][1])
        group = stack.group
        limit = longest(*group["betas"], moving_average=group["moving_average_momentum"])
        limits = None if limit is None else limit / scale
        eps, spreads = group["eps"], stack.spreads
        yield from divide_by_root(x, root, filled, eps, out=x, limit=limits, spreads=spreads)
        return x, scale

    def carry(
        self,
        before: Preconditioner,
        source: Stack,
        target: Stack,
        old: Sequence[Sketch | None],
        new: Sequence[Sketch | None],
    ) -> Task[None]:
        """Store the roots as this plan does."""
        assert isinstance(before, EntryMoments)
        yield from self.write(target, self.read(target).copy_(before.read(source)))

    def read(self, stack: Stack) -> Tensor:
        """The roots of the second moments (K, *shape). After they were changed in place, `write` them."""
        return stack.stacked("root_moment") if self.codes is None else self.codes.read(stack)

    def write(self, stack: Stack, root: Tensor) -> Task[None]:
        if self.codes is None:
            yield from stack.put_back("root_moment", root)
        else:
            yield from self.codes.write(stack, root)

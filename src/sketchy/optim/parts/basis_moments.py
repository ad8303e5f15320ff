"""SketchySOAP's preconditioner: Adam's second moment in the basis of the sketches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from sketchy.core import corrected
from sketchy.core.moments import weights
from sketchy.core.sketch import Sketch
from sketchy.core.tasks import Task, launch
from sketchy.optim.parts.contracts import Preconditioner, WeightSpec
from sketchy.optim.parts.sketches import Sketches
from sketchy.optim.slots import FLOAT64, Meaning, Slots, State
from sketchy.optim.stack import Gradient, Stack

Learned = tuple[Tensor, Tensor, Tensor]  # the bases of rows and columns, and the second moments


@dataclass(frozen=True)
class BasisMoments:
    least_axes: ClassVar[int] = 2  # there are two bases
    waits: ClassVar[bool] = True
    adams_length: ClassVar[bool] = True

    slots: Slots
    block: tuple[int, int]
    rounding: float  # of coordinates, relative to their root mean square, if bases have few digits

    @classmethod
    def of(cls, weight: WeightSpec, statistics: Sketches) -> "BasisMoments":
        m, n = weight.layout.block
        shape = tuple((axis.rank if axis else 0) + 1 for axis in statistics.axes)
        slot = weight.block_slot(Meaning.MOMENT, FLOAT64, shape, (None, None))
        # rounding errors of entries are evenly distributed, up to eps / 2 of an entry
        return cls({"second_moment": slot}, (m, n), statistics.codec.rounding / 12**0.5)

    def update(
        self, stack: Stack, G: Gradient, old: Sequence[Sketch | None], new: Sequence[Sketch | None]
    ) -> Task[Learned]:
        """Convert the second moments to the new bases, and add the gradient."""
        U, V = self._bases(new, G.blocks)
        moments, spreads = stack["second_moment"], stack.spreads
        if stack.due:
            before = self._bases(old, G.blocks)
            moments = yield from corrected.transport(moments, before, (U, V), spreads)
        kept, added = weights(stack.group["betas"][1])
        parts = yield from corrected.project(G.blocks, U, V, spreads)
        squares = yield from corrected.squares(parts, U, V, G.norm.square(), spreads)
        moments = yield from launch(_averaged, moments, squares, kept=kept, added=added)
        stack["second_moment"] = moments
        return U, V, moments

    def apply_(self, stack: Stack, x: Tensor, scale: Tensor, learned: Learned) -> Task[tuple[Tensor, Tensor]]:
        U, V, moments = learned
        group, rounding = stack.group, stack.plan.momentum.rounding + self.rounding
        parts = yield from corrected.project(x, U, V, stack.spreads)
        applied = corrected.apply_(x, U, V, parts, moments, group["eps"], rounding, stack.spreads)
        direction, own = yield from applied
        filled = yield from stack.filled(group["betas"][1])
        return direction, (yield from launch(_scaled, scale, own, filled))

    def carry(
        self,
        before: Preconditioner,
        source: Stack,
        target: Stack,
        old: Sequence[Sketch | None],
        new: Sequence[Sketch | None],
    ) -> Task[None]:
        known = next(sketch for sketch in old if sketch is not None).basis
        like = known.new_empty(()).expand(source.layout.count, *source.layout.block)
        was, now = self._bases(old, like), self._bases(new, like)
        moments = corrected.transport(source["second_moment"], was, now, source.spreads)
        target["second_moment"] = yield from moments

    def gradient_energy(self, state: State, options: Mapping[str, Any]) -> Tensor | None:
        if options["update_every"] > 1:  # these moments contain gradients that the sketches don't
            return None
        return corrected.mass(state["second_moment"], self.block) / weights(options["betas"][1])[1]

    def _bases(self, sketches: Sequence[Sketch | None], like: Tensor) -> tuple[Tensor, Tensor]:
        """The bases of both axes. If an axis is not sketched, its basis has no columns."""
        left, right = (
            like.new_zeros(len(like), size, 0) if sketch is None else sketch.basis
            for sketch, size in zip(sketches, like.shape[1:], strict=True)
        )
        return left, right


def _averaged(old: Tensor, new: Tensor, *, kept: float, added: float) -> Tensor:
    return torch.add(kept * old, new, alpha=added)


def _scaled(scale: Tensor, own: Tensor, filled: Tensor) -> Tensor:
    return scale * own * filled.sqrt()

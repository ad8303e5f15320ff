"""Shampoo's preconditioner: an inverse root of the covariance along each axis (Alg. 3, line 6)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor

from sketchy.core.preconditioner import InverseRoot, inverse_root_task, precondition_
from sketchy.core.sketch import Sketch
from sketchy.core.tasks import Task, gather
from sketchy.optim.parts.contracts import Preconditioner, WeightSpec
from sketchy.optim.parts.sketches import Sketches
from sketchy.optim.slots import Slots
from sketchy.optim.stack import Gradient, Stack

Roots = list[InverseRoot | None]


@dataclass(frozen=True)
class InverseRoots:
    least_axes: ClassVar[int] = 0
    waits: ClassVar[bool] = True
    adams_length: ClassVar[bool] = False

    exponent: float  # of the inverse root of each axis
    slots: Slots = field(default_factory=dict)  # none: everything is in the sketches

    @classmethod
    def of(cls, weight: WeightSpec, statistics: Sketches) -> "InverseRoots":
        return cls(weight.options["exponent"] or 1 / (2 * len(statistics.live)))

    def update(
        self, stack: Stack, G: Gradient, old: Sequence[Sketch | None], new: Sequence[Sketch | None]
    ) -> Task[Roots]:
        eps, rounding = stack.group["eps"], stack.plan.momentum.rounding
        axes = stack.plan.statistics.live
        tasks = []
        for axis in axes:
            sketch = new[axis.index]
            assert sketch is not None
            stale = not stack.due and not axis.exact  # full covariances distinguish weak and new directions
            tasks.append(inverse_root_task(sketch, self.exponent, eps, stale=stale, rounding=rounding))
        found = yield from gather(tasks)
        roots: Roots = [None] * len(new)
        for axis, root in zip(axes, found, strict=True):
            roots[axis.index] = root
        return roots

    def apply_(self, stack: Stack, x: Tensor, scale: Tensor, learned: Roots) -> Task[tuple[Tensor, Tensor]]:
        direction, own = yield from precondition_(x, learned)
        return direction, scale * own

    def carry(
        self,
        before: Preconditioner,
        source: Stack,
        target: Stack,
        old: Sequence[Sketch | None],
        new: Sequence[Sketch | None],
    ) -> Task[None]:
        """Nothing to do: everything is in the sketches."""
        yield from ()

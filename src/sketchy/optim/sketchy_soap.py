"""SketchySOAP: Adam's second moment in the sketched basis."""

from typing import Any, ClassVar

from torch import Tensor

from sketchy.core import corrected
from sketchy.core.moments import correction, weights
from sketchy.core.sketch import Sketch
from sketchy.optim.engine import Engine, Preconditioner, Seen, Values
from sketchy.optim.plan import Plan
from sketchy.optim.state import sketch_of


class SketchySOAP(Engine):
    """Adam in the basis of the sketches: SOAP's step with rank * (m + n) + rank² numbers beside the momentum.

    The sketches of `SketchyShampoo` give a basis for rows and one for columns. The gradient's second moment
    is kept entry by entry inside both bases, by rows and columns where one of them ends, and as one number
    outside (`sketchy.core.corrected`); momentum is divided by its roots, part by part. When the bases turn,
    the moments are carried over by squared cosines. At full rank this is SOAP with a fresh basis each step,
    ``graft_scale`` times as long.
    """

    kind: ClassVar[str] = "corrected"
    changed: ClassVar[dict[str, Any]] = {"graft": "own"}
    without: ClassVar[frozenset[str]] = frozenset({"exponent", "merge_dims", "precondition_1d"})

    def _learn(self, group: dict[str, Any], plan: Plan, values: Values, seen: Seen) -> Preconditioner:
        beta2 = group["betas"][1]
        before = [None if a is None else sketch_of(values, a, plan.work) for a in plan.axes]
        after = self._sketches(group, plan, values, seen)
        old, new = (
            [_basis(s, size, seen.G) for s, size in zip(side, seen.G.shape[1:], strict=True)]
            for side in (before, after)
        )
        moments = values["second_moment"]
        if seen.due:
            moments = corrected.transport(moments, (old[0], old[1]), (new[0], new[1]))
        U, V = new
        kept, added = weights(beta2)
        moments = kept * moments + added * corrected.squares(
            corrected.project(seen.G, U, V), seen.norm.square()
        )
        values["second_moment"] = moments
        lacking = correction(beta2, seen.step).sqrt()

        def precondition(x: Tensor) -> tuple[Tensor, Tensor]:
            return corrected.apply_(x, U, V, corrected.project(x, U, V), moments, group["eps"]), lacking

        return precondition


def _basis(sketch: Sketch | None, size: int, like: Tensor) -> Tensor:
    """The basis of an axis, without columns where the axis is not sketched."""
    return like.new_zeros(len(like), size, 0) if sketch is None else sketch.basis

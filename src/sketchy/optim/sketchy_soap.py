"""SketchySOAP: Adam's second moment in the sketched basis."""

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from torch import Tensor

from sketchy.core import corrected
from sketchy.core.graft import OWN
from sketchy.core.moments import correction, weights
from sketchy.core.sketch import Sketch
from sketchy.optim.engine import Engine
from sketchy.optim.turn import Preconditioner, Turn


class SketchySOAP(Engine):
    """Adam in the basis of the sketches: SOAP's step for rank * (m + n) + rank² + m numbers and momentum.

    The sketches of `SketchyShampoo` give a basis for rows and one for columns. The gradient's second moment
    is kept entry by entry inside both bases, by rows and columns where one of them ends, and as one number
    outside (`sketchy.core.corrected`); momentum is divided by its roots, part by part. When the bases turn,
    the moments are carried over by squared cosines. At full rank this is SOAP with a fresh basis each step,
    ``graft_scale`` times as long, and longer while gradients have few directions (``graft="own"``).
    """

    kind: ClassVar[str] = "corrected"
    changed: ClassVar[dict[str, Any]] = {"graft": OWN, "graft_scale": 2.25}
    without: ClassVar[frozenset[str]] = frozenset({"exponent", "merge_dims", "precondition_1d"})

    def _learn(self, turns: Sequence[Turn]) -> Iterable[Preconditioner]:
        # one after the other, and each only when its turn has come: the coordinates of a gradient are large
        return map(_learn, turns)


def _learn(turn: Turn) -> Preconditioner:
    """Carry the second moments over to the new bases and fold the gradient in."""
    beta2, eps = turn.group["betas"][1], turn.group["eps"]
    old, new = (
        [_basis(s, size, turn.blocks) for s, size in zip(side, turn.blocks.shape[1:], strict=True)]
        for side in (turn.old_sketches, turn.sketches)
    )
    moments = turn.values["second_moment"]
    if turn.stack.due:
        moments = corrected.transport(moments, (old[0], old[1]), (new[0], new[1]))
    U, V = new
    kept, added = weights(beta2)
    moments = kept * moments + added * corrected.squares(
        corrected.project(turn.blocks, U, V), turn.norm.square()
    )
    turn.values["second_moment"] = moments
    lacking = correction(beta2, turn.step).sqrt()

    def precondition(x: Tensor) -> tuple[Tensor, Tensor]:
        parts = corrected.project(x, U, V)
        return corrected.apply_(x, U, V, parts, moments, eps, turn.plan.rounding), lacking

    return precondition


def _basis(sketch: Sketch | None, size: int, like: Tensor) -> Tensor:
    """The basis of an axis, without columns where the axis is not sketched."""
    return like.new_zeros(len(like), size, 0) if sketch is None else sketch.basis

"""SketchySOAP: Adam's second moment in the sketched basis."""

from typing import Any, ClassVar

from sketchy.optim.engine import Engine
from sketchy.optim.parts.basis_moments import BasisMoments
from sketchy.optim.plan import Design


class SketchySOAP(Engine):
    """Adam in the basis of the sketches: SOAP's step for rank * (m + n) + rank² + m numbers and momentum.

    The sketches of `SketchyShampoo` give a basis for rows and one for columns. The gradient's second moment
    is kept entry by entry inside both bases, by rows and columns where one of them ends, and as one number
    outside (`sketchy.core.corrected`). Momentum is divided by the roots of these moments, part by part. When
    the bases turn, the moments are carried over by squared cosines. At full rank this is SOAP with a fresh
    basis at each step, ``graft_scale`` times as long, and longer while gradients have few directions
    (``graft="own"``).
    """

    design: ClassVar[Design] = Design(BasisMoments)
    changed: ClassVar[dict[str, Any]] = {"graft": "own", "graft_scale": 2.25}
    without: ClassVar[frozenset[str]] = frozenset({"exponent", "merge_dims", "precondition_1d"})

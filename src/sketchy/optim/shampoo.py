"""Shampoo: the dense baseline, on the code path of the sketched optimizers."""

from typing import ClassVar

from sketchy.optim.engine import Engine
from sketchy.optim.parts.inverse_roots import InverseRoots
from sketchy.optim.plan import Design


class Shampoo(Engine):
    """Shampoo with whole factors, m² + n² numbers for an m x n weight: what sketches are measured against.

    Blocks, one side, any exponent, grafts and everything else are those of `SketchyShampoo`, which it equals
    at full rank.
    """

    design: ClassVar[Design] = Design(InverseRoots)
    without: ClassVar[frozenset[str]] = frozenset({"rank", "solver"})  # nothing is cut

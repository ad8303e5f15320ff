"""Shampoo: the dense baseline, with the same code as the sketched optimizers."""

from typing import ClassVar

from sketchy.optim.engine import Engine
from sketchy.optim.options import BUDGET
from sketchy.optim.parts.inverse_roots import InverseRoots
from sketchy.optim.plan import Design


class Shampoo(Engine):
    """Shampoo with full covariances: m² + n² numbers for an m x n weight. It is the baseline for sketches.

    It has the options of `SketchyShampoo` (blocks, one side, any exponent, grafts, ...) except ``rank`` and
    ``solver``, with the paper's exponent and β₂ as defaults. With equal options `SketchyShampoo` equals it at
    full rank.
    """

    design: ClassVar[Design] = Design(InverseRoots)
    without: ClassVar[frozenset[str]] = frozenset({"rank", "solver", *BUDGET})  # there are no sketches

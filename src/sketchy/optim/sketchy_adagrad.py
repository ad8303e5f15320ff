"""SketchyAdagrad: S-AdaGrad (Alg. 2) on each parameter, flattened."""

from typing import Any, ClassVar

from sketchy.optim.engine import Engine
from sketchy.optim.options import BUDGET
from sketchy.optim.parts.inverse_roots import InverseRoots
from sketchy.optim.plan import Design


class SketchyAdagrad(Engine):
    """S-AdaGrad (Alg. 2, without projection): full-matrix AdaGrad with a sketch for the d x d matrix.

    Each parameter is flattened to a vector of d numbers. A step is x ← x - lr G̃^(-1/2) g. The state is
    rank * d numbers. Use it for linear models and heads, where d is small.
    """

    design: ClassVar[Design] = Design(InverseRoots, flat=True)
    without: ClassVar[frozenset[str]] = frozenset(
        {
            "merge_dims",
            "one_sided",
            "precondition_1d",
            "roots_every",
            "row_norm",
            "stacked",
            "whiten",
            "polar",
            *BUDGET,
        }
    )
    changed: ClassVar[dict[str, Any]] = {
        "rank": 64,
        "betas": (0.0, 1.0),
        "graft": None,
        "solver": "exact",
        "weight_decay": 0.0,
        "lr": 0.1,
    }

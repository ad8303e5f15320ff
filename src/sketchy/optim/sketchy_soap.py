"""SketchySOAP: Adam's second moment in the sketched basis."""

from typing import Any, ClassVar

from sketchy.optim.engine import Engine
from sketchy.optim.parts.basis_moments import BasisMoments
from sketchy.optim.plan import Design

# State in few bits: `SketchySOAP(params, lr, **SMALL)`. Bases stay in float32: in bfloat16 they would save
# another sixth, but cost some quality.
SMALL: dict[str, Any] = {"momentum_dtype": "int4", "adam_dtype": "int8"}


class SketchySOAP(Engine):
    """Adam in the basis of the sketches: SOAP's step with momentum and rank * (m + n) + rank² + 2 m numbers.

    The sketches of `SketchyShampoo` give a basis for rows and one for columns. The second moment of the
    gradient is kept in these bases (`sketchy.core.corrected`): one for each entry inside both bases, one for
    each row or column inside one of them, and a single one outside. Each part of the momentum is divided by
    the root of its second moment. When the bases change, the moments are converted with squared cosines. A
    sketch sees the gradient whitened by the other one (``whiten``), and rows of a direction get similar
    lengths (``row_norm``). At full rank and without these two, this is SOAP with a new basis at each step,
    multiplied by ``graft_scale``. Steps are made longer while gradients have few directions
    (``graft="own"``).

    >>> import torch, sketchy
    >>> net = torch.nn.Linear(8, 4)
    >>> groups = sketchy.param_groups(net, weight_decay=0.1)
    >>> optimizer = sketchy.SketchySOAP(groups, lr=3e-4, rank=3, **sketchy.optim.SMALL)
    >>> net(torch.ones(2, 8)).square().sum().backward()
    >>> optimizer.step()
    >>> print(*[row.path for row in optimizer.report()])
    sketch adam
    """

    design: ClassVar[Design] = Design(BasisMoments)
    changed: ClassVar[dict[str, Any]] = {
        "betas": (0.9, 0.95),
        "graft": "own",
        "graft_scale": 2.25,
        "whiten": True,
        "row_norm": 0.95,
    }
    without: ClassVar[frozenset[str]] = frozenset(
        {"exponent", "merge_dims", "precondition_1d", "roots_every"}
    )

"""SketchyShampoo: S-Shampoo (Alg. 3 and Sec. 4.3) as a torch optimizer."""

from typing import Any, ClassVar

from sketchy.optim.engine import Engine
from sketchy.optim.parts.inverse_roots import InverseRoots
from sketchy.optim.plan import Design

# The paper's deep-learning settings (Sec. 5, App. C): `SketchyShampoo(params, lr, **PAPER)`.
PAPER: dict[str, Any] = {
    "betas": (0.9, 0.999),
    "exponent": None,
    "block_size": 1024,
    "rank": 256,
    "start_step": 101,
    "update_every": 10,
    "graft": "rmsprop_normalized",
    "graft_scale": 1.0,
    "moving_average_momentum": True,
    "nesterov": False,
}


class SketchyShampoo(Engine):
    """Shampoo with a Frequent Directions sketch for each axis of a weight (Alg. 3, Sec. 4.3).

    For an m x n weight with gradient G, a step sketches L ← β₂ L + G Gᵀ and R ← β₂ R + Gᵀ G at ``rank``, and
    adds the escaped mass to the sketches. The direction is L̃^(-1/2) M R̃^(-1/2), where M is the momentum. Its
    length is set by the graft rule. The state is the momentum and rank * (m + n) numbers.

    The paper's exponent is 1/4. With ``exponent=None, betas=(0, 1), graft=None, eps=0, weight_decay=0,
    solver="exact"`` a step is that of Alg. 3. `PAPER` has the settings of the paper's deep-learning runs.
    `sketchy.optim.OPTIONS` explains the options.

    >>> import torch, sketchy
    >>> net = torch.nn.Linear(8, 4)
    >>> optimizer = sketchy.SketchyShampoo(net.named_parameters(), lr=1e-3, rank=3)
    >>> net(torch.ones(2, 8)).square().sum().backward()
    >>> optimizer.step()
    >>> print(*[row.path for row in optimizer.report()])
    sketch adam
    """

    design: ClassVar[Design] = Design(InverseRoots)
    without: ClassVar[frozenset[str]] = frozenset({"roots_every"})
    changed: ClassVar[dict[str, Any]] = {"betas": (0.9, 0.95), "exponent": 0.5}

"""The last part of a step: update the weights in place, in their own dtype."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sketchy.core.extremes import as_weights
from sketchy.core.moments import like
from sketchy.core.tasks import Task, launch, read
from sketchy.core.tuned.descent import descend_in_one_pass_


def descend_(
    params: Sequence[Tensor], direction: Tensor, scale: Tensor, good: Tensor | None, group: Mapping[str, Any]
) -> Task[None]:
    """p ← (1 - lr weight_decay) p - lr scale direction. A weight with a bad gradient does not change.

    ``direction``: (K, *shape). ``scale``: (K,), zero for a bad gradient. ``good``: (K,), which gradients are
    good; None if all are.
    """
    lr, decay = group["lr"], group["weight_decay"]
    if good is None and len(params) == 1 and _in_one_pass_(params[0], direction[0], scale, lr, decay):
        return None
    if any(p.dtype != direction.dtype for p in params):
        steps = direction.mul_(like(scale, direction))
        return _short_(params, list(steps.unbind()), lr, decay, good)
    rates = {"lr": lr, "decay": decay, "dtype": direction.dtype}
    known = (scale,) if good is None else (scale, good)
    if isinstance(lr, Tensor) or isinstance(decay, Tensor):
        factors = _factors(*known, **rates)
    else:
        factors = yield from launch(_factors, *known, **rates)
    move, shrink = (x.reshape(-1, *[1] * (direction.dim() - 1)) for x in factors)
    decays = isinstance(decay, Tensor) or decay > 0
    if len(params) == 1:
        p = params[0]
        if decays:
            p.mul_(shrink[0])
        p.addcmul_(direction[0], move[0], value=-1)
        return None
    if decays:
        torch._foreach_mul_(list(params), list(shrink.unbind()))
    torch._foreach_sub_(list(params), list(direction.mul_(move).unbind()))
    return None


def _factors(
    scale: Tensor,
    good: Tensor | None = None,
    *,
    lr: float | Tensor,
    decay: float | Tensor,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """What directions and weights are multiplied by, (K,) each."""
    lost = torch.ones_like(scale) if good is None else good.double()
    return as_weights(scale * lr, dtype), (1 - lost * (lr * decay)).to(dtype)


def _in_one_pass_(p: Tensor, x: Tensor, scale: Tensor, lr: float | Tensor, decay: float | Tensor) -> bool:
    """Update one weight with the tuned kernel. Return False, and do nothing, if that is not possible."""
    numbers = read(scale, *(x for x in (lr, decay) if isinstance(x, Tensor)))
    if numbers is None:
        return False
    move = numbers[0][0] * float(lr)
    return descend_in_one_pass_(p, x, move, float(lr) * float(decay) / move if move else 0.0)


def _short_(
    params: Sequence[Tensor],
    steps: list[Tensor],
    lr: float | Tensor,
    decay: float | Tensor,
    good: Tensor | None,
) -> None:
    """p ← p - lr (step + weight_decay p), for p in a shorter dtype than the steps: rounded only once."""
    if isinstance(decay, Tensor) or decay > 0:
        kept = list(params)
        if good is not None:
            kept = [torch.where(counts, p, 0.0) for p, counts in zip(params, good, strict=True)]
        if isinstance(decay, Tensor):
            kept = [x.to(steps[0]) * decay.reshape(()).to(steps[0]) for x in kept]
        torch._foreach_add_(steps, kept, alpha=1.0 if isinstance(decay, Tensor) else decay)
    if isinstance(lr, Tensor):
        torch._foreach_mul_(steps, lr.reshape(()).to(steps[0]))
        torch._foreach_sub_(list(params), steps)
    else:
        torch._foreach_add_(list(params), steps, alpha=-lr)

"""The last part of a step: update the weights in place, in their own dtype."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sketchy.core.moments import like
from sketchy.core.tasks import read
from sketchy.core.tuned.descent import descend_in_one_pass_


def descend_(
    params: Sequence[Tensor], direction: Tensor, scale: Tensor, good: Tensor | None, group: Mapping[str, Any]
) -> None:
    """p ← (1 - lr weight_decay) p - lr scale direction. A weight with a bad gradient does not change.

    ``direction``: (K, *shape), zero for a bad gradient. ``scale``: (K,). ``good``: (K,), which gradients are
    good; None if all are.
    """
    lr, decay = group["lr"], group["weight_decay"]
    if good is None and len(params) == 1 and _in_one_pass_(params[0], direction[0], scale, lr, decay):
        return None
    if any(p.dtype != direction.dtype for p in params):
        steps = direction.mul_(like(scale, direction))
        return _short_(params, list(steps.unbind()), lr, decay, good)
    move = like(scale * lr, direction)
    if isinstance(decay, Tensor) or decay > 0:
        shrink = like(1 - lr * decay * (torch.ones_like(scale) if good is None else good.double()), direction)
    if len(params) == 1:
        p = params[0].unsqueeze(0)
        if decay > 0:
            p.mul_(shrink)
        p.addcmul_(direction, move, value=-1)
        return None
    if decay > 0:
        torch._foreach_mul_(list(params), list(shrink.unbind()))
    torch._foreach_sub_(list(params), list(direction.mul_(move).unbind()))
    return None


def _in_one_pass_(p: Tensor, x: Tensor, scale: Tensor, lr: float | Tensor, decay: float) -> bool:
    """Update one weight with the tuned kernel. Return False, and do nothing, if that is not possible."""
    numbers = read(scale) if not isinstance(lr, Tensor) else read(scale, lr)
    if numbers is None:
        return False
    ((factor, *_),) = numbers
    move = factor * float(lr)
    return descend_in_one_pass_(p, x, move, float(lr) * decay / move if move else 0.0)


def _short_(
    params: Sequence[Tensor], steps: list[Tensor], lr: float | Tensor, decay: float, good: Tensor | None
) -> None:
    """p ← p - lr (step + weight_decay p), for p in a shorter dtype than the steps: rounded only once."""
    if decay > 0 and good is None:
        torch._foreach_add_(steps, list(params), alpha=decay)
    elif decay > 0 and good is not None:
        for step, p, counts in zip(steps, params, good, strict=True):
            step.add_(torch.where(counts, p, 0.0), alpha=decay)
    if isinstance(lr, Tensor):
        torch._foreach_mul_(steps, lr.reshape(()).to(steps[0]))
        torch._foreach_sub_(list(params), steps)
    else:
        torch._foreach_add_(list(params), steps, alpha=-lr)

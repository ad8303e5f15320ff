"""Momentum: a moving average of gradients (Adam) or a sum (heavy ball), with or without Nesterov's step."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from sketchy.core.moments import correction, like
from sketchy.core.tasks import Task


def advance_(
    M: Sequence[Tensor] | Tensor,
    G: Tensor,
    beta1: float,
    step: Tensor,
    *,
    moving_average: bool,
    nesterov: bool,
    good: Tensor | None = None,
    keep: Callable[[Tensor], Task[None]] | None = None,
) -> Task[tuple[Tensor, Tensor]]:
    """M ← β₁ M + (1 - β₁) G (``moving_average``), or M ← β₁ M + G, in place. Return (x, scale).

    scale * x (K, ...) is the bias-corrected average, or the sum. With ``nesterov`` it is the value one step
    ahead. x is a new tensor. The K momenta are separate tensors. Where ``good`` (K,) is false, G must be
    zero, and no bit of the momentum changes. Momenta that are stored in another form are given as one tensor
    M (K, ...), which becomes x: before that, ``keep`` stores them.
    """
    x = torch.empty_like(G) if keep is None or not isinstance(M, Tensor) else M
    momenta, ahead = list(M), beta1 if nesterov else 1.0
    if moving_average:
        filled = correction(beta1, step)
        factor, fresh = ahead / filled, (1 - beta1) * filled / ahead
    else:
        factor = torch.full_like(step, ahead, dtype=torch.float64)
        fresh = 1 / factor
    share = like(fresh if nesterov else torch.zeros_like(fresh), G)
    lost = (1 - beta1) * (torch.ones_like(fresh) if good is None else good.double())
    weight = like(lost if moving_average else 1 - lost, G)
    if moving_average:
        torch._foreach_lerp_(momenta, list(G.unbind()), list(weight.unbind()))
    else:
        torch._foreach_mul_(momenta, list(weight.unbind()))
        torch._foreach_add_(momenta, list(G.unbind()))
    if keep is not None:
        yield from keep(x)
        seen = x
    else:
        seen = momenta[0].unsqueeze(0) if len(momenta) == 1 else torch.stack(momenta, out=x)
    return torch.addcmul(seen, G, share, out=x), factor

"""Momentum: a moving average of gradients (Adam) or a sum (heavy ball), with or without Nesterov's step."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from sketchy.core.moments import correction
from sketchy.core.tasks import Request, Task


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
    options = {"beta1": beta1, "moving_average": moving_average, "nesterov": nesterov, "dtype": G.dtype}
    marked = (step,) if good is None else (step, good)
    rates: tuple[Tensor, Tensor, Tensor] = yield Request(_rates, marked, options=options)
    factor, momenta = rates[0], list(M)
    share, weight = (rate.reshape(-1, *[1] * (G.dim() - 1)) for rate in rates[1:])
    x = torch.empty_like(G) if keep is None or not isinstance(M, Tensor) else M
    if moving_average and len(momenta) == 1:
        momenta[0].lerp_(G[0], weight[0])
    elif moving_average:
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


def _rates(
    step: Tensor,
    good: Tensor | None = None,
    *,
    beta1: float,
    moving_average: bool,
    nesterov: bool,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """For each weight (K,): the factor of x, the share of G in x, and the weight of G (in a sum, of M)."""
    # of a smaller share nothing is left after rounding, and G over it would overflow
    ahead = max(beta1, torch.finfo(dtype).eps) if nesterov else 1.0
    lost = torch.full_like(step, 1 - beta1, dtype=torch.float64)
    lost = lost if good is None else lost * good
    if moving_average:
        filled = correction(step, beta1)
        factor, fresh = ahead / filled, (1 - beta1) * filled / ahead
    else:
        factor = torch.full_like(lost, ahead)
        fresh, lost = 1 / factor, 1 - lost
    return factor, (fresh if nesterov else torch.zeros_like(fresh)).to(dtype), lost.to(dtype)

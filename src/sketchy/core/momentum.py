"""Momentum of the gradient: a moving average (Adam's) or a sum (heavy ball), and Nesterov's look ahead."""

import torch
from torch import Tensor

from sketchy.core.moments import correction, like
from sketchy.core.panels import panels


def advance_(
    M: Tensor, G: Tensor, beta1: float, step: Tensor, *, moving_average: bool, nesterov: bool
) -> tuple[Tensor, Tensor]:
    """M ← β₁ M + (1 - β₁) G, or β₁ M + G, in place; returns what momentum (K, ...) says the gradient is.

    That is the bias-corrected average, or the sum; with Nesterov, one step ahead. It is a new tensor, and the
    factor (K,) that it lacks.
    """
    x, ahead = torch.empty_like(G), beta1 if nesterov else 1.0
    if moving_average:
        filled = correction(beta1, step)
        factor, fresh = ahead / filled, (1 - beta1) * filled / ahead
    else:
        factor = torch.full_like(step, ahead, dtype=torch.float64)
        fresh = 1 / factor
    share = like(fresh, G)
    for stack, piece in panels(G):
        m, g = M[piece], G[piece]
        new = m.to(G.dtype)  # m itself where the dtypes agree
        new = new.lerp_(g, 1 - beta1) if moving_average else new.mul_(beta1).add_(g)
        if new is not m:
            m.copy_(new)
        if nesterov:
            torch.addcmul(new, g, share[stack], out=x[piece])
        else:
            x[piece] = new
    return x, factor

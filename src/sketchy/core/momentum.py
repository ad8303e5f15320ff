"""Momentum of the gradient: a moving average (Adam's) or a sum (heavy ball), and Nesterov's look ahead."""

from torch import Tensor

from sketchy.core.moments import correction, like


def advance_(M: Tensor, G: Tensor, beta1: float, *, moving_average: bool) -> Tensor:
    """M ← β₁ M + (1 - β₁) G, or β₁ M + G, in place; returned in the dtype of G."""
    new = M.to(G.dtype)  # M itself where the dtypes agree
    new = new.lerp_(G, 1 - beta1) if moving_average else new.mul_(beta1).add_(G)
    if new is not M:
        M.copy_(new)
    return new


def look(M: Tensor, G: Tensor, beta1: float, step: Tensor, *, moving_average: bool, nesterov: bool) -> Tensor:
    """What momentum says the gradient is: the bias-corrected average, one step ahead with Nesterov."""
    if moving_average:
        ahead = M / like(correction(beta1, step), M)
        return ahead.lerp(G, 1 - beta1) if nesterov else ahead
    return G + beta1 * M if nesterov else M

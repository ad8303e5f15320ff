"""Momentum: a moving average of gradients (Adam) or a sum (heavy ball), with or without Nesterov's step."""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from sketchy.core.moments import correction, like


class Codec(Protocol):
    """How momenta are stored, if not as they are."""

    def encode(self, value: Tensor) -> Tensor: ...

    def decode(self, stored: Tensor) -> Tensor: ...


def advance_(
    M: Sequence[Tensor] | Tensor,
    G: Tensor,
    beta1: float,
    step: Tensor,
    *,
    moving_average: bool,
    nesterov: bool,
    good: Tensor | None = None,
    codec: Codec | None = None,
) -> tuple[Tensor, Tensor]:
    """M ← β₁ M + (1 - β₁) G (``moving_average``), or M ← β₁ M + G, in place. Return (x, scale).

    scale * x (K, ...) is the bias-corrected average, or the sum. With ``nesterov`` it is the value one step
    ahead. x is a new tensor. The K momenta are separate tensors. Where ``good`` (K,) is false, G must be
    zero, and no bit of the momentum changes.
    """
    M, x, ahead = list(M), torch.empty_like(G), beta1 if nesterov else 1.0
    if moving_average:
        filled = correction(beta1, step)
        factor, fresh = ahead / filled, (1 - beta1) * filled / ahead
    else:
        factor = torch.full_like(step, ahead, dtype=torch.float64)
        fresh = 1 / factor
    share = like(fresh if nesterov else torch.zeros_like(fresh), G)
    lost = (1 - beta1) * (torch.ones_like(fresh) if good is None else good.double())
    weight = like(lost if moving_average else 1 - lost, G)
    new = M if codec is None else list(x.unbind())
    if codec is not None:
        for value, stored in zip(new, M, strict=True):
            value.copy_(codec.decode(stored))
    if moving_average:
        torch._foreach_lerp_(new, list(G.unbind()), list(weight.unbind()))
    else:
        torch._foreach_mul_(new, list(weight.unbind()))
        torch._foreach_add_(new, list(G.unbind()))
    seen = x
    if codec is not None:
        for value, stored in zip(new, M, strict=True):
            stored.copy_(codec.encode(value))
    else:
        seen = M[0].unsqueeze(0) if len(M) == 1 else torch.stack(M, out=x)
    return torch.addcmul(seen, G, share, out=x), factor

"""Running second moments of a gradient, entry by entry or factored over rows and columns.

With β₂ < 1 a moment is a moving average, v ← β₂ v + (1 - β₂) g², read with Adam's bias correction
v / (1 - β₂ᵗ); with β₂ = 1 it is AdaGrad's sum. Entry by entry its root is kept: hypot neither overflows
at 1e20 nor vanishes at 1e-30, where float32 squares do. The factored form keeps m + n float64 numbers.

Divisions are damped relative to the largest divisor, so that scaling every gradient changes no step.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from sketchy.core.extremes import as_weights, row_energy
from sketchy.core.tuned.panels import panels


def weights(beta2: float) -> tuple[float, float]:
    """What the past and what the new square count in a second moment."""
    return (beta2, 1 - beta2) if beta2 < 1 else (1.0, 1.0)


def correction(beta: float, step: Tensor) -> Tensor:
    """1 - βᵗ, float64: how much of a moving average has been filled; 1 for a sum."""
    return 1 - beta ** step.double() if beta < 1 else torch.ones_like(step, dtype=torch.float64)


def like(values: Tensor, x: Tensor) -> Tensor:
    """Per-matrix values (S,) shaped to multiply x (S, ...), in its dtype."""
    return as_weights(values.reshape(-1, *[1] * (x.dim() - 1)), x)


def observe_root_(
    root: Tensor, g: Tensor, beta2: float, good: Tensor | None = None, over: Tensor | None = None
) -> Tensor:
    """Fold g², or (g / ``over``)², into the square of ``root`` (K, ...), in place, without squaring.

    Where ``good`` (K,) is false, g must be zero, and the root stays as it is to the bit.
    """
    old, new = (weight**0.5 for weight in weights(beta2))
    kept = like(torch.full((len(root),), old, dtype=torch.float64, device=root.device), root)
    if good is not None:
        kept = torch.where(like(good, root) > 0, kept, 1.0)
    for stack, piece in panels(root):
        fresh = _scaled(g[piece], new, over, stack)
        torch.hypot(root[piece].mul_(kept[stack]), fresh, out=root[piece])
    return root


def divide_by_root(
    x: Tensor, root: Tensor, filled: Tensor, eps: float, *, out: Tensor | None = None
) -> Tensor:
    """x / (root / √filled + eps max): Adam's step; zero where nothing was ever seen. ``out`` may be x."""
    step = torch.empty_like(x) if out is None else out
    for _, piece, divisor, factor in _divisors(root, filled, eps):
        torch.div(x[piece], divisor, out=step[piece]).mul_(factor)
    return step


def length_over_root(
    x: Tensor, root: Tensor, filled: Tensor, eps: float, over: Tensor | None = None
) -> Tensor:
    """The length (S,), float64, of `divide_by_root` for x (S, m, n), or x / ``over``, panel by panel."""
    rows = torch.empty(x.shape[:2], dtype=torch.float64, device=x.device)
    for stack, piece, divisor, factor in _divisors(root, filled, eps):
        rows[piece] = row_energy(_scaled(x[piece], factor, over, stack).div_(divisor))
    return rows.sum(-1).sqrt()


def _divisors(
    root: Tensor, filled: Tensor, eps: float
) -> Iterator[tuple[slice, tuple[slice, ...], Tensor, Tensor]]:
    """What `divide_by_root` divides by and then multiplies by, panel by panel."""
    largest = root.reshape(len(root), -1).amax(-1)
    damping, factor = like(eps * largest, root), like(filled.sqrt(), root)
    for stack, piece in panels(root):
        # a zero divisor has a zero numerator, or one that is as good as zero
        divisor = (root[piece] + damping[stack]).clamp_(min=torch.finfo(root.dtype).tiny)
        yield stack, piece, divisor, factor[stack]


def _scaled(x: Tensor, by: Tensor | float, over: Tensor | None, stack: slice) -> Tensor:
    """x by / over, in new memory."""
    return x * by if over is None else over_length(x, over[stack]).mul_(by)


def over_length(x: Tensor, length: Tensor) -> Tensor:
    """x / length for (S, ...) by (S,); zero stays zero. No inverse is taken: that of a tiny one overflows."""
    return x / like(torch.where(length > 0, length, 1.0), x)


def factored_inverse_roots(rows: Tensor, columns: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Roots a (S, m, 1) and b (S, 1, n) with a_i b_j = v_ij^(-1/2), v_ij = rows_i columns_j / Σ rows.

    The rank-one estimate of a matrix of second moments that has the right row and column sums.
    """
    total = rows.sum(-1, keepdim=True)
    share = columns / torch.where(total > 0, total, 1.0)
    a, b = (inverse_root(values, eps) for values in (rows, share))
    return a.unsqueeze(-1), b.unsqueeze(-2)


def inverse_root(values: Tensor, eps: float) -> Tensor:
    """1 / (√v + eps max √v), zero for zeros without a floor."""
    root = values.sqrt()
    damped = root + eps * root.amax(-1, keepdim=True)
    return damped.clamp(min=torch.finfo(damped.dtype).tiny).reciprocal() * (damped > 0)

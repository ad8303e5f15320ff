"""Running second moments of a gradient, entry by entry or factored over rows and columns.

With β₂ < 1 a moment is a moving average, v ← β₂ v + (1 - β₂) g², with Adam's bias correction v / (1 - β₂ᵗ).
With β₂ = 1 it is AdaGrad's sum. Moments of entries are stored as roots, because float32 squares overflow at
1e20 and underflow at 1e-30, and hypot does not. Moments of rows, or of rows and columns (*factored*), are
stored as float64 numbers. A step is x divided by the root of the moment. Functions that return a step's
length do not form the step.

Divisors are damped relative to the largest one, so multiplying all gradients by a constant changes no step.

Steps and moments may lie on several ranks: ``spreads`` are those of the axes of a block (`core.spread`).
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from sketchy.core.axes import as_matrix
from sketchy.core.extremes import as_weights, row_energy, row_norms
from sketchy.core.padded import padded
from sketchy.core.spread import WHOLE, Spread, Spreads, largest, norm, size, total
from sketchy.core.tasks import Task, launch
from sketchy.core.tuned.panels import panels

# The largest root mean square of a factored step. If one entry is much larger than the others of its row and
# column, factored moments are far too small for the others, and the step would be far too long. An entry of
# Adam's step is at most (1 - β₁) / √(1 - β₂), which is 3.2 by default.
_LONGEST = 4.0


def weights(beta2: float) -> tuple[float, float]:
    """The weights of the past and of the new square in a second moment."""
    return (beta2, 1 - beta2) if beta2 < 1 else (1.0, 1.0)


def correction(step: Tensor, beta: float) -> Tensor:
    """Adam's bias correction 1 - βᵗ, float64: the total weight in a moving average. It is 1 for a sum."""
    return 1 - beta ** step.double() if beta < 1 else torch.ones_like(step, dtype=torch.float64)


def longest(beta1: float, beta2: float, *, moving_average: bool = True) -> float | None:
    """A limit on the root mean square of a step; None if the moving averages limit it themselves.

    With moving averages m of g and v of g², m² <= v (1 - β₁)² / ((1 - β₂) (1 - β₁²/β₂)) by Cauchy-Schwarz, if
    β₁² < β₂. Otherwise v fades faster than m² when gradients vanish, and m / √v grows without limit. The
    limit is 4. (A first gradient after many zeros gives (1 - β₁) / √(1 - β₂), which is at most 1 then.) If
    momentum is a sum instead of a ``moving_average``, all steps are 1 / (1 - β₁) times as long.
    """
    if beta1**2 < beta2:
        return None
    return _LONGEST if moving_average else _LONGEST / (1 - beta1)


def like(values: Tensor, x: Tensor) -> Tensor:
    """Values (S,), one for each matrix, in the shape and dtype to multiply x (S, ...)."""
    return as_weights(values.reshape(-1, *[1] * (x.dim() - 1)), x.dtype)


def observe_root_(
    root: Tensor, g: Tensor, beta2: float, good: Tensor | None = None, over: Tensor | None = None
) -> Tensor:
    """Add g², or (g / ``over``)², to the moment root² (K, ...), in place. No square is formed (hypot).

    Where ``good`` (K,) is false, g must be zero, and no bit of the root changes.
    """
    old, new = (weight**0.5 for weight in weights(beta2))
    kept = None if good is None else like(1 - (1 - old) * good.double(), root)
    for stack, piece in panels(root):
        fresh = _scaled(g[piece], new, over, stack)
        torch.hypot(root[piece].mul_(old if kept is None else kept[stack]), fresh, out=root[piece])
    return root


def divide_by_root(
    x: Tensor,
    root: Tensor,
    filled: Tensor,
    eps: float,
    *,
    out: Tensor | None = None,
    limit: Tensor | None = None,
    spreads: Spreads = WHOLE,
) -> Task[Tensor]:
    """Adam's step: x / (root / √filled + eps max). It is zero if all gradients were zero. ``out`` may be x.

    ``filled``: (S,), see `correction`. ``limit``: (S,), of the absolute value of an entry, see `longest`.
    """
    step = torch.empty_like(x) if out is None else out
    most = None if limit is None else like(limit, x)
    damping = yield from _damping(root, eps, spreads)
    for stack, piece, divisor, factor in _divisors(root, *(yield from _short(filled, damping))):
        torch.div(x[piece], divisor, out=step[piece]).mul_(factor)
        if most is not None:
            step[piece].clamp_(-most[stack], most[stack])
    return step


def length_over_root(
    x: Tensor,
    root: Tensor,
    filled: Tensor,
    eps: float,
    over: Tensor | None = None,
    spreads: Spreads = WHOLE,
) -> Task[Tensor]:
    """The length (S,), float64, of `divide_by_root` for x (S, m, n), or x / ``over``, panel by panel."""
    rows = torch.empty(x.shape[:2], dtype=torch.float64, device=x.device)
    damping = yield from _damping(root, eps, spreads)
    for stack, piece, divisor, factor in _divisors(root, *(yield from _short(filled, damping))):
        rows[piece] = row_energy(_scaled(x[piece], factor, over, stack).div_(divisor))
    return (yield from norm(rows, *spreads))


def _damping(root: Tensor, eps: float, spreads: Spreads) -> Task[Tensor]:
    """eps times the largest root of each matrix (S,)."""
    entries = root.reshape(len(root), math.prod(root.shape[1:]))
    most = entries.amax(-1) if entries.shape[1] else root.new_zeros(len(root))  # nothing may lie here
    return eps * (yield from largest(most, *spreads))


def _short(filled: Tensor, damping: Tensor) -> Task[tuple[Tensor, Tensor]]:
    """The factor of `divide_by_root` and the damping (S,), in the dtype of the damping."""
    return (yield from launch(_rooted, filled, damping))


def _rooted(filled: Tensor, damping: Tensor) -> tuple[Tensor, Tensor]:
    return as_weights(filled.sqrt(), damping.dtype), damping


def _divisors(
    root: Tensor, factor: Tensor, damping: Tensor
) -> Iterator[tuple[slice, tuple[slice, ...], Tensor, Tensor]]:
    """The divisor and the factor of `divide_by_root`, panel by panel."""
    factor, damping = (x.reshape(-1, *[1] * (root.dim() - 1)) for x in (factor, damping))
    for stack, piece in panels(root):
        # where the divisor is zero, the numerator is zero too, or negligible
        divisor = (root[piece] + damping[stack]).clamp_(min=torch.finfo(root.dtype).tiny)
        yield stack, piece, divisor, factor[stack]


def _scaled(x: Tensor, by: Tensor | float, over: Tensor | None, stack: slice) -> Tensor:
    """x * by / over, in new memory."""
    return x * by if over is None else over_length(x, over[stack]).mul_(by)


def over_length(x: Tensor, length: Tensor) -> Tensor:
    """x / length for x (S, ...) and length (S,); zero stays zero. No inverse is formed: it could overflow."""
    return x / like(torch.where(length > 0, length, 1.0), x)


def factored_inverse_roots(
    rows: Tensor, columns: Tensor, eps: float, spreads: Spreads = WHOLE
) -> Task[tuple[Tensor, Tensor]]:
    """Roots a (S, m, 1) and b (S, 1, n) with a_i b_j = v_ij^(-1/2), v_ij = rows_i columns_j / Σ rows.

    v is the rank-one estimate of the matrix of second moments. It has the right row and column sums.
    """
    whole = yield from total(rows.sum(-1, keepdim=True), spreads[0])
    share = columns / torch.where(whole > 0, whole, 1.0)
    a = yield from damped_inverse_root(rows, eps, spreads[0])
    b = yield from damped_inverse_root(share, eps, *spreads[1:])
    return a.unsqueeze(-1), b.unsqueeze(-2)


def damped_inverse_root(values: Tensor, eps: float, *spreads: Spread | None) -> Task[Tensor]:
    """1 / (√v + eps max √v); zero where this divisor is zero."""
    root = values.sqrt()
    return _damped(root, (yield from _damping(root, eps, spreads)))


def row_roots(
    rows: Tensor, filled: Tensor, eps: float, entries: int, spread: Spread | None = None
) -> Task[Tensor]:
    """a (S, m): the inverse roots of the rows' mean second moments.

    ``rows``: (S, m), sums over each row. ``filled``: (S,), see `correction`. ``entries``: the number of
    entries of a whole block. ``spread``: of the rows.
    """
    share = size(rows.shape[-1], spread) / entries
    root, most = yield from padded(_row_roots, rows, numbers=(share,))
    most = yield from largest(most, spread)
    return (yield from padded(_damped_row_roots, root, most, filled, eps=eps))


def _row_roots(rows: Tensor, share: float | Tensor) -> tuple[Tensor, Tensor]:
    """The roots of the rows' mean second moments, and the largest (S,); zero if no row lies here."""
    root = (rows * (share.unsqueeze(-1) if isinstance(share, Tensor) else share)).sqrt()
    return root, root.amax(-1) if root.shape[1] else root.new_zeros(len(root))


def _damped_row_roots(root: Tensor, most: Tensor, filled: Tensor, *, eps: float) -> Tensor:
    return _damped(root, eps * most) * filled.sqrt().unsqueeze(-1)


def _damped(root: Tensor, damping: Tensor) -> Tensor:
    """1 / (root + damping) for damping (S,); zero where this divisor is zero."""
    damped = root + damping.unsqueeze(-1)
    return damped.reciprocal().masked_fill_(damped == 0, 0.0)


def step_by_rows(x: Tensor, a: Tensor) -> Tensor:
    """x (S, *block) with its rows multiplied by a (S, m)."""
    return (as_matrix(x) * as_weights(a.unsqueeze(-1), x.dtype)).reshape(x.shape)


def length_by_rows(x: Tensor, a: Tensor, spreads: Spreads = WHOLE) -> Task[Tensor]:
    """The length (S,) of `step_by_rows`, float64."""
    energy = yield from padded(_energy_by_rows, row_norms(as_matrix(x)), a)
    return (yield from total(energy, *spreads)).sqrt()


def _energy_by_rows(lengths: Tensor, a: Tensor) -> Tensor:
    return (lengths * a).square().sum(-1)


def factored_roots(
    rows: Tensor, columns: Tensor, filled: Tensor, eps: float, spreads: Spreads = WHOLE
) -> Task[tuple[Tensor, Tensor]]:
    """a (S, m, 1) and b (S, 1, n): a_i b_j is the inverse root of the factored second moment."""
    a, b = yield from factored_inverse_roots(rows, columns, eps, spreads)
    return a * filled.sqrt().reshape(-1, 1, 1), b


def factored_step(x: Tensor, a: Tensor, b: Tensor, spreads: Spreads = WHOLE) -> Task[Tensor]:
    """The step a x b. Its length is limited by `clipped`."""
    y = cut_(cut_(as_matrix(x) * as_weights(a, x.dtype)).mul_(as_weights(b, x.dtype)))
    length = yield from norm(row_energy(y), *spreads)
    wanted = clipped(length, entries(x, spreads))
    return (y * like(torch.where(length > 0, wanted / length, 0.0), y)).reshape(x.shape)


def factored_length(x: Tensor, a: Tensor, b: Tensor, spreads: Spreads = WHOLE) -> Task[Tensor]:
    """The length (S,) of a x b, float64, panel by panel."""
    X, weight = as_matrix(x), as_weights(b, x.dtype)
    rows = torch.empty_like(a.squeeze(-1))
    for stack, piece in panels(X):
        rows[piece] = row_energy(X[piece] * weight[stack])
    return (yield from norm((rows.sqrt() * a.squeeze(-1)).square(), *spreads))


def clipped(length: Tensor, count: int) -> Tensor:
    """The length (S,) of a step with ``count`` entries, limited: a root mean square of at most _LONGEST."""
    return length.clamp(max=_LONGEST * count**0.5)


def entries(x: Tensor, spreads: Spreads) -> int:
    """The number of entries in each whole block of x (S, *block)."""
    return math.prod(map(size, x.shape[1:], spreads))


def cut_(x: Tensor) -> Tensor:
    """Limit the entries of a step that will be shortened. (With Inf it would become NaN.)"""
    most = torch.finfo(x.dtype).max ** 0.5
    return x.clamp_(-most, most)


def shortened(
    scale: Tensor, direction: Tensor, limit: float | None, spreads: Spreads = WHOLE
) -> Task[Tensor]:
    """The scale (S,), lowered where the root mean square of scale * direction (S, *block) is above limit."""
    if limit is None:
        return scale
    most = torch.full_like(scale, limit * entries(direction, spreads) ** 0.5)
    return torch.minimum(scale, (yield from ratio(most, direction, spreads)))


def ratio(
    wanted: Tensor,
    direction: Tensor,
    spreads: Spreads = WHOLE,
    *,
    times: float = 1.0,
    least: Tensor | None = None,
    energy: Tensor | None = None,
) -> Task[Tensor]:
    """The factor (S,) that gives a direction (S, *block) the length ``wanted`` (S,). It is zero for zero.

    It is at least ``least``, and then multiplied by ``times``. ``energy``: ‖direction‖² (S,), if it is known.
    """
    if energy is None:
        energy = yield from total((yield from energy_of(direction)), *spreads)
    bounds = () if least is None else (least,)
    return (yield from launch(_ratio, wanted, energy, *bounds, times=times))


def energy_of(x: Tensor) -> Task[Tensor]:
    """‖x‖² (S,), float64, of what lies here of x (S, *block)."""
    return (yield from padded(_sum_of_squares, row_norms(as_matrix(x))))


def _sum_of_squares(lengths: Tensor) -> Tensor:
    return lengths.square().sum(-1)


def _ratio(wanted: Tensor, energy: Tensor, least: Tensor | None = None, *, times: float) -> Tensor:
    found = (wanted / energy.sqrt()).masked_fill_(energy == 0, 0.0)
    return times * (found if least is None else torch.maximum(found, least))

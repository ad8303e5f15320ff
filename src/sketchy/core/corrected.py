"""Adam's second moment in a sketched basis (ours, not in the paper): core, edges and rest.

With bases U (m x l) and V (n x r), a matrix X splits into four orthogonal parts: the core Uᵀ X V, the left
edge Uᵀ X (I - V Vᵀ), the right edge (I - U Uᵀ) X V, and the rest. The core has a second moment for each
entry, the left edge one for each row, the right edge one for each column, the rest a single one. Together
they are an (l + 1) x (r + 1) matrix whose last row and column stand for "outside the basis". At full rank
there is only the core, and the step is SOAP's.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from sketchy.core.extremes import divide, power_of_two
from sketchy.core.spread import WHOLE, Spread, Spreads, column_lengths, row_lengths, size, total
from sketchy.core.tasks import Request, Task, gather, launch

# Rounding turns a zero entry of Uᵀ X V into a small number: up to 67 eps times the largest entry, for X of
# low rank with sides up to 4096. At or below this threshold an entry counts as noise. Divided by its own root
# it would become as large as a true entry: with 4 here, three quarters of a first step's energy was noise.
# From once to twice this threshold an entry counts more and more: a jump would amplify rounding errors.
_NOISE = 64.0

# The mass of the rest is found by subtraction. Its rounding errors are below so many eps of the whole mass.
_LOST = 16.0
_MOST = 1000  # scales are at most 2^±_MOST, in the range of float64


@dataclass(frozen=True)
class Coordinates:
    """The coordinates of a stack X (S, m, n) in two bases."""

    left: Tensor  # Uᵀ X, (S, l, n)
    right: Tensor  # X V, (S, m, r)
    core: Tensor  # Uᵀ X V, (S, l, r)


def project(X: Tensor, U: Tensor, V: Tensor, spreads: Spreads = WHOLE) -> Task[Coordinates]:
    """The coordinates of X in both bases. O(m n (l + r)). ``spreads``: of the rows and the columns of X."""
    rows, columns = spreads
    left = yield from total(U.mT @ X, rows)
    right = yield from total(X @ V, columns)
    return Coordinates(left, right, (yield from total(left @ V, columns)))


def squares(
    parts: Coordinates, U: Tensor, V: Tensor, energy: Tensor, spreads: Spreads = WHOLE
) -> Task[Tensor]:
    """The mean square of each part's entries, (S, l + 1, r + 1), float64. O((m + n) l r).

    ``energy``: ‖X‖², (S,). The parts are orthogonal, so the mass of the rest follows by subtraction. The
    edges are formed: by subtraction their roots would have errors of √eps, and small roots would amplify
    them.
    """
    l, r = parts.core.shape[-2:]
    m, n = _shape(U, V, spreads)
    rows, columns = spreads
    left_edge = torch.baddbmm(parts.left, parts.core, V.mT, alpha=-1)
    left = yield from row_lengths(left_edge, columns)
    right = yield from column_lengths(_right_edge(parts, U), rows)
    sizes = tuple(float(max(size, 1)) for size in (n - r, m - l, (m - l) * (n - r)))
    return (yield Request(_mean_squares, (parts.core, left, right, energy), sizes))


def _mean_squares(
    core: Tensor, left: Tensor, right: Tensor, energy: Tensor, *sizes: float | Tensor
) -> Tensor:
    """The result of `squares` from the core, the lengths of the edges (S, l) and (S, r), and ‖X‖² (S,)."""
    eps = torch.finfo(core.dtype).eps
    core, left, right = core.double().square(), left.square(), right.square()
    rest = energy - core.sum((-2, -1)) - left.sum(-1) - right.sum(-1)
    rest = torch.maximum(rest, _LOST * eps * energy)
    by_row, by_column, by_all = (size.unsqueeze(-1) if isinstance(size, Tensor) else size for size in sizes)
    return _bordered(core, left / by_row, right / by_column, (rest.unsqueeze(-1) / by_all).squeeze(-1))


def mass(moments: Tensor, shape: tuple[int, int]) -> Tensor:
    """The sum (S,) over all entries of an m x n matrix of their second moments (S, l + 1, r + 1).

    For the `squares` of X it is ‖X‖². `transport` does not change it.
    """
    left, right = (
        torch.cat([moments.new_ones(k - 1), moments.new_full((1,), size - k + 1)])
        for k, size in zip(moments.shape[-2:], shape, strict=True)
    )
    return (left.unsqueeze(-1) * moments * right).sum((-2, -1))


def transport(
    moments: Tensor, old: tuple[Tensor, Tensor], new: tuple[Tensor, Tensor], spreads: Spreads = WHOLE
) -> Task[Tensor]:
    """Convert second moments from the ``old`` bases (U, V) to the ``new`` ones, of the same or other ranks.

    If entries are uncorrelated, the variance along a new direction is the average of the old variances,
    weighted by squared cosines. The part outside the old basis has the variance of the outside.
    """
    left, right = yield from gather(map(_squared_cosines, new, old, spreads))
    return (yield from launch(_transported, left, moments, right))


def _transported(left: Tensor, moments: Tensor, right: Tensor) -> Tensor:
    return left @ moments @ right.mT


def apply_(
    X: Tensor,
    U: Tensor,
    V: Tensor,
    parts: Coordinates,
    moments: Tensor,
    eps: float,
    rounding: float = 0.0,
    spreads: Spreads = WHOLE,
) -> Task[tuple[Tensor, Tensor]]:
    """Divide each part of X by the root of its second moment (S, l + 1, r + 1), and add the parts up.

    Returns (direction, scale (S,)); the result is scale * direction. Roots are damped: eps times the largest
    root is added. If the entries of X have a relative rounding error ``rounding``, the size of this noise is
    added too, because small roots would amplify it. Where a moment is only rounding noise, the result is
    zero. X is overwritten, unless both bases are square.
    """
    l, r = parts.core.shape[-2:]
    m, n = _shape(U, V, spreads)
    outside = m > l, n > r
    options = {"eps": eps, "rounding": rounding, "dtype": X.dtype, "outside": outside}
    mean = (mass(moments, (m, n)) / (m * n),) if rounding > 0 else ()
    core, left, right, rest, scale = yield Request(_weights, (moments, *mean), options=options)
    if m == l and n == r:
        return U @ (core * parts.core) @ V.mT, scale
    # core and left edge, minus what rest * X below already contains of them
    inner = torch.baddbmm(left * parts.left, core * parts.core, V.mT)
    outer = torch.cat([U, right * _right_edge(parts, U)], -1)
    return X.mul_(rest).baddbmm_(outer, torch.cat([inner, V.mT], -2)), scale


def _weights(
    moments: Tensor,
    mean: Tensor | None = None,
    *,
    eps: float,
    rounding: float,
    dtype: torch.dtype,
    outside: tuple[bool, bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """What the parts are multiplied by, see `apply_`. ``mean``: of all moments.

    For the core (S, l, r) it is the difference to the left edge; for the edges (S, l, 1) and (S, 1, r), the
    difference to the rest. Then the rest (S, 1, 1), and the factor of all (S,). ``outside``: whether there is
    something outside of the left and of the right basis.
    """
    root = moments.sqrt()
    largest = root.amax((-2, -1), keepdim=True)
    noise = _NOISE * torch.finfo(dtype).eps * largest
    live = root > noise
    raised = root + eps * largest
    if mean is not None:
        raised = raised + rounding * mean.sqrt().reshape(-1, 1, 1)
    trust = torch.where(live, (root - noise) / noise, 0.0).clamp(max=1)
    weight = trust / torch.where(live, raised, 1.0)
    # after a silence, roots may be 1e-37 beside a momentum of 10: float32 has no such direction
    top = weight.amax((-2, -1))
    scale = power_of_two(top, torch.zeros_like(top), beta2=0.0, most=_MOST)
    weight = divide(weight, scale).to(dtype)
    # outside a square basis there is only rounding noise, which small roots would amplify
    if not outside[0]:
        weight[..., -1, :] = 0.0
    if not outside[1]:
        weight[..., :, -1] = 0.0
    core, left, right, rest = _unbordered(weight)
    return core - left, left - rest, right - rest, rest, scale


def _shape(U: Tensor, V: Tensor, spreads: Spreads) -> tuple[int, ...]:
    """m and n, of the whole matrix."""
    return tuple(size(basis.shape[-2], spread) for basis, spread in zip((U, V), spreads, strict=True))


def _right_edge(parts: Coordinates, U: Tensor) -> Tensor:
    """(I - U Uᵀ) X V, (S, m, r)."""
    return torch.baddbmm(parts.right, U, parts.core, alpha=-1)


def _bordered(core: Tensor, left: Tensor, right: Tensor, rest: Tensor) -> Tensor:
    top = torch.cat([core, left.unsqueeze(-1)], -1)
    bottom = torch.cat([right, rest.unsqueeze(-1)], -1).unsqueeze(-2)
    return torch.cat([top, bottom], -2)


def _unbordered(M: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return M[..., :-1, :-1], M[..., :-1, -1:], M[..., -1:, :-1], M[..., -1:, -1:]


def _squared_cosines(new: Tensor, old: Tensor, spread: Spread | None) -> Task[Tensor]:
    """Squared cosines between new and old directions, (S, l' + 1, l + 1). O(d l l').

    The last row and column are those of the outside. Each row sums to 1.

    What old directions leave to the outside is formed: 1 - Σ cos² would have errors of eps, and the moments
    outside are often much smaller than those inside.
    """
    d = size(old.shape[-2], spread)
    cosines = yield from total((yield from launch(_cosines, new, old)), spread)
    lost = yield from total((yield from launch(_lost, old, new, cosines)), spread)
    return (yield Request(_shares, (cosines, lost), (float(max(d - new.shape[-1], 1)),)))


def _cosines(new: Tensor, old: Tensor) -> Tensor:
    return new.mT @ old


def _lost(old: Tensor, new: Tensor, cosines: Tensor) -> Tensor:
    """Energies of the columns of (I - new newᵀ) old. Entries are at most 1: squares can't overflow."""
    return torch.baddbmm(old, new, cosines, alpha=-1).square().sum(-2).double()


def _shares(cosines: Tensor, lost: Tensor, outside: float | Tensor) -> Tensor:
    """The result of `_squared_cosines`, where ``outside`` is the number of dimensions outside."""
    P = cosines.double().square()
    from_outside = (1 - P.sum(-1)).clamp(min=0)
    outside_from = lost / (outside.unsqueeze(-1) if isinstance(outside, Tensor) else outside)
    return _bordered(P, from_outside, outside_from, (1 - outside_from.sum(-1)).clamp(min=0))

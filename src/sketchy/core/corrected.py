"""Adam's second moment in a sketched basis (ours, beyond the paper): core, edges and rest.

With bases U (m x l) and V (n x r), a matrix X splits into four orthogonal parts: the core Uᵀ X V, the left
edge Uᵀ X (I - V Vᵀ), the right edge (I - U Uᵀ) X V, and the rest. The core has a second moment for each
entry, the left edge one for each row, the right edge one for each column, the rest a single one. Together
they are an (l + 1) x (r + 1) matrix whose last row and column stand for "outside the basis". At full rank
there is only the core, and the step is SOAP's.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from sketchy.core.extremes import as_weights, energies, row_energy

# What rounding leaves of a zero entry of Uᵀ X V, relative to the largest and in units of eps: up to 67 for X
# of low rank with sides up to 4096. At or below it an entry is noise. Divided by its own root it would become
# a whole step: with 4 here, three quarters of a first step's energy was noise.
_NOISE = 64.0


@dataclass(frozen=True)
class Parts:
    """A stack X (S, m, n) seen from two bases."""

    left: Tensor  # Uᵀ X, (S, l, n)
    right: Tensor  # X V, (S, m, r)
    core: Tensor  # Uᵀ X V, (S, l, r)


def project(X: Tensor, U: Tensor, V: Tensor) -> Parts:
    """The coordinates of X in both bases. O(m n (l + r))."""
    left = U.mT @ X
    return Parts(left, X @ V, left @ V)


def squares(parts: Parts, total: Tensor) -> Tensor:
    """The mean square of each part's entries, (S, l + 1, r + 1), float64.

    ``total``: ‖X‖², (S,). The masses of edges and rest follow by subtraction: the parts are orthogonal.
    """
    (l, n), (m, r) = parts.left.shape[-2:], parts.right.shape[-2:]
    core = parts.core.double().square()
    rows, columns = row_energy(parts.left), energies(parts.right)[1]
    left = (rows - core.sum(-1)) / max(n - r, 1)
    right = (columns - core.sum(-2)) / max(m - l, 1)
    outside = total - rows.sum(-1) - columns.sum(-1) + core.sum((-2, -1))
    rest = outside / max((m - l) * (n - r), 1)
    return _bordered(core, left, right, rest).clamp(min=0)


def mass(moments: Tensor, shape: tuple[int, int]) -> Tensor:
    """The sum of the second moments (S, l + 1, r + 1) of all entries of an m x n matrix, (S,).

    `squares` of X has ‖X‖², and `transport` leaves it as it is.
    """
    left, right = (
        torch.cat([moments.new_ones(k - 1), moments.new_full((1,), size - k + 1)])
        for k, size in zip(moments.shape[-2:], shape, strict=True)
    )
    return (left.unsqueeze(-1) * moments * right).sum((-2, -1))


def transport(moments: Tensor, old: tuple[Tensor, Tensor], new: tuple[Tensor, Tensor]) -> Tensor:
    """Second moments known in the ``old`` bases (U, V), carried over to the ``new`` ones.

    If entries are uncorrelated, the variance along a new direction is the average of the old variances,
    weighted by its squared cosines. What lies outside the old basis has the variance of the outside.
    """
    left, right = (_squared_cosines(b, a) for a, b in zip(old, new, strict=True))
    return left @ moments @ right.mT


def apply_(
    X: Tensor, U: Tensor, V: Tensor, parts: Parts, moments: Tensor, eps: float, rounding: float = 0.0
) -> Tensor:
    """Divide each part of X by the root of its second moment (S, l + 1, r + 1), and add the parts up.

    Roots are raised by eps times the largest. If the entries of X are rounded by a share ``rounding``, roots
    are also raised by the size of this noise, which a division by small roots would blow up. Where nothing
    but rounding was ever seen the result is zero. The result is written into X where something is outside a
    basis.
    """
    l, r = parts.core.shape[-2:]
    root = moments.sqrt()
    largest = root.amax((-2, -1), keepdim=True)
    live = root > _NOISE * torch.finfo(X.dtype).eps * largest
    raised = root + eps * largest
    if rounding > 0:
        m, n = U.shape[-2], V.shape[-2]
        raised = raised + rounding * (mass(moments, (m, n)) / (m * n)).sqrt().reshape(-1, 1, 1)
    weight = as_weights(torch.where(live, 1 / torch.where(live, raised, 1.0), 0.0), X)
    # outside a whole basis lies rounding only, which small roots would blow up
    weight[..., -1, :] *= U.shape[-2] > l
    weight[..., :, -1] *= V.shape[-2] > r
    core, left, right, rest = _unbordered(weight)
    if U.shape[-2] == l and V.shape[-2] == r:
        return U @ (core * parts.core) @ V.mT
    right_edge = parts.right - U @ parts.core
    # core and left edge, less what w_rest X below already has of them
    inner = (core - left) * parts.core @ V.mT + (left - rest) * parts.left
    return X.mul_(rest).baddbmm_(
        torch.cat([U, (right - rest) * right_edge], -1), torch.cat([inner, V.mT], -2)
    )


def _bordered(core: Tensor, left: Tensor, right: Tensor, rest: Tensor) -> Tensor:
    top = torch.cat([core, left.unsqueeze(-1)], -1)
    bottom = torch.cat([right, rest.unsqueeze(-1)], -1).unsqueeze(-2)
    return torch.cat([top, bottom], -2)


def _unbordered(M: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return M[..., :-1, :-1], M[..., :-1, -1:], M[..., -1:, :-1], M[..., -1:, -1:]


def _squared_cosines(new: Tensor, old: Tensor) -> Tensor:
    """How each new direction is made of old ones, and of the outside: (S, l + 1, l + 1), rows sum to 1."""
    d, l = old.shape[-2:]
    P = (new.mT @ old).double().square()
    from_outside = (1 - P.sum(-1)).clamp(min=0)
    outside_from = (1 - P.sum(-2)).clamp(min=0) / max(d - l, 1)
    return _bordered(P, from_outside, outside_from, (1 - outside_from.sum(-1)).clamp(min=0))

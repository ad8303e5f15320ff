"""The polar factor of a direction, as in Muon: its singular values become nearly equal.

The Newton-Schulz step X ← q(X Xᵀ) X with q(P) = a I + b P + c P² moves singular values towards 1. All factors
are polynomials of P = X Xᵀ. For X (m x n), m <= n, it is therefore enough to multiply m x m matrices:
Q ← q(P) Q and P ← q(P)² P, and once Q X at the end.
"""

import torch
from torch import Tensor

from sketchy.core.axes import as_matrix
from sketchy.core.extremes import frobenius, row_energy
from sketchy.core.moments import like
from sketchy.core.spread import WHOLE, Spreads, norm, part, total, whole
from sketchy.core.tasks import Task

# Muon's coefficients: five steps move singular values between 0.01 and 1 to values between 0.68 and 1.14.
_A, _B, _C = 3.4445, -4.7750, 2.0315


def polar_(
    direction: Tensor, scale: Tensor, steps: int, spreads: Spreads = WHOLE
) -> Task[tuple[Tensor, Tensor]]:
    """Replace scale * direction, (S,) times (S, *block), by about U Vᵀ of its SVD, with the same length.

    Before the first step X is divided by (Σ σ⁴)^(1/4), which is at least σ₁ and, if many singular values are
    alike, much less than Muon's (Σ σ²)^(1/2): fewer steps are enough. Zero stays zero. Returns the new
    direction and scale. O(m² n + steps m³).
    """
    spreads = spreads if len(spreads) == 2 else WHOLE  # other blocks are never spread
    X, rows, columns = as_matrix(direction), *spreads
    length = yield from norm(row_energy(X), *spreads)
    X = X.div_(like(torch.where(length > 0, length, 1.0), X))
    if rows is not None and columns is not None:
        X, columns = (yield from whole(X, columns, -1)), None
    # products run over a spread axis, or else over the longer one
    tall = rows is not None or (columns is None and X.shape[-2] > X.shape[-1])
    wide = X.mT if tall else X
    P = yield from total(wide @ wide.mT, rows, columns)
    size = frobenius(P)
    P = P / like(torch.where(size > 0, size, 1.0), P)
    Q = None  # up to a factor, which the length takes up
    for step in range(steps):
        q = torch.baddbmm(P, P, P, beta=_B, alpha=_C)
        q.diagonal(dim1=-2, dim2=-1).add_(_A)
        Q = q if Q is None else q @ Q
        P = q @ P @ q if step < steps - 1 else P
    assert Q is not None, "steps: at least 1"
    new = X @ Q if tall else Q @ X  # Q is symmetric
    new = new if spreads[1] is columns else part(new, spreads[1], -1)
    found = yield from norm(row_energy(new), *spreads)
    return new.reshape(direction.shape), scale * torch.where(found > 0, length / found, 0.0)

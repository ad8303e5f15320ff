"""The polar factor of a direction, as in Muon: its singular values become nearly equal.

The Newton-Schulz step X ← q(X Xᵀ) X with q(P) = a I + b P + c P² moves singular values towards 1. All factors
are polynomials of P = X Xᵀ. For X (m x n), m <= n, it is therefore enough to multiply m x m matrices:
Q ← q(P) Q and P ← q(P)² P, and once Q X at the end.
"""

import torch
from torch import Tensor

from sketchy.core.axes import as_matrix
from sketchy.core.extremes import frobenius
from sketchy.core.moments import like

# Muon's coefficients: five steps move singular values between 0.01 and 1 to values between 0.68 and 1.14.
_A, _B, _C = 3.4445, -4.7750, 2.0315


def polar_(direction: Tensor, scale: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """Replace scale * direction, (S,) times (S, *block), by about U Vᵀ of its SVD, with the same length.

    Before the first step X is divided by (Σ σ⁴)^(1/4), which is at least σ₁ and, if many singular values are
    alike, much less than Muon's (Σ σ²)^(1/2): fewer steps are enough. Zero stays zero. Returns the new
    direction and scale. O(m² n + steps m³).
    """
    X = as_matrix(direction)
    length = frobenius(X)
    X = X.div_(like(torch.where(length > 0, length, 1.0), X))
    wide = X if X.shape[-2] <= X.shape[-1] else X.mT
    P = wide @ wide.mT
    size = frobenius(P)
    P = P / like(torch.where(size > 0, size, 1.0), P)
    Q = None  # up to a factor, which the length takes up
    for step in range(steps):
        q = torch.baddbmm(P, P, P, beta=_B, alpha=_C)
        q.diagonal(dim1=-2, dim2=-1).add_(_A)
        Q = q if Q is None else q @ Q
        P = q @ P @ q if step < steps - 1 else P
    assert Q is not None, "steps: at least 1"
    new = Q @ wide if wide is X else X @ Q  # Q is symmetric
    found = frobenius(new)
    return new.reshape(direction.shape), scale * torch.where(found > 0, length / found, 0.0)

"""The whole covariance kept by its eigenvectors: a sketch of rank d from which nothing is cut.

Shampoo's factor, in the record that sketches use: C = U diag(λ) Uᵀ, ρ = 0. For an axis no longer than the
rank it is smaller and cheaper than a sketch, and exact.
"""

import torch
from torch import Tensor

from sketchy.core.linalg import certain, divide, extreme_scale, frobenius
from sketchy.core.sketch import Sketch

# What rounding adds to the error of one update, relative to ‖C‖ and in units of eps, beside the root of the
# sums' length: the two came out below 20 together in trials.
_ROUNDING = 16.0


def update(sketch: Sketch, A: Tensor, *, beta2: float = 1.0) -> Sketch:
    """β₂ C + A Aᵀ for A (..., d, k), C being d x d. O(d² (d + k)) and an eigendecomposition."""
    U, lam = sketch.basis, beta2 * sketch.eigenvalues
    scale = extreme_scale(torch.maximum(frobenius(A), lam[..., 0].sqrt()))
    if not certain(scale == 1):  # squares of extreme numbers leave the range
        A, lam = divide(A, scale), lam / scale.square().unsqueeze(-1)
    theta, Z = torch.linalg.eigh((U * lam.to(U).unsqueeze(-2)) @ U.mT + A @ A.mT)
    theta = theta.flip(-1).clamp(min=0).double()
    square = scale.square()
    units = _ROUNDING + 2 * (A.shape[-2] + A.shape[-1]) ** 0.5
    rounding = units * torch.finfo(U.dtype).eps * theta[..., 0] * square
    return Sketch(
        basis=Z.flip(-1),
        eigenvalues=theta * square.unsqueeze(-1),
        escaped_mass=torch.zeros_like(sketch.escaped_mass),
        error_bound=beta2 * sketch.error_bound + rounding,
    )

"""The whole covariance kept by its eigenvectors: a sketch of rank d from which nothing is cut.

Shampoo's factor, in the record that sketches use: C = U diag(λ) Uᵀ, ρ = 0. For an axis no longer than the
rank it is smaller and cheaper than a sketch, and exact.
"""

import torch
from torch import Tensor

from sketchy.core.linalg import divide, extreme_scale, frobenius
from sketchy.core.products import product_eps
from sketchy.core.sketch import Sketch

# What rounding adds to the error of one update, relative to ‖C‖ and in units of eps, beside the root of the
# sums' length: the two came out below 20 together in trials.
_ROUNDING = 16.0


def update(sketch: Sketch, A: Tensor, *, beta2: float = 1.0, norm: Tensor | None = None) -> Sketch:
    """β₂ C + A Aᵀ for A (..., d, k), C being d x d. O(d² (d + k)) and an eigendecomposition.

    ``norm``: ‖A‖ (...), float64, where it is known.
    """
    U, lam = sketch.basis, beta2 * sketch.eigenvalues
    scale = extreme_scale(torch.maximum(frobenius(A) if norm is None else norm, lam[..., 0].sqrt()))
    if scale is not None:  # squares of extreme numbers leave the range
        A, lam = divide(A, scale), lam / scale.square().unsqueeze(-1)
    C = (U * lam.to(U).unsqueeze(-2)) @ U.mT
    theta, Z = torch.linalg.eigh(C.add_(A @ A.mT).neg_())  # negative, so that the largest comes first
    theta = theta.neg().clamp(min=0).double()
    if scale is not None:
        theta = theta * scale.square().unsqueeze(-1)
    eps = torch.finfo(U.dtype).eps
    rounding = _ROUNDING * product_eps(A) + 2 * (A.shape[-2] + A.shape[-1]) ** 0.5 * eps
    return Sketch(
        basis=Z,
        eigenvalues=theta,
        escaped_mass=torch.zeros_like(sketch.escaped_mass),
        error_bound=beta2 * sketch.error_bound + rounding * theta[..., 0],
    )

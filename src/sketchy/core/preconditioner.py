"""Inverse roots of compensated sketches, ready to be applied: G̃^(-e) = w_out I + U diag(w_in - w_out) Uᵀ.

Where `operator.Compensated` has the paper's pseudo-inverse, training damps: eigenvalues are raised by
eps times the largest. The weight outside the basis is that of ρ. A direction whose eigenvalue is zero, in
the basis or, while nothing has escaped (ρ = 0), outside it, has never been seen. It is taken for an average
one, tr C / d: neither frozen, as the pseudo-inverse has it, nor blown up, as eps alone would. (A whole factor
in float32 has rounding of some eps for zeros of a low-rank stream: there eps decides.)
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sketchy.core.axes import fold, unfold
from sketchy.core.linalg import as_weights
from sketchy.core.sketch import Sketch

# At or below this share of the largest eigenvalue, mass is rounding.
_NEVER_SEEN = 1e-14


@dataclass(frozen=True)
class InverseRoot:
    """G̃^(-e) of Alg. 3, line 6: symmetric, positive, low rank plus diagonal."""

    basis: Tensor  # U, (..., d, l)
    inside: Tensor  # w_in - w_out, (..., l, 1)
    outside: Tensor  # w_out, (..., 1, 1)

    def apply(self, x: Tensor) -> Tensor:
        """G̃^(-e) x for x (..., d, k). O(d l k)."""
        U = self.basis
        if U.shape[-2] == U.shape[-1]:  # nothing is outside, and U Uᵀ x would cost its rounding
            return U @ (as_weights(self.inside + self.outside, x) * (U.mT @ x))
        inside, outside = (as_weights(weight, x) for weight in (self.inside, self.outside))
        return torch.baddbmm(outside * x, U, inside * (U.mT @ x))


def inverse_root(sketch: Sketch, exponent: float, eps: float) -> InverseRoot:
    """The damped G̃^(-exponent) of a sketch (S, d, l); zero for a sketch of nothing."""
    lam, rho = sketch.eigenvalues, sketch.escaped_mass.unsqueeze(-1)
    largest = lam[..., :1] + rho
    average = lam.sum(-1, keepdim=True) / sketch.dim  # needed only where ρ = 0

    def inverse(values: Tensor) -> Tensor:
        damped = torch.where(values > _NEVER_SEEN * largest, values, average) + eps * largest
        return torch.where(largest > 0, torch.where(largest > 0, damped, 1.0) ** -exponent, 0.0)

    w_in, w_out = inverse(lam + rho), inverse(rho)
    return InverseRoot(sketch.basis, (w_in - w_out).unsqueeze(-1), w_out.unsqueeze(-1))


def precondition(x: Tensor, roots: Sequence[InverseRoot | None]) -> Tensor:
    """Apply one inverse root along each axis of x (S, b_1, ..., b_N): L̃^(-e) X R̃^(-e) for N = 2 (Alg. 3).

    None leaves an axis as it is.
    """
    for axis, root in enumerate(roots):
        if root is not None:
            x = fold(root.apply(unfold(x, axis)), axis, like=x)
    return x

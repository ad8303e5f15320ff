"""Inverse roots of compensated sketches, ready to be applied: G̃^(-e) = w_out I + U diag(w_in - w_out) Uᵀ.

Where `operator.Compensated` has the paper's pseudo-inverse, training damps: eigenvalues are raised by
eps times the largest. The weight outside the basis is that of ρ. Where nothing has escaped yet (ρ = 0)
a direction outside has never been seen; it is taken for an average one, tr C / d: neither frozen, as the
pseudo-inverse has it, nor blown up, as eps alone would.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sketchy.core.axes import fold, unfold
from sketchy.core.sketch import Sketch

# Below this share of the largest eigenvalue, escaped mass is rounding.
_NOTHING_ESCAPED = 1e-14


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
            return U @ ((self.inside + self.outside).to(x) * (U.mT @ x))
        return torch.baddbmm(self.outside.to(x) * x, U, self.inside.to(x) * (U.mT @ x))


def inverse_root(sketch: Sketch, exponent: float, eps: float) -> InverseRoot:
    """The damped G̃^(-exponent) of a sketch (S, d, l); zero for a sketch of nothing."""
    lam, rho = sketch.eigenvalues, sketch.escaped_mass.unsqueeze(-1)
    inside = lam + rho
    largest = inside.amax(-1, keepdim=True)
    unseen = lam.sum(-1, keepdim=True) / sketch.dim
    outside = torch.where(rho > _NOTHING_ESCAPED * largest, rho, unseen)
    w_in, w_out = (_inverse(values, largest, exponent, eps) for values in (inside, outside))
    return InverseRoot(sketch.basis, (w_in - w_out).unsqueeze(-1), w_out.unsqueeze(-1))


def _inverse(values: Tensor, largest: Tensor, exponent: float, eps: float) -> Tensor:
    """(values + eps largest)^(-exponent), with zero for what is rounding noise."""
    live = values > _NOTHING_ESCAPED * largest if eps == 0 else (largest > 0).expand_as(values)
    damped = values + eps * largest
    return torch.where(live, torch.where(live, damped, 1.0) ** -exponent, 0.0)


def precondition(x: Tensor, roots: Sequence[InverseRoot | None]) -> Tensor:
    """Apply one inverse root along each axis of x (S, b_1, ..., b_N): L̃^(-e) X R̃^(-e) for N = 2 (Alg. 3).

    None leaves an axis as it is.
    """
    for axis, root in enumerate(roots):
        if root is not None:
            x = fold(root.apply(unfold(x, axis)), axis, like=x)
    return x

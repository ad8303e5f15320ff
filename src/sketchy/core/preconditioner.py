"""Inverse roots of compensated sketches: G̃^(-e) = w_out (I + U diag(w_in / w_out - 1) Uᵀ).

Where `operator.Compensated` has the paper's pseudo-inverse, training damps: eigenvalues are raised by
eps times the largest. The weight outside the basis is that of ρ. A direction whose eigenvalue is zero, in
the basis or, while nothing has escaped (ρ = 0), outside it, has never been seen. It is taken for an average
one, tr C / d: neither frozen, as the pseudo-inverse has it, nor blown up, as eps alone would. Where a sketch
is older than the gradient (``stale``), ρ says nothing of a direction that is new: nothing counts for less
than a share of an average one. Where entries of what is preconditioned come rounded by a share ``rounding``,
that much of an average eigenvalue is added: directions that are weak along both axes would be that noise.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sketchy.core.axes import fold, unfold
from sketchy.core.linalg import as_weights
from sketchy.core.products import add_outer_, multiply, product
from sketchy.core.ragged import constants, joined, parted
from sketchy.core.sketch import Sketch

# At or below this share of the largest eigenvalue, mass is rounding.
_NEVER_SEEN = 1e-14
# The least that an old sketch says of any direction, over tr C / d: with exponent 1/4 a new direction's step
# is at most 1.8 times an average one's.
STALE = 0.1


@dataclass(frozen=True)
class InverseRoot:
    """G̃^(-e) of Alg. 3, line 6: symmetric, positive, low rank plus diagonal."""

    basis: Tensor  # U, (S, d, l)
    inside: Tensor  # w_in / w_out - 1, (S, l, 1); w_in / w_out where U is whole and nothing is outside
    outside: Tensor  # w_out, (S,); where U is whole, the least of w_in: weights may leave the range of x

    @property
    def whole(self) -> bool:
        return self.basis.shape[-2] == self.basis.shape[-1]

    def apply_(self, x: Tensor) -> Tensor:
        """G̃^(-e) x / w_out for x (S, d, k), in place where something is outside. O(d k l)."""
        U, weights = self.basis, as_weights(self.inside, x)
        if self.whole:
            return multiply(U, weights * multiply(U.mT, x))
        return add_outer_(x, U, product(x.mT, U).mul_(weights.mT))

    def apply_right_(self, x: Tensor) -> Tensor:
        """The same along the last axis of x (S, k, d)."""
        U, weights = self.basis, as_weights(self.inside, x).mT
        if self.whole:
            return multiply(multiply(x, U) * weights, U.mT)
        return add_outer_(x, multiply(x, U).mul_(weights), U)


def inverse_root(
    sketch: Sketch, exponent: float, eps: float, *, stale: bool = False, rounding: float = 0.0
) -> InverseRoot:
    """The damped G̃^(-exponent) of a sketch (S, d, l); zero for a sketch of nothing."""
    (root,) = inverse_roots([sketch], exponent, eps, stale=stale, rounding=rounding)
    return root


def inverse_roots(
    sketches: Sequence[Sketch], exponent: float, eps: float, *, stale: bool = False, rounding: float = 0.0
) -> list[InverseRoot]:
    """`inverse_root` for several stacks of sketches, of one rank and any d."""
    bases = [sketch.basis for sketch in sketches]
    lam = joined([sketch.eigenvalues for sketch in sketches])
    rho = joined([sketch.escaped_mass for sketch in sketches]).unsqueeze(-1)
    values = torch.cat([lam + rho, rho], -1)
    largest = values[..., :1]
    seen = largest > 0
    # needed only where ρ = 0, where the sketch is old, or against rounding
    average = lam.sum(-1, keepdim=True) / constants([U.shape[-2] for U in bases], bases).unsqueeze(-1)

    values = torch.where(values > _NEVER_SEEN * largest, values, average)
    if stale:
        values = torch.maximum(values, STALE * average)
    values = values.add_(largest, alpha=eps)
    if rounding > 0:
        values = values.add_(average, alpha=rounding)
    # a sketch of nothing passes on what momentum is left, and is zero by its factor
    values = torch.where(seen, values, 1.0) ** -exponent
    inside, outside = values[..., :-1], values[..., -1:]
    least = inside[..., :1]
    parts = (
        parted(each, bases)
        for each in (
            inside / least,
            (inside / outside).sub_(1),
            *((w * seen).squeeze(-1) for w in (least, outside)),
        )
    )
    return [
        InverseRoot(U, weights.unsqueeze(-1), smallest)
        if U.shape[-2] == U.shape[-1]
        else InverseRoot(U, more.unsqueeze(-1), out)
        for U, weights, more, smallest, out in zip(bases, *parts, strict=True)
    ]


def precondition_(x: Tensor, roots: Sequence[InverseRoot | None]) -> tuple[Tensor, Tensor]:
    """Apply one inverse root along each axis of x (S, b_1, ..., b_N): L̃^(-e) X R̃^(-e) for N = 2 (Alg. 3).

    None leaves an axis as it is. Returns the result, in x's memory where that can be, and the factor (S,) it
    lacks.
    """
    factor = torch.ones(len(x), dtype=torch.float64, device=x.device)
    for axis, root in enumerate(roots):
        if root is None:
            continue
        if axis == 1 and x.dim() == 3:
            x = root.apply_right_(x)
        else:
            x = fold(root.apply_(unfold(x, axis)), axis, like=x)
        factor = factor * root.outside
    return x, factor

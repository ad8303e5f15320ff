"""Inverse roots of compensated sketches: G̃^(-e) = scale (rest I + U diag(gain) Uᵀ).

`operator.Compensated` has the paper's pseudo-inverse. Training damps instead: eigenvalues are raised by
eps times the largest. Three kinds of eigenvalues are replaced, because their inverse roots would be noise:

- A zero eigenvalue, in the basis or (while ρ = 0) outside it, belongs to a direction that was never seen. It
  becomes the average tr C / d: the pseudo-inverse would freeze the direction, and eps alone would blow it up.
- A ``stale`` sketch is older than the gradient, and ρ says nothing of new directions. No eigenvalue counts
  for less than a share of the average.
- If the entries of what is preconditioned are rounded by a share ``rounding``, this share of the average is
  added. Directions that are weak along both axes would be that rounding noise.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sketchy.core.axes import fold, unfold
from sketchy.core.extremes import as_weights
from sketchy.core.sketch import Sketch
from sketchy.core.tasks import Task, run, together
from sketchy.core.tuned.products import add_outer_, product

# At or below this share of the largest eigenvalue, mass is rounding.
_NEVER_SEEN = 1e-14
# The least that an old sketch says of any direction, over tr C / d: with exponent 1/4 a new direction's step
# is at most 1.8 times an average one's.
STALE = 0.1


@dataclass(frozen=True)
class InverseRoot:
    """G̃^(-e) = scale (rest I + U diag(gain) Uᵀ) of Alg. 3, line 6: symmetric, positive."""

    basis: Tensor  # U, (S, d, l)
    gain: Tensor  # (S, l): w_i / scale - rest for the weight w_i of a column of U
    scale: Tensor  # (S,): the weight outside the basis; the least w_i where the basis is whole
    rest: int  # 1; 0 where the basis is whole, and nothing is outside

    def apply_(self, x: Tensor) -> Tensor:
        """G̃^(-e) x / scale for x (S, d, k), in place where something is outside. O(d k l)."""
        U, gain = self.basis, as_weights(self.gain, x)
        if self.rest == 0:
            return U @ (gain.unsqueeze(-1) * (U.mT @ x))
        return add_outer_(x, U, product(x.mT, U).mul_(gain.unsqueeze(-2)))

    def apply_right_(self, x: Tensor) -> Tensor:
        """The same along the last axis of x (S, k, d)."""
        U, gain = self.basis, as_weights(self.gain, x).unsqueeze(-2)
        if self.rest == 0:
            return (x @ U * gain) @ U.mT
        return add_outer_(x, (x @ U).mul_(gain), U)


def inverse_root(
    sketch: Sketch, exponent: float, eps: float, *, stale: bool = False, rounding: float = 0.0
) -> InverseRoot:
    """The damped G̃^(-exponent) of a sketch (S, d, l); zero for a sketch of nothing."""
    return run(inverse_root_of(sketch, exponent, eps, stale=stale, rounding=rounding))


def inverse_root_of(
    sketch: Sketch, exponent: float, eps: float, *, stale: bool = False, rounding: float = 0.0
) -> Task[InverseRoot]:
    """`inverse_root` as a task."""
    d, l = sketch.basis.shape[-2:]
    rest = int(l < d)
    gain, scale = yield from together(
        _gain_and_scale,
        sketch.eigenvalues,
        sketch.escaped_mass,
        numbers=(float(d),),
        rest=rest,
        exponent=exponent,
        eps=eps,
        stale=stale,
        rounding=rounding,
    )
    return InverseRoot(sketch.basis, gain, scale, rest)


def _gain_and_scale(
    lam: Tensor,
    rho: Tensor,
    dim: float | Tensor,
    *,
    rest: int,
    exponent: float,
    eps: float,
    stale: bool,
    rounding: float,
) -> tuple[Tensor, Tensor]:
    rho = rho.unsqueeze(-1)
    values = torch.cat([lam + rho, rho], -1)
    largest = values[..., :1]
    seen = largest > 0
    # needed only where ρ = 0, where the sketch is old, or against rounding
    average = (lam.sum(-1) / dim).unsqueeze(-1)

    values = torch.where(values > _NEVER_SEEN * largest, values, average)
    if stale:
        values = torch.maximum(values, STALE * average)
    values = values.add_(largest, alpha=eps)
    if rounding > 0:
        values = values.add_(average, alpha=rounding)
    # a sketch of nothing passes on what momentum is left, and is zero by its scale
    values = torch.where(seen, values, 1.0) ** -exponent
    inside, outside = values[..., :-1], values[..., -1:] if rest else values[..., :1]
    return (inside / outside).sub_(rest), (outside * seen).squeeze(-1)


def precondition_(x: Tensor, roots: Sequence[InverseRoot | None]) -> tuple[Tensor, Tensor]:
    """Apply one inverse root along each axis of x (S, b_1, ..., b_N): L̃^(-e) X R̃^(-e) for N = 2 (Alg. 3).

    None leaves an axis as it is. Returns (direction, scale (S,)); the result is scale * direction. The
    direction is in x's memory where that can be.
    """
    scale = torch.ones(len(x), dtype=torch.float64, device=x.device)
    for axis, root in enumerate(roots):
        if root is None:
            continue
        if axis == 1 and x.dim() == 3:
            x = root.apply_right_(x)
        else:
            x = fold(root.apply_(unfold(x, axis)), axis, like=x)
        scale = scale * root.scale
    return x, scale

"""Inverse roots of compensated sketches: G̃^(-e) = scale (rest I + U diag(gain) Uᵀ).

`operator.Compensated` has the paper's pseudo-inverse. In training the inverse is damped instead: eps times
the largest eigenvalue is added to each. In three cases small eigenvalues are raised further, because their
inverse roots would amplify noise:

- A zero eigenvalue, in the basis or (while ρ = 0) outside it, belongs to a direction that was never seen. It
  is replaced by the average tr C / d. With the pseudo-inverse this direction would never move; with eps alone
  its step would be far too long.
- A ``stale`` sketch has not seen the current gradient, and its ρ does not describe new directions. Each
  eigenvalue is raised to at least a share of the average (see `STALE`).
- If the entries to be preconditioned have a relative rounding error ``rounding``, this share of the average
  is added. Otherwise, in directions that are weak along both axes, the step would be rounding noise.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sketchy.core.axes import fold, unfold
from sketchy.core.extremes import as_weights
from sketchy.core.sketch import Sketch
from sketchy.core.spread import Spread, total
from sketchy.core.tasks import Request, Task, run
from sketchy.core.tuned.products import add_outer_, product

# At or below this share of the largest, an eigenvalue is a rounding error.
_NEVER_SEEN = 1e-14
# The smallest eigenvalue of a stale sketch with exponent 1/4, relative to tr C / d. The step along a new
# direction is then at most 1.8 times as long as along an average one, and also with other exponents e, for
# which it is STALE^(1 / 4e).
STALE = 0.1


@dataclass(frozen=True)
class InverseRoot:
    """G̃^(-e) = scale (rest I + U diag(gain) Uᵀ) of Alg. 3, line 6: symmetric, positive."""

    basis: Tensor  # U, (S, d, l)
    gain: Tensor  # (S, l): w_i / scale - rest, where w_i is the eigenvalue of G̃^(-e) for column i of U
    scale: Tensor  # (S,): the eigenvalue of G̃^(-e) outside the basis; if nothing is outside, the smallest w_i
    rest: int  # 1; 0 if nothing is outside the basis
    spread: Spread | None = None  # of the rows of U

    def apply_(self, x: Tensor) -> Task[Tensor]:
        """G̃^(-e) x / scale for x (S, d, k), in place where something is outside. O(d k l)."""
        U, gain = self.basis, as_weights(self.gain, x.dtype)
        if self.rest == 0:
            return U @ (gain.unsqueeze(-1) * (yield from total(U.mT @ x, self.spread)))
        P = yield from total(product(x.mT, U), self.spread)
        return add_outer_(x, U, P.mul_(gain.unsqueeze(-2)))

    def apply_right_(self, x: Tensor) -> Task[Tensor]:
        """The same along the last axis of x (S, k, d)."""
        U, gain = self.basis, as_weights(self.gain, x.dtype).unsqueeze(-2)
        P = yield from total(x @ U, self.spread)
        if self.rest == 0:
            return (P * gain) @ U.mT
        return add_outer_(x, P.mul_(gain), U)


def inverse_root(
    sketch: Sketch, exponent: float, eps: float, *, stale: bool = False, rounding: float = 0.0
) -> InverseRoot:
    """The damped G̃^(-exponent) of a sketch (S, d, l). It is zero for an empty sketch."""
    return run(inverse_root_task(sketch, exponent, eps, stale=stale, rounding=rounding))


def inverse_root_task(
    sketch: Sketch, exponent: float, eps: float, *, stale: bool = False, rounding: float = 0.0
) -> Task[InverseRoot]:
    """`inverse_root` as a task."""
    d, l = sketch.dim, sketch.rank
    rest = int(l < d)
    options = {"rest": rest, "exponent": exponent, "eps": eps, "stale": stale, "rounding": rounding}
    tensors = sketch.eigenvalues, sketch.escaped_mass
    gain, scale = yield Request(_gain_and_scale, tensors, (float(d),), options)
    return InverseRoot(sketch.basis, gain, scale, rest, sketch.spread)


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
    # used only if ρ = 0, if the sketch is stale, or against rounding
    average = (lam.sum(-1) / dim).unsqueeze(-1)

    values = torch.where(values > _NEVER_SEEN * largest, values, average)
    if stale:
        values = torch.maximum(values, STALE ** (0.25 / exponent) * average)
    values = values.add_(largest, alpha=eps)
    if rounding > 0:
        values = values.add_(average, alpha=rounding)
    # an empty sketch leaves the direction as it is (gain 0), and its scale is 0
    values = torch.where(seen, values, 1.0) ** -exponent
    inside, outside = values[..., :-1], values[..., -1:] if rest else values[..., :1]
    return (inside / outside).sub_(rest), (outside * seen).squeeze(-1)


def precondition_(x: Tensor, roots: Sequence[InverseRoot | None]) -> Task[tuple[Tensor, Tensor]]:
    """Apply one inverse root along each axis of x (S, b_1, ..., b_N): L̃^(-e) X R̃^(-e) for N = 2 (Alg. 3).

    An axis with None is not preconditioned. Returns (direction, scale (S,)); the result is scale * direction.
    x may be overwritten: the direction reuses its memory if possible.
    """
    scale = torch.ones(len(x), dtype=torch.float64, device=x.device)
    for axis, root in enumerate(roots):
        if root is None:
            continue
        if axis == 1 and x.dim() == 3:
            x = yield from root.apply_right_(x)
        else:
            x = fold((yield from root.apply_(unfold(x, axis))), axis, like=x)
        scale = scale * root.scale
    return x, scale

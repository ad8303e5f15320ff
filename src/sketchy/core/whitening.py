"""Whitened statistics (ours, after KL-Shampoo): the covariance of one side, seen through the other side.

The left sketch gets A = G W instead of the gradient G, where W is an inverse root of the right sketch
(V, λ, ρ; n x r) as it was before this step:

    μ = tr(V diag(λ) Vᵀ + ρ I) / n        W = ((V diag(λ) Vᵀ + ρ I) / μ + δ I)^(-1/2)

The right sketch gets Gᵀ W with the W of the left one. W is the identity while μ = 0. W has no unit, so A has
the unit of G. A need not be formed: its norm and its products with thin matrices need only G V and Gᵀ U.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sketchy.core.extremes import divide
from sketchy.core.sketch import Sketch
from sketchy.core.spread import Spread, column_lengths, size, total
from sketchy.core.tasks import Request, Task, launch, run

# δ. Weights are at most δ^(-1/2) = 32. Values from 1e-3 to 0.03 trained a small GPT equally well, 1e-5 worse.
DAMPING = 1e-3


@dataclass(frozen=True)
class Whitening:
    """W = V diag(inside) Vᵀ + outside (I - V Vᵀ): symmetric and positive, (S, n, n). It is never formed."""

    basis: Tensor  # V, (S, n, r)
    inside: Tensor  # (S, r), float64
    outside: Tensor  # (S,), float64: ‖W‖, or a bound on it if V is square
    short: tuple[Tensor, Tensor, Tensor]  # inside, inside - outside, and outside, in the dtype of V
    spread: Spread | None = None  # of the rows of V, and of all that W is applied to

    def apply(self, X: Tensor, coordinates: Tensor | None = None) -> Task[Tensor]:
        """W X for X (S, n, k), given Vᵀ X if it is known. O(n r k)."""
        P = (yield from self._coordinates(X)) if coordinates is None else coordinates
        V, (inside, gain, outside) = self.basis, self.short
        if V.shape[-1] == size(V.shape[-2], self.spread):
            return V @ (inside.unsqueeze(-1) * P)
        return (yield from launch(_applied, X, V, P, gain, outside))

    def twice(self, X: Tensor) -> Task[tuple[Tensor, Tensor]]:
        """W X and W W X for X (S, n, k), with one product Vᵀ X for both."""
        P = yield from self._coordinates(X)
        once = yield from self.apply(X, P)
        return once, (yield from self.apply(once, (yield from launch(_rows_times, P, self.short[0]))))

    def _coordinates(self, X: Tensor) -> Task[Tensor]:
        """Vᵀ X."""
        return (yield from total((yield from launch(_coordinates, self.basis, X)), self.spread))

    def norm(self, norm: Tensor, GV: Tensor, rows: Spread | None = None) -> Task[tuple[Tensor, Tensor]]:
        """‖G W‖ and ‖G‖ ‖W‖ (S,), given ‖G‖ (S,) and G V (S, m, r). ``rows``: the spread of the rows of G."""
        columns = yield from column_lengths(GV, rows)
        return (yield Request(_norm, (norm, columns, self.inside, self.outside)))

    def form(self, G: Tensor) -> Task[Tensor]:
        """G W for G (S, m, n), in float64: weights differ much, so float32 would lose small entries."""
        long = self.inside, self.inside - self.outside.unsqueeze(-1), self.outside
        W = replace(self, basis=self.basis.double(), short=long)
        return (yield from W.apply(G.mT.double())).mT


@dataclass(frozen=True)
class Whitened:
    """How a sketch with the basis U sees A = G W without forming it."""

    W: Whitening
    product: Tensor  # Gᵀ U, (S, n, l)
    noise: Tensor  # ‖W‖ ‖G‖ (S,), float64: rounding errors of products with A are relative to it

    def divided(self, scale: Tensor, noise: Tensor) -> "Task[Whitened]":
        """The same for G / scale, whose rounding errors are ``noise``."""
        product = yield from launch(divide, self.product, scale)
        return replace(self, product=product, noise=noise)


def _coordinates(V: Tensor, X: Tensor) -> Tensor:
    return V.mT @ X


def _applied(X: Tensor, V: Tensor, P: Tensor, gain: Tensor, outside: Tensor) -> Tensor:
    """W X for X (S, n, k), given P = Vᵀ X."""
    return torch.baddbmm(X * outside.reshape(-1, 1, 1), V, gain.unsqueeze(-1) * P)


def _rows_times(P: Tensor, values: Tensor) -> Tensor:
    return values.unsqueeze(-1) * P


def _norm(norm: Tensor, columns: Tensor, inside: Tensor, outside: Tensor) -> tuple[Tensor, Tensor]:
    """‖G W‖ and ‖G‖ ‖W‖ (S,), given ‖G‖ (S,) and the lengths of the columns of G V (S, r)."""
    columns = columns.square()
    rest = (norm.square() - columns.sum(-1)).clamp(min=0) * outside.square()
    return ((columns * inside.square()).sum(-1) + rest).sqrt(), norm * outside


def whitening(sketch: Sketch) -> Whitening:
    """The W of a sketch (S, n, r)."""
    return run(whitening_task(sketch))


def whitening_task(sketch: Sketch) -> Task[Whitening]:
    """`whitening` as a task."""
    tensors, options = (sketch.eigenvalues, sketch.escaped_mass), {"dtype": sketch.basis.dtype}
    inside, outside, *short = yield Request(_weights, tensors, (float(sketch.dim),), options)
    return Whitening(sketch.basis, inside, outside, tuple(short), sketch.spread)


def _weights(
    lam: Tensor, rho: Tensor, dim: float | Tensor, *, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Inside and outside, and `Whitening.short`. All are moderate: at most δ^(-1/2)."""
    rho = rho.unsqueeze(-1)
    mean = rho + (lam.sum(-1) / dim).unsqueeze(-1)
    values = torch.cat([lam + rho, rho], -1) / torch.where(mean > 0, mean, 1.0)
    weights = torch.where(mean > 0, values + DAMPING, 1.0).rsqrt()
    inside, outside = weights[..., :-1], weights[..., -1]
    gain = inside - outside.unsqueeze(-1)
    return inside, outside, inside.to(dtype), gain.to(dtype), outside.to(dtype)

"""Frequent Directions: B Bᵀ = U diag(λ) Uᵀ stands in for a d x d covariance C (Alg. 1, Sec. 4.3).

One update replaces C by β₂ C + A Aᵀ, and B Bᵀ by the leading l eigendirections of
C' = β₂ B Bᵀ + A Aᵀ, all lowered by the l-th eigenvalue; what was cut is added up in ρ.

Gradients may be float32; squared quantities (eigenvalues, masses, bounds) are float64 always:
they are l numbers, and they leave float32's range when gradients reach 1e-20 or 1e20.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sketchy.core import certificate
from sketchy.core.extremes import divide, extreme_scale, frobenius
from sketchy.core.linalg import (
    fill,
    gaussian,
    gram_factor,
    left_singular,
    left_singular_by_products,
    orthonormal,
)
from sketchy.core.tasks import Numbers, Task, read, run, together
from sketchy.core.tuned.products import add_product_, by_rows, product, solve_transposed_

# What rounding leaves of a zero singular value, relative to the largest and in units of eps. At or
# below it a direction counts as empty.
NOISE = 10.0


@dataclass(frozen=True)
class Sketch:
    """State of Frequent Directions on a d x d covariance (Alg. 1)."""

    basis: Tensor  # U, (..., d, l): orthonormal columns, leading first
    eigenvalues: Tensor  # λ, (..., l): of B Bᵀ = U diag(λ) Uᵀ, descending, the last is 0
    escaped_mass: Tensor  # ρ, (...): discounted total of what was cut
    error_bound: Tensor  # (...): certified bound on the operator norm of C - B Bᵀ

    @property
    def dim(self) -> int:
        return self.basis.shape[-2]

    @property
    def rank(self) -> int:
        return self.basis.shape[-1]

    def factor(self) -> Tensor:
        """B (..., d, l), in gradient units."""
        return self.basis * self.eigenvalues.sqrt().to(self.basis).unsqueeze(-2)


def empty(
    dim: int,
    rank: int,
    *,
    batch: tuple[int, ...] = (),
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Sketch:
    """The sketch of nothing: B₀ = 0 (Alg. 1). ``rank`` is clipped to ``dim``."""
    rank = min(rank, dim)
    U = gaussian(dim, rank, seed=0, like=torch.empty(0, dtype=dtype, device=device))
    zero = torch.zeros(batch, dtype=torch.float64, device=device)
    # by rows, as an update leaves it: what is loaded in its place is then rounded in the same way
    basis = torch.linalg.qr(U)[0].expand(*batch, dim, rank).clone(memory_format=torch.contiguous_format)
    return Sketch(
        basis=basis,
        eigenvalues=torch.zeros((*batch, rank), dtype=torch.float64, device=device),
        escaped_mass=zero,
        error_bound=zero.clone(),
    )


def update(
    sketch: Sketch,
    A: Tensor,
    *,
    beta2: float = 1.0,
    solver: str = "exact",
    norm: Tensor | None = None,
    probes: Tensor | None = None,
    failure_probability: float = 1e-6,
) -> Sketch:
    """FD-update (Alg. 1) with the decay of Sec. 4.3: the sketch of β₂ C + A Aᵀ.

    ``A``: (..., d, k), any k >= 1, with the sketch's leading dimensions. ``norm``: ‖A‖ (...), float64, where
    it is known. ``probes``: Gaussian (r, d), independent of the stream, for a sharp certificate of the
    subspace solver, which fails with ``failure_probability`` at most; without them its error bound rests on
    traces alone.

    Cost: O(d (l + k) min(d, l + k)) at the speed of an SVD (exact), O(d k l) at the speed of
    matrix products (subspace).
    """
    probing = None if probes is None else (probes, failure_probability)
    return run(updated(sketch, A, beta2=beta2, solver=solver, norm=norm, probing=probing))


def updated(
    sketch: Sketch,
    A: Tensor,
    *,
    beta2: float,
    solver: str,
    norm: Tensor | None = None,
    probing: tuple[Tensor, float] | None = None,
) -> Task[Sketch]:
    """`update` as a task: small matrices of several sketches (S, d, l) go in one batch (`core.tasks`).

    Alg. 1 is homogeneous: A / s gives the sketch over s². Extreme streams are divided by a power of two
    first.
    """
    norm = frobenius(A) if norm is None else norm
    scale = yield from extreme_scale(norm, sketch.eigenvalues[..., 0], beta2, A.dtype)
    if scale is None:
        return (yield from _fd_update(sketch, A, norm, beta2, solver, probing))
    lam, norm, zero = yield from together(_divided, sketch.eigenvalues, norm, scale)
    unit = Sketch(sketch.basis, lam, zero, zero)
    new = yield from _fd_update(unit, divide(A, scale), norm, beta2, solver, probing)
    found = new.eigenvalues, new.escaped_mass, new.error_bound
    past = sketch.escaped_mass, sketch.error_bound
    return Sketch(new.basis, *(yield from together(_multiplied, *found, *past, scale, beta2=beta2)))


def _divided(eigenvalues: Tensor, norm: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """λ and ‖A‖ of a stream over ``scale``, and zeros for its past masses, which may be of any size."""
    return eigenvalues / scale.square().unsqueeze(-1), norm / scale, torch.zeros_like(scale)


def _multiplied(
    lam: Tensor,
    mass: Tensor,
    bound: Tensor,
    old_mass: Tensor,
    old_bound: Tensor,
    scale: Tensor,
    *,
    beta2: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """λ, ρ and error bound of the stream itself, with its past."""
    square = scale.square()
    return lam * square.unsqueeze(-1), beta2 * old_mass + mass * square, beta2 * old_bound + bound * square


def _fd_update(
    sketch: Sketch, A: Tensor, norm: Tensor, beta2: float, solver: str, probing: tuple[Tensor, float] | None
) -> Task[Sketch]:
    """FD-update (Alg. 1) of a stream of moderate size."""
    U, old = sketch.basis, (sketch.eigenvalues, sketch.escaped_mass, sketch.error_bound)
    weights = yield from together(_decayed, sketch.eigenvalues, beta2=beta2, dtype=U.dtype)
    Z, sigma = yield from _STEPS[solver](U, weights, A)  # Alg. 1, line 3: leading directions of C'
    rounding = certificate.rounding(A, traced=solver == "subspace")
    kept, mass, bound, live, known = yield from together(
        _cut, sigma, norm, *old, numbers=rounding, beta2=beta2
    )
    if known is None or not all(yes for (yes,) in known):
        Z = fill(Z, live)
    if probing is not None and solver == "subspace":
        D = certificate.Residual(U, beta2 * sketch.eigenvalues, A, Z, kept)
        sharp = certificate.probed_loss(D, norm, sigma.double(), rounding, *probing)
        bound = torch.minimum(bound, beta2 * sketch.error_bound + sharp)
    return Sketch(Z, kept, mass, bound)


def _decayed(eigenvalues: Tensor, *, beta2: float, dtype: torch.dtype) -> Tensor:
    """β₂ λ in the dtype of the basis, rounded as √λ is: the factor of C' is M = [U √λ, A]."""
    return (beta2 * eigenvalues).sqrt().to(dtype).square()


def _cut(
    sigma: Tensor,
    norm: Tensor,
    eigenvalues: Tensor,
    mass: Tensor,
    bound: Tensor,
    *rounding: float | Tensor,
    beta2: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Numbers]:
    """The new λ, ρ and error bound from the eigenvalues σ (..., l) of C'^(1/2); which σ are live."""
    live = sigma > NOISE * torch.finfo(sigma.dtype).eps * sigma[..., :1]
    sigma = sigma.double() * live
    cut = sigma[..., -1:]  # √λ_l
    kept = (sigma - cut) * (sigma + cut)  # Alg. 1, line 5; keeps digits that σ² - c² drops
    escaped = cut.squeeze(-1).square()
    lost = certificate.loss(
        beta2 * eigenvalues.sum(-1) + norm.square(), sigma[..., 0], kept, escaped, rounding
    )
    return (
        kept,
        torch.add(escaped, mass, alpha=beta2),
        lost.add_(bound, alpha=beta2),
        live,
        read(live.all(-1)),
    )


def _exact_step(U: Tensor, weights: Tensor, A: Tensor) -> Task[tuple[Tensor, Tensor]]:
    """The leading left singular vectors and values of M = [U√λ, A] (Sec. 6): never A Aᵀ, which squares."""
    yield from ()
    return left_singular(torch.cat([U * weights.sqrt().unsqueeze(-2), A], dim=-1), U.shape[-1])


def _subspace_step(U: Tensor, weights: Tensor, A: Tensor) -> Task[tuple[Tensor, Tensor]]:
    """One warm-started block power step and a Rayleigh-Ritz projection for M Mᵀ (the route Sec. 6 hopes for).

    The projection is taken in the row space: with Q an orthonormal basis of Mᵀ U, the new factor
    is M Q, whose columns span C' U, the power step. It is the Nyström approximation of C' from U, and
    M Q Qᵀ Mᵀ ⪯ C' whatever Q is: B Bᵀ ⪯ C survives, and what is lost has a trace.
    """
    K = by_rows(product(A.mT, U))  # the lower rows of Mᵀ U; the upper ones are diag(√λ)
    found = yield from gram_factor(K, plus=weights)  # of Uᵀ C' U
    if found is not None:
        T = solve_transposed_(add_product_(U * weights.unsqueeze(-2), A, K), found[0])  # C' U L⁻ᵀ
    else:
        root, l = weights.sqrt(), U.shape[-1]
        Q = orthonormal(torch.cat([root.diag_embed(), K], dim=-2))
        T = U @ (root.unsqueeze(-1) * Q[..., :l, :]) + A @ Q[..., l:, :]
    return (yield from left_singular_by_products(T))


_STEPS: dict[str, Callable[[Tensor, Tensor, Tensor], Task[tuple[Tensor, Tensor]]]] = {
    "exact": _exact_step,
    "subspace": _subspace_step,
}
SOLVERS = tuple(_STEPS)


def merge(first: Sketch, second: Sketch) -> Sketch:
    """The sketch of both streams together, at the first one's rank; masses and bounds add up."""
    both = update(first, second.factor())
    return replace(
        both,
        escaped_mass=both.escaped_mass + second.escaped_mass,
        error_bound=both.error_bound + second.error_bound,
    )

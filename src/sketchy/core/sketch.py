"""Frequent Directions: B Bᵀ = U diag(λ) Uᵀ stands in for a d x d covariance C (Alg. 1, Sec. 4.3).

One update replaces C by β₂ C + A Aᵀ, and B Bᵀ by the leading l eigendirections of
C' = β₂ B Bᵀ + A Aᵀ, all lowered by the l-th eigenvalue; what was cut is added up in ρ.

Gradients may be float32; squared quantities (eigenvalues, masses, bounds) are float64 always:
they are l numbers, and they leave float32's range when gradients reach 1e-20 or 1e20.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sketchy.core.linalg import (
    certain,
    divide,
    extreme_scale,
    fill,
    frobenius,
    gaussian,
    gram_factor,
    left_singular,
    left_singular_by_products,
    norm_bound,
    orthonormal,
)
from sketchy.core.products import add_product, by_rows, over_transposed, product, product_eps

# What rounding leaves of a zero singular value, relative to the largest and in units of eps. At or
# below it a direction counts as empty.
_NOISE = 10.0
# What rounding adds to the error of one update, relative to ‖C'‖ and in units of eps. LAPACK's own SVD
# is off by some twenty eps; for float32 it runs in float64. The subspace solver's long sums add the
# root of their length, in float32 even where products round their factors to fewer digits.
_ROUNDING = {torch.float32: 8.0, torch.float64: 40.0}


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
    return Sketch(
        basis=torch.linalg.qr(U)[0].expand(*batch, dim, rank).clone(),
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
    probes: Tensor | None = None,
    failure_probability: float = 1e-6,
    norm: Tensor | None = None,
) -> Sketch:
    """FD-update (Alg. 1) with the decay of Sec. 4.3: the sketch of β₂ C + A Aᵀ.

    ``A``: (..., d, k), any k >= 1, with the sketch's leading dimensions. ``probes``: Gaussian
    (r, d), independent of the stream, for a sharp certificate of the subspace solver; without
    them its error bound rests on traces alone. ``norm``: ‖A‖ (...), float64, where it is known.

    Cost: O(d (l + k) min(d, l + k)) at the speed of an SVD (exact), O(d k l) at the speed of
    matrix products (subspace).
    """
    dtype, eps = sketch.basis.dtype, torch.finfo(sketch.basis.dtype).eps
    lam, norm = beta2 * sketch.eigenvalues, frobenius(A) if norm is None else norm
    scale = extreme_scale(torch.maximum(norm, lam[..., 0].sqrt()))
    if scale is not None:  # from here on, everything is in units of the scale
        A = divide(A, scale)
        lam, norm = lam / scale.square().unsqueeze(-1), norm / scale

    U, sigma = _STEPS[solver](sketch.basis, lam.sqrt().to(dtype), A)
    sigma = sigma.double()
    live = sigma > _NOISE * eps * sigma[..., :1]
    if not certain(live):
        U, sigma = fill(U, live), sigma * live
    cut = sigma[..., -1:]  # √λ_l
    kept = (sigma - cut) * (sigma + cut)  # Alg. 1, line 5; keeps digits that σ² - c² drops
    lost = escaped = cut.squeeze(-1).square()
    if solver == "subspace":
        mass = lam.sum(-1) + norm.square()
        D = _Residual(sketch.basis, lam, A, U, kept)
        lost = _subspace_loss(D, mass, escaped, probes, failure_probability)
    rounding = _ROUNDING[dtype] * product_eps(A)
    if solver == "subspace":
        rounding += max(A.shape[-2:]) ** 0.5 * eps
    lost = torch.add(lost, sigma[..., 0].square(), alpha=rounding)

    if scale is not None:
        square = scale.square()
        kept, escaped, lost = kept * square.unsqueeze(-1), escaped * square, lost * square
    return Sketch(
        basis=U,
        eigenvalues=kept,
        escaped_mass=torch.add(escaped, sketch.escaped_mass, alpha=beta2),
        error_bound=torch.add(lost, sketch.error_bound, alpha=beta2),
    )


def _exact_step(U: Tensor, root: Tensor, A: Tensor) -> tuple[Tensor, Tensor]:
    """The leading left singular vectors and values of M = [U√λ, A] (Sec. 6): never A Aᵀ, which squares."""
    M = torch.cat([U * root.unsqueeze(-2), A], dim=-1)
    return left_singular(M, U.shape[-1])


def _subspace_step(U: Tensor, root: Tensor, A: Tensor) -> tuple[Tensor, Tensor]:
    """One warm-started block power step and a Rayleigh-Ritz projection for M Mᵀ (the route Sec. 6 hopes for).

    The projection is taken in the row space: with Q an orthonormal basis of Mᵀ U, the new factor
    is M Q, whose columns span C' U, the power step. It is the Nyström approximation of C' from U, and
    M Q Qᵀ Mᵀ ⪯ C' whatever Q is: B Bᵀ ⪯ C survives, and what is lost has a trace.
    """
    l = U.shape[-1]
    K = by_rows(product(A.mT, U))  # the lower rows of Mᵀ U; the upper ones are diag(√λ)
    square = root.square()
    L = gram_factor(K, plus=square)  # of Uᵀ C' U
    if L is None:
        Q = orthonormal(torch.cat([root.diag_embed(), K], dim=-2))
        T = U @ (root.unsqueeze(-1) * Q[..., :l, :]) + A @ Q[..., l:, :]
        return left_singular_by_products(T)
    Y = add_product(U * square.unsqueeze(-2), A, K)  # C' U
    return left_singular_by_products(over_transposed(Y, L))


_STEPS = {"exact": _exact_step, "subspace": _subspace_step}
SOLVERS = tuple(_STEPS)


@dataclass(frozen=True)
class _Residual:
    """D = U diag(λ) Uᵀ + A Aᵀ - Z diag(kept) Zᵀ ⪰ 0: what one subspace update loses, never formed."""

    U: Tensor
    lam: Tensor
    A: Tensor
    Z: Tensor
    kept: Tensor

    def apply(self, X: Tensor) -> Tensor:
        """X D for rows X (..., r, d)."""
        lam, kept = (values.to(X).unsqueeze(-2) for values in (self.lam, self.kept))
        # products with few columns run faster from the left, those with few rows from the right
        columns = self.A @ (X @ self.A).mT
        columns = columns + self.U @ (X @ self.U * lam).mT - self.Z @ (X @ self.Z * kept).mT
        return columns.mT.contiguous()


def _subspace_loss(
    D: _Residual, mass: Tensor, escaped: Tensor, probes: Tensor | None, failure_probability: float
) -> Tensor:
    """A bound on ‖D‖: from its trace or, with probes, the smaller of that and theirs."""
    d, l = D.Z.shape[-2:]
    eps = torch.finfo(D.Z.dtype).eps
    rounding = _NOISE * product_eps(D.A) + D.A.shape[-1] ** 0.5 * eps  # the latter of the sums of k squares
    trace = (mass - D.kept.sum(-1)).clamp_(min=0).add_(mass, alpha=rounding)
    # D is the cut on l directions, which counts once in the norm, and a positive rest
    traced = torch.maximum(escaped, torch.sub(trace, escaped, alpha=l - 1))
    if probes is None:
        return traced
    width = torch.maximum(escaped, torch.maximum(trace / d, eps * mass))
    return torch.minimum(traced, norm_bound(D.apply, probes, width, failure_probability))


def rounding(sketch: Sketch, dtype: torch.dtype) -> Tensor:
    """What a basis rounded to ``dtype`` may change in B Bᵀ."""
    return _ROUNDING[dtype] * torch.finfo(dtype).eps * sketch.eigenvalues[..., 0]


def exchange_error(sketch: Sketch, basis: Tensor) -> Tensor:
    """A bound on how much B Bᵀ changes when ``basis`` takes U's place: 2 ‖E‖ ‖B‖ + ‖E‖² for E = B' - B."""
    E = (basis - sketch.basis).double() * sketch.eigenvalues.sqrt().unsqueeze(-2)
    size = (E.mT @ E).abs().sum(-1).amax(-1).sqrt()  # no norm of EᵀE is above its largest row sum
    return size * (2 * sketch.eigenvalues[..., 0].sqrt() + size)


def merge(first: Sketch, second: Sketch) -> Sketch:
    """The sketch of both streams together, at the first one's rank; masses and bounds add up."""
    both = update(first, second.factor())
    return replace(
        both,
        escaped_mass=both.escaped_mass + second.escaped_mass,
        error_bound=both.error_bound + second.error_bound,
    )

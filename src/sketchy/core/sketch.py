"""Frequent Directions: B Bᵀ = U diag(λ) Uᵀ stands in for a d x d covariance C (Alg. 1, Sec. 4.3).

One update replaces C by β₂ C + A Aᵀ, and B Bᵀ by the leading l eigendirections of
C' = β₂ B Bᵀ + A Aᵀ, all lowered by the l-th eigenvalue; what was cut is added up in ρ.

Gradients may be float32; squared quantities (eigenvalues, masses, bounds) are float64 always:
they are l numbers, and they leave float32's range when gradients reach 1e-20 or 1e20.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from sketchy.core.linalg import (
    certain,
    divide,
    extreme_scale,
    fill,
    frobenius,
    gaussian,
    gram_factors,
    left_singular,
    left_singular_by_products,
    norm_bound,
    orthonormal,
)
from sketchy.core.products import add_product, by_rows, over_transposed, product, product_eps
from sketchy.core.ragged import constants, joined, parted

# What rounding leaves of a zero singular value, relative to the largest and in units of eps. At or
# below it a direction counts as empty.
NOISE = 10.0
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
    (new,) = update_all(
        [sketch],
        [A],
        beta2=beta2,
        solver=solver,
        probes=probes,
        failure_probability=failure_probability,
        norms=None if norm is None else [norm],
    )
    return new


def update_all(
    sketches: Sequence[Sketch],
    As: Sequence[Tensor],
    *,
    beta2: float = 1.0,
    solver: str = "exact",
    probes: Tensor | None = None,
    failure_probability: float = 1e-6,
    norms: Sequence[Tensor] | None = None,
) -> list[Sketch]:
    """`update` for several stacks, of one rank and dtype and any d and k: small matrices go in one batch.

    Stacks (S, d, k), unless there is only one.
    """
    Us = [sketch.basis for sketch in sketches]
    dtype, eps = Us[0].dtype, torch.finfo(Us[0].dtype).eps
    lam = beta2 * joined([sketch.eigenvalues for sketch in sketches])
    norm = joined([frobenius(A) for A in As] if norms is None else norms)
    scale = extreme_scale(torch.maximum(norm, lam[..., 0].sqrt()), As[0].dtype)
    if scale is not None:  # from here on, everything is in units of the scale
        parts = zip(As, parted(scale, As), strict=True)
        As = [A if certain(part == 1) else divide(A, part) for A, part in parts]
        lam, norm = lam / scale.square().unsqueeze(-1), norm / scale

    Zs, sigma = _STEPS[solver](Us, lam.sqrt().to(dtype), As)
    sigma = sigma.double()
    live = sigma > NOISE * eps * sigma[..., :1]
    if not certain(live):
        Zs = [Z if certain(l) else fill(Z, l) for Z, l in zip(Zs, parted(live, Zs), strict=True)]
        sigma = sigma * live
    cut = sigma[..., -1:]  # √λ_l
    kept = (sigma - cut) * (sigma + cut)  # Alg. 1, line 5; keeps digits that σ² - c² drops
    lost = escaped = cut.squeeze(-1).square()
    rounding = [_ROUNDING[dtype] * product_eps(A) for A in As]
    if solver == "subspace":
        rounding = [r + max(A.shape[-2:]) ** 0.5 * eps for r, A in zip(rounding, As, strict=True)]
        probed = None
        if probes is not None:
            (U,), (A,), (Z,) = Us, As, Zs
            D = _Residual(U, lam, A, Z, kept)
            probed = partial(norm_bound, D.apply, probes, failure_probability=failure_probability)
        lost = _subspace_loss(As, lam.sum(-1) + norm.square(), kept, escaped, probed)
    lost = torch.addcmul(lost, sigma[..., 0].square(), constants(rounding, As))

    if scale is not None:
        square = scale.square()
        kept, escaped, lost = kept * square.unsqueeze(-1), escaped * square, lost * square
    masses, bounds = (
        torch.add(new, joined([getattr(sketch, name) for sketch in sketches]), alpha=beta2)
        for new, name in ((escaped, "escaped_mass"), (lost, "error_bound"))
    )
    return [
        Sketch(*parts) for parts in zip(Zs, *(parted(x, As) for x in (kept, masses, bounds)), strict=True)
    ]


def _exact_step(Us: Sequence[Tensor], root: Tensor, As: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
    """The leading left singular vectors and values of M = [U√λ, A] (Sec. 6): never A Aᵀ, which squares."""
    found = [
        left_singular(torch.cat([U * r.unsqueeze(-2), A], dim=-1), U.shape[-1])
        for U, r, A in zip(Us, parted(root, Us), As, strict=True)
    ]
    return [U for U, _ in found], joined([sigma for _, sigma in found])


def _subspace_step(Us: Sequence[Tensor], root: Tensor, As: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
    """One warm-started block power step and a Rayleigh-Ritz projection for M Mᵀ (the route Sec. 6 hopes for).

    The projection is taken in the row space: with Q an orthonormal basis of Mᵀ U, the new factor
    is M Q, whose columns span C' U, the power step. It is the Nyström approximation of C' from U, and
    M Q Qᵀ Mᵀ ⪯ C' whatever Q is: B Bᵀ ⪯ C survives, and what is lost has a trace.
    """
    # the lower rows of Mᵀ U; the upper ones are diag(√λ)
    Ks = [by_rows(product(A.mT, U)) for U, A in zip(Us, As, strict=True)]
    factors = gram_factors(Ks, plus=root.square())  # of Uᵀ C' U
    Ts = []
    for U, r, A, K, L in zip(Us, parted(root, Us), As, Ks, factors, strict=True):
        if L is None:
            Q = orthonormal(torch.cat([r.diag_embed(), K], dim=-2))
            l = U.shape[-1]
            Ts.append(U @ (r.unsqueeze(-1) * Q[..., :l, :]) + A @ Q[..., l:, :])
        else:
            Ts.append(over_transposed(add_product(U * r.square().unsqueeze(-2), A, K), L))  # C' U L⁻ᵀ
    return left_singular_by_products(Ts)


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
    As: Sequence[Tensor],
    mass: Tensor,
    kept: Tensor,
    escaped: Tensor,
    probed: Callable[[Tensor], Tensor] | None,
) -> Tensor:
    """A bound on ‖D‖ of each `_Residual`: from its trace or, with probes, the smaller of that and theirs."""
    eps = torch.finfo(As[0].dtype).eps
    # the latter of the sums of k squares
    rounding = [NOISE * product_eps(A) + A.shape[-1] ** 0.5 * eps for A in As]
    trace = (mass - kept.sum(-1)).clamp_(min=0).addcmul_(mass, constants(rounding, As))
    # D is the cut on l directions, which counts once in the norm, and a positive rest
    traced = torch.maximum(escaped, torch.sub(trace, escaped, alpha=kept.shape[-1] - 1))
    if probed is None:
        return traced
    width = torch.maximum(escaped, torch.maximum(trace / As[0].shape[-2], eps * mass))
    return torch.minimum(traced, probed(width))


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

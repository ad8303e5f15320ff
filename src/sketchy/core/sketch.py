"""Frequent Directions: B Bᵀ = U diag(λ) Uᵀ approximates a d x d covariance C (Alg. 1, Sec. 4.3).

One update replaces C by β₂ C + A Aᵀ. It replaces B Bᵀ by the leading l eigenvectors of C' = β₂ B Bᵀ + A Aᵀ,
and subtracts the l-th eigenvalue from all l eigenvalues. ρ is the (discounted) sum of what was subtracted.

Gradients may be float32. Squared quantities (eigenvalues, masses, bounds) are always float64: they are only
l numbers, and they leave float32's range when gradients reach 1e-20 or 1e20.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sketchy.core import certificate, directions
from sketchy.core.cholesky_qr import NOISE, PASSES, SHIFT
from sketchy.core.extremes import divide, extreme_scale, frobenius, power_of_two
from sketchy.core.linalg import (
    fill,
    gaussian,
)
from sketchy.core.spread import Spread, size
from sketchy.core.tasks import Request, Task, Unread, readable, run

if TYPE_CHECKING:
    from sketchy.core.whitening import Whitened

MOST = 300  # units are at most 2^±MOST: squares of them, and of float32 numbers divided by them, fit float64


_VALUES = ("eigenvalues", "escaped_mass", "error_bound")  # the fields of a sketch beside its basis


@dataclass(frozen=True)
class Sketch:
    """State of Frequent Directions on a d x d covariance (Alg. 1)."""

    basis: Tensor  # U, (..., d, l): orthonormal columns, leading first
    eigenvalues: Tensor  # λ, (..., l): of B Bᵀ = U diag(λ) Uᵀ, descending, the last is 0
    escaped_mass: Tensor  # ρ, (...): discounted sum of the eigenvalues that were subtracted
    error_bound: Tensor  # (...): certified bound on the operator norm of C - B Bᵀ
    spread: Spread | None = None  # of the rows of U, if some of them lie on other ranks

    @property
    def dim(self) -> int:
        return size(self.basis.shape[-2], self.spread)

    @property
    def rank(self) -> int:
        return self.basis.shape[-1]

    @property
    def tensors(self) -> dict[str, Any]:
        """What has to be stored, by name."""
        return {name: value for name, value in vars(self).items() if name != "spread"}

    def factor(self) -> Tensor:
        """B (..., d, l), in gradient units."""
        return self.basis * self.eigenvalues.sqrt().to(self.basis).unsqueeze(-2)


def empty(
    dim: int,
    rank: int,
    *,
    batch: tuple[int, ...] = (),
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Sketch:
    """The empty sketch, B₀ = 0 (Alg. 1). ``rank`` is clipped to ``dim``."""
    rank = min(rank, dim)
    U = gaussian(dim, rank, seed=0, like=torch.empty(0, dtype=dtype, device=device))
    zero = torch.zeros(batch, dtype=torch.float64, device=device)
    # stored by rows, as after an update, so that steps after loading a checkpoint round in the same way
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

    ``A``: (..., d, k), any k >= 1, with the sketch's leading dimensions. ``norm``: ‖A‖ (...), float64, if it
    is known. ``probes``: Gaussian (r, d), independent of the stream. They give the subspace solver a sharper
    error bound, which is wrong with probability at most ``failure_probability``. Without probes its error
    bound comes from traces only.

    Cost: O(d (l + k) min(d, l + k)) by an SVD (exact), or O(d k l) by matrix products, which are faster
    (subspace).
    """
    probing = None if probes is None else (probes, failure_probability)
    return run(update_task(sketch, A, beta2=beta2, solver=solver, norm=norm, probing=probing))


def update_task(
    sketch: Sketch,
    A: Tensor,
    *,
    beta2: float,
    solver: str,
    norm: Tensor | None = None,
    probing: tuple[Tensor, float] | None = None,
    whitened: "Whitened | None" = None,
    columns: Spread | None = None,
) -> Task[Sketch]:
    """`update` as a task (`core.tasks`): the small matrices of several sketches (S, d, l) form one batch.

    Alg. 1 is homogeneous: dividing A by s divides B Bᵀ by s². So very large or small streams are first
    divided by a power of two. With ``whitened`` (subspace solver, without probes), A W takes the place of A,
    and ``norm`` is ‖A W‖. ``columns``: the spread of A's columns. If A is spread, ``norm`` must be given, and
    the solver is subspace.
    """
    norm = frobenius(A) if norm is None else norm
    scale = yield from extreme_scale(norm, sketch.eigenvalues[..., 0], beta2, A.dtype)
    if scale is None:
        return (yield from _fd_update(sketch, A, norm, beta2, solver, probing, whitened, columns, None))
    noise = () if whitened is None else (whitened.noise,)
    lam, norm, zero, *noise = yield Request(_divided, (sketch.eigenvalues, norm, scale, *noise))
    unit = Sketch(sketch.basis, lam, zero, zero, sketch.spread)
    if readable(A) or solver == "exact" or probing is not None:
        A, over = divide(A, scale), None
    else:
        over = scale  # to divide products with thin matrices instead saves two passes over A
    whitened = None if whitened is None else (yield from whitened.divided(scale, *noise))
    new = yield from _fd_update(unit, A, norm, beta2, solver, probing, whitened, columns, over)
    found = new.eigenvalues, new.escaped_mass, new.error_bound
    past = sketch.escaped_mass, sketch.error_bound
    values = yield Request(_multiplied, (*found, *past, scale), options={"beta2": beta2})
    return replace(sketch, basis=new.basis, **dict(zip(_VALUES, values, strict=True)))


def _divided(eigenvalues: Tensor, norm: Tensor, scale: Tensor, *noise: Tensor) -> tuple[Tensor, ...]:
    """λ / scale², ‖A‖ / scale, and zeros for past masses, which may be of any size and are added later.

    ``noise`` is divided by the scale, too.
    """
    zero = torch.zeros_like(scale)
    return eigenvalues / scale.square().unsqueeze(-1), norm / scale, zero, *(x / scale for x in noise)


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
    """λ, ρ and error bound of the unscaled stream, with past masses added."""
    square = scale.square()
    return lam * square.unsqueeze(-1), beta2 * old_mass + mass * square, beta2 * old_bound + bound * square


def _fd_update(
    sketch: Sketch,
    A: Tensor,
    norm: Tensor,
    beta2: float,
    solver: str,
    probing: tuple[Tensor, float] | None,
    whitened: "Whitened | None",
    columns: Spread | None,
    over: Tensor | None,
) -> Task[Sketch]:
    """FD-update (Alg. 1) of a stream of moderate size, with A / ``over`` (...) if it is given."""
    spreads = sketch.spread, columns
    U, old = sketch.basis, (sketch.eigenvalues, sketch.escaped_mass, sketch.error_bound)
    decay = {"beta2": beta2}
    weights, root = yield Request(_decayed, (sketch.eigenvalues,), options={**decay, "dtype": U.dtype})
    # Alg. 1, lines 3-4: leading directions of C'
    if solver == "exact":
        found, doubt = directions.exact(U, root, A, spreads), None
    else:
        T, doubt = yield from directions.power_step(U, weights, root, A, whitened, spreads, over)
        found = yield from directions.POWER[solver](T, spreads)
    Z, sigma = found.vectors, found.values
    shape = sketch.dim, size(A.shape[-1], columns)
    rounding = certificate.rounding(A, shape, traced=solver != "exact")
    noise = None if whitened is None else whitened.noise
    all_errors = {"noise": noise, "doubt": doubt, "second_doubt": found.doubt, "apart": found.apart}
    errors = {name: x for name, x in all_errors.items() if x is not None}
    tensors, names = (sigma, norm, *old, *errors.values()), (*errors,)
    kept, mass, bound, live, known = yield Request(_cut, tensors, rounding, {**decay, "names": names})
    if found.doubt is not None:
        Z = yield from fill(Z, live, spreads, by_products=True)
    elif known is None or not all(yes for (yes,) in known):
        Z = yield from fill(Z, live, spreads)
    if probing is not None and solver != "exact":
        D = certificate.Residual(U, beta2 * sketch.eigenvalues, A, Z, kept)
        sharp = certificate.probed_loss(D, norm, sigma.double(), rounding, *probing)
        bound = torch.minimum(bound, beta2 * sketch.error_bound + sharp)
    return Sketch(Z, kept, mass, bound, sketch.spread)


def _decayed(eigenvalues: Tensor, *, beta2: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """β₂ λ and √(β₂ λ) in the dtype of the basis. The root is rounded, as in M = [U √(β₂ λ), A] of C'."""
    root = (beta2 * eigenvalues).sqrt().to(dtype)
    return root.square(), root


def _cut(
    sigma: Tensor,
    norm: Tensor,
    eigenvalues: Tensor,
    mass: Tensor,
    bound: Tensor,
    *others: Any,
    beta2: float,
    names: tuple[str, ...] = (),
) -> tuple[Tensor, Tensor, Tensor, Tensor, Unread]:
    """The new λ, ρ and error bound, and which σ are live (not noise). σ (..., l): eigenvalues of C'^(1/2).

    ``others``: the tensors (...) called ``names``, and `certificate.rounding`. Rounding errors are relative
    to the largest σ, or to ``noise`` if it is larger, and grow with the doubts of `cholesky_qr`. ``apart``
    adds to the error.
    """
    errors, rounding = dict(zip(names, others, strict=False)), others[len(names) :]
    top, doubt = sigma[..., 0].double(), None
    if "noise" in errors:
        top = torch.maximum(top, errors["noise"])
    if "second_doubt" in errors:
        doubt = errors["second_doubt"]
        doubt = torch.maximum(doubt, errors["doubt"]) if "doubt" in errors else doubt
        shift = SHIFT * torch.finfo(sigma.dtype).eps
        rounding = tuple(doubt * (PASSES * (x + shift)) for x in rounding)
    threshold = NOISE * torch.finfo(sigma.dtype).eps * (top if doubt is None else doubt * top)
    live = sigma > threshold.unsqueeze(-1)
    sigma = sigma.double() * live
    cut = sigma[..., -1:]  # √λ_l
    kept = (sigma - cut) * (sigma + cut)  # Alg. 1, line 5; more accurate than σ² - c²
    escaped = cut.squeeze(-1).square()
    lost = certificate.loss(beta2 * eigenvalues.sum(-1) + norm.square(), top, kept, escaped, rounding)
    lost = lost + errors["apart"] if "apart" in errors else lost
    return (
        kept,
        torch.add(escaped, mass, alpha=beta2),
        lost.add_(bound, alpha=beta2),
        live,
        Unread((live.all(-1),)),
    )


SOLVERS = ("exact", "subspace")  # of streams; training has sweeps, too


def update_by_units(sketch: Sketch, A: Tensor, unit: Tensor, *, beta2: float = 1.0, **options: Any) -> Sketch:
    """`update` with unit * A, for powers of two (...).

    unit * A may be out of the range of A's dtype, or near its least numbers, which have few digits.
    """
    zero = torch.zeros_like(unit)
    lam, *_ = _divided(sketch.eigenvalues, zero, unit)
    new = update(Sketch(sketch.basis, lam, zero, zero), A, beta2=beta2, **options)
    found = new.eigenvalues, new.escaped_mass, new.error_bound
    past = sketch.escaped_mass, sketch.error_bound
    return Sketch(new.basis, *_multiplied(*found, *past, unit, beta2=beta2))


def merge(first: Sketch, second: Sketch) -> Sketch:
    """The sketch of both streams together, with the rank of the first. Masses and error bounds add up."""
    lam = second.eigenvalues
    unit = power_of_two(lam[..., 0].sqrt(), first.eigenvalues[..., 0], beta2=1.0, most=MOST)
    other = replace(second, eigenvalues=lam / unit.square().unsqueeze(-1))
    both = update_by_units(first, other.factor(), unit)
    return replace(
        both,
        escaped_mass=both.escaped_mass + second.escaped_mass,
        error_bound=both.error_bound + second.error_bound,
    )

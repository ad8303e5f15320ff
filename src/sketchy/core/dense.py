"""The full covariance, stored by eigenvectors and eigenvalues: a sketch of rank d that loses nothing.

It is Shampoo's factor in the record that sketches use: C = U diag(λ) Uᵀ, ρ = 0. For an axis that is not
longer than the rank, it is smaller and cheaper than a sketch, and it is exact.
"""

import torch
from torch import Tensor

from sketchy.core.cholesky_qr import NOISE, swept
from sketchy.core.extremes import divide, extreme_scale, frobenius
from sketchy.core.sketch import Sketch
from sketchy.core.spread import Spread, Spreads, part, size, solved, total, whole
from sketchy.core.tasks import Task, run
from sketchy.core.tuned.sizes import COLUMNS_IN_DOUBLE

# What rounding the basis adds to the error of one update, relative to ‖C‖ and in units of the basis' eps. The
# value has a safety margin.
_ROUNDING = 16.0


def update(sketch: Sketch, A: Tensor, *, beta2: float = 1.0, norm: Tensor | None = None) -> Sketch:
    """β₂ C + A Aᵀ for A (..., d, k) and a d x d covariance C, in float64. O(d² (d + k)).

    In float32, rounding errors would look like small eigenvalues where the true ones are zero, and an inverse
    root would amplify them. ``norm``: ‖A‖ (...), float64, if it is known.
    """
    return run(update_task(sketch, A, beta2=beta2, norm=norm))


def update_task(
    sketch: Sketch,
    A: Tensor,
    *,
    beta2: float,
    norm: Tensor | None = None,
    columns: Spread | None = None,
    sweeps: bool = False,
) -> Task[Sketch]:
    """`update` as a task. ``columns``: the spread of A's columns. If A is spread, ``norm`` must be given.

    If rows of A lie elsewhere, they are gathered: A Aᵀ is no sum over such parts. With ``sweeps``, the basis
    before is rotated by `cholesky_qr.swept`, and no eigenproblem is solved. What the sweeps leave is lost,
    and counts as error.
    """
    own = sketch.spread
    A = yield from whole(A, own)
    U, lam = (yield from whole(sketch.basis, own)).double(), beta2 * sketch.eigenvalues
    norm = frobenius(A) if norm is None else norm
    scale = yield from extreme_scale(norm, sketch.eigenvalues[..., 0], beta2, A.dtype)
    if scale is not None:
        A, lam = divide(A, scale), lam / scale.square().unsqueeze(-1)
    # C, or with sweeps Uᵀ C U
    past = lam.diag_embed() if sweeps else (U * lam.unsqueeze(-2)) @ U.mT
    C = past if columns is None else torch.zeros_like(past)
    for some in A.split(COLUMNS_IN_DOUBLE, dim=-1):
        some = U.mT @ some.double() if sweeps else some.double()
        C.add_(some @ some.mT)
    C = C if columns is None else past.add_((yield from total(C, columns)))
    problem, given = (_rotated, (U, C)) if sweeps else (_spectrum, (C,))
    if own is columns is None and not sweeps:
        theta, Z, rest = _spectrum(C)
    else:
        theta, Z, rest = yield from solved((own, columns), problem, *given)
    if scale is not None:
        theta, rest = theta * scale.square().unsqueeze(-1), rest * scale.square()
    error = beta2 * sketch.error_bound + rest
    return _record(sketch, theta, Z, size(A.shape[-1], columns), error)


def add_task(C: Tensor, A: Tensor, beta2: float, spreads: Spreads) -> Task[Tensor]:
    """β₂ C + A Aᵀ as a matrix (..., d, d) in float64, to be decomposed later. O(d² k).

    ``spreads``: of the rows and columns of A. Of spread rows, C has those that lie here.
    """
    rows, columns = spreads
    others = yield from whole(A, rows)
    added = torch.zeros_like(C)
    for some, all_ in zip(A.split(COLUMNS_IN_DOUBLE, -1), others.split(COLUMNS_IN_DOUBLE, -1), strict=True):
        added.add_(some.double() @ all_.double().mT)
    return (yield from total(added, columns)).add_(C, alpha=beta2)


def decompose_task(sketch: Sketch, C: Tensor, *, terms: int, columns: Spread | None) -> Task[Sketch]:
    """The record of the covariance C, in the place of ``sketch``. O(d³).

    ``terms``: columns that C got since it was decomposed. ``columns``: the spread of these columns.
    """
    own = sketch.spread
    C = yield from whole(C, own)
    C = C.clone()  # it is overwritten
    here = own is columns is None
    theta, Z, rest = _spectrum(C) if here else (yield from solved((own, columns), _spectrum, C))
    return _record(sketch, theta, Z, terms, rest)


def _record(sketch: Sketch, theta: Tensor, Z: Tensor, terms: int, error: Tensor) -> Sketch:
    """U diag(θ) Uᵀ in the place of a sketch. ``terms``: columns that were added; ``error``: from before."""
    eps, eps64 = (torch.finfo(dtype).eps for dtype in (sketch.basis.dtype, theta.dtype))
    d = sketch.dim
    # at or below this share of the largest, an eigenvalue is a rounding error (of the basis, or from here)
    empty = max((NOISE * eps) ** 2, NOISE * d**0.5 * eps64)
    theta = theta * (theta > empty * theta[..., :1])
    rounding = _ROUNDING * eps + 2 * (d + terms) ** 0.5 * eps64
    return Sketch(
        basis=part(Z.to(sketch.basis.dtype), sketch.spread),
        eigenvalues=theta,
        escaped_mass=torch.zeros_like(sketch.escaped_mass),
        error_bound=error + rounding * theta[..., 0],
        spread=sketch.spread,
    )


def _spectrum(C: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The eigenvalues of C, the largest first, its eigenvectors, and zeros (...). C is overwritten."""
    theta, Z = torch.linalg.eigh(C.neg_())
    return theta.neg_().clamp_(min=0), Z, theta.new_zeros(theta.shape[:-1])


def _rotated(U: Tensor, M: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same for C = U M Uᵀ, but nearly, and what is lost (...). M is overwritten."""
    Z, theta, rest = swept(U, M)
    L = torch.linalg.cholesky_ex(Z.mT @ Z).L  # U was rounded
    return theta, torch.linalg.solve_triangular(L, Z.mT, upper=False).mT, rest

"""Orthonormal bases and singular vectors by matrix products and Cholesky factors, without reading a value.

An accelerator would have to wait for a value, and has no fast QR. A thin matrix K (S, d, l) is only
multiplied here, in its own dtype. Its Gram matrix KᵀK (S, l, l) is factored in float64.

If columns of K are nearly dependent, their Gram matrix is nearly singular, and rounding errors of size eps
are amplified by 1 / sine, the sine of the angle between a column and the span of those before it. Therefore
columns are first scaled to length 1, and those with a very small sine are dropped. What rounding may do to
the others is their *doubt* (S,): 1 if all sines are large, as they are with a warm start.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from sketchy.core.certificate import product_eps
from sketchy.core.spread import Spread, Spreads, size, solved, total
from sketchy.core.tasks import Task, launch

# Above this sine, Cholesky-QR lost at most 50 eps of orthonormality in trials. In warm-started iterations the
# sine stays above 0.7.
SAFE_SINE = 0.3
# Rounding leaves about l eps / sine² of the square of a dependent column, in trials at most a fiftieth of it.
# Where this could be as much as sine², columns are dropped: below 0.02 for 64 float32 columns.
_LEFT = 1 / 50

# Rounding errors of a zero singular value, relative to the largest one and in units of eps. At or below this,
# a direction counts as empty.
NOISE = 10.0

# Rounding errors of all passes together, in units of those of one. In 17,000 updates of random streams it was
# 2.7 at most.
PASSES = 4.0

_ROOM = 32  # so many dimensions beside all columns are much room for random ones
SHIFT = 16.0  # in units of eps: how negative rounding makes a Gram matrix with unit diagonal at most

_SWEEPS = 2  # of `swept`
_SINGULAR, _LOST = 1e-8, 1e-12  # of the trace: a shift against singular matrices, and what rounding changes
_NOTHING = 1e-100  # below it, an eigenvalue of a stream of moderate size is zero
_TINY = 1e-14  # of the trace: a shift that makes float64 rounding errors positive


class Singular(NamedTuple):
    """Left singular vectors and values of T (S, d, l), descending."""

    vectors: Tensor  # Z (S, d, l); those of very small values may be zero
    values: Tensor  # σ (S, l)
    doubt: Tensor | None = None  # (S,); None: no doubt
    apart: Tensor | None = None  # (S,): a bound on ‖T Tᵀ - Z diag(σ²) Zᵀ‖, if it is more than rounding


def exactly(A: Tensor, B: Tensor) -> Tensor:
    """A @ B with all digits of its dtype, also if torch may use TF32 or bfloat16 for such products."""
    if product_eps(A) > torch.finfo(A.dtype).eps:
        return (A.double() @ B.double()).to(A.dtype)
    return A @ B


def _gram(K: Tensor) -> Tensor:
    return exactly(K.mT, K)


def gram(K: Tensor, spread: Spread | None) -> Task[Tensor]:
    """KᵀK (S, l, l), for K whose rows may be spread."""
    return (yield from total((yield from launch(_gram, K)), spread))


def orthonormal_below(
    K: Tensor, root: Tensor, spreads: Spreads = (None, None)
) -> Task[tuple[Tensor, Tensor, Tensor]]:
    """Orthonormalise the columns of [diag(root); K], for K (S, d, l) and root (S, l).

    Return the upper and the lower part, and the doubt (S,). Columns that depend on those before them become
    zero. There are two passes, as one finds only columns with a sine above √eps. ``spreads``: of the rows of
    K, and of another axis.
    """
    W = yield from gram(K, spreads[0])
    first, above = yield from solved(spreads, _first_inverse, W, root)
    Q = yield from launch(exactly, K, first)
    W = yield from gram(Q, spreads[0])
    second, above, doubt = yield from solved(spreads, _second_inverse, W, above)
    return above, (yield from launch(exactly, Q, second)), doubt


def _first_inverse(W: Tensor, root: Tensor) -> tuple[Tensor, Tensor]:
    """R⁻¹ and diag(root) R⁻¹ (S, l, l). The shift is large for columns that are nearly dependent."""
    eps, W64, root = torch.finfo(W.dtype).eps, W.double(), root.double()
    W64.diagonal(dim1=-2, dim2=-1).add_(root.square())
    inverse = _divided_by(*_scaled_factor(W64, _negligible(W64, eps), SHIFT * eps))
    return inverse.to(W.dtype), (root.unsqueeze(-1) * inverse).to(W.dtype)


def _second_inverse(W: Tensor, above: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """R⁻¹ and ``above`` R⁻¹ (S, l, l), and the doubt, where W is the Gram matrix of the lower part."""
    above = above.double()
    inverse, doubt, _ = _inverse_factor(W.double() + above.mT @ above, W)
    return inverse.to(W.dtype), (above @ inverse).to(W.dtype), doubt


def _negligible(W: Tensor, eps: float) -> Tensor:
    """Which columns (S, l) are as short as rounding errors of the longest one, by their Gram matrix."""
    squares = W.diagonal(dim1=-2, dim2=-1)
    return squares <= (NOISE * eps) ** 2 * squares.amax(-1, keepdim=True)


def _inverse_factor(W: Tensor, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """R⁻¹, the doubt, and which columns are dropped (S, l), for a Gram matrix W, float64.

    W has the rounding errors of the dtype of ``like``.
    """
    eps = torch.finfo(like.dtype).eps
    shift, dropped = SHIFT * eps, _negligible(W, eps)
    _, L = _scaled_factor(W, dropped, shift)
    # a dropped column would spoil those after it: so it must not take part
    dropped = dropped | (L.diagonal(dim1=-2, dim2=-1) <= (_LEFT * W.shape[-1] * eps) ** 0.25)
    scale, L = _scaled_factor(W, dropped, shift)
    sines = L.diagonal(dim1=-2, dim2=-1).masked_fill(dropped, 1.0)
    # columns are made longer as the shift makes L, so it has no effect on orthogonal ones
    return _divided_by(scale * (1 + shift) ** 0.5, L), (SAFE_SINE / sines.amin(-1)).clamp(min=1), dropped


def _scaled_factor(W: Tensor, dropped: Tensor, shift: float) -> tuple[Tensor, Tensor]:
    """What columns are multiplied by (S, l), zero for dropped ones, and L (S, l, l).

    L Lᵀ is the Gram matrix of the scaled columns, plus the shift, which makes it positive. Dropped columns
    are unit vectors in it.
    """
    scale = W.diagonal(dim1=-2, dim2=-1).masked_fill(dropped, torch.inf).rsqrt()
    scaled = scale.unsqueeze(-1) * W * scale.unsqueeze(-2)
    scaled.diagonal(dim1=-2, dim2=-1).add_(dropped).add_(shift)
    return scale, torch.linalg.cholesky_ex(scaled).L


def _divided_by(scale: Tensor, L: Tensor) -> Tensor:
    """diag(scale) L⁻ᵀ."""
    return scale.unsqueeze(-1) * _inverse_transposed(L)


def _inverse_transposed(L: Tensor) -> Tensor:
    unit = torch.eye(L.shape[-1], dtype=L.dtype, device=L.device).expand_as(L)
    return torch.linalg.solve_triangular(L.mT, unit, upper=True)


def orthonormal_by_products(M: Tensor, spreads: Spreads) -> Task[Tensor]:
    """`linalg.orthonormal` for M (S, d, l), whose columns are nearly orthonormal, or random.

    Random columns are far from dependent, if there is much room for them. Else there are two passes.
    """
    room = size(M.shape[-2], spreads[0]) - M.shape[-1]
    for _ in range(1 if room >= max(M.shape[-1] // 2, _ROOM) else 2):
        W = yield from gram(M, spreads[0])
        M = yield from launch(exactly, M, (yield from solved(spreads, _inverse_of_all, W)))
    return M


def _inverse_of_all(W: Tensor) -> Tensor:
    """R⁻¹ for a Gram matrix of columns of moderate length that are all kept."""
    W64 = W.double()
    W64.diagonal(dim1=-2, dim2=-1).add_(torch.finfo(W.dtype).eps)
    return _inverse_transposed(torch.linalg.cholesky_ex(W64).L).to(W.dtype)


def left_singular_by_eigh(T: Tensor, spreads: Spreads) -> Task[Singular]:
    """Left singular vectors and values of T (S, d, l), d >= l."""
    W = yield from gram(T, spreads[0])
    V, sigma, doubt = yield from solved(spreads, _by_eigh, W)
    return Singular((yield from launch(exactly, T, V)), sigma, doubt)


def _by_eigh(W: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """V, σ and the doubt: T V are the left singular vectors of any T with TᵀT = W."""
    inverse, M, doubt = _inner_problem(W)
    theta, P = torch.linalg.eigh(M.neg_())
    return (inverse @ P).to(W.dtype), theta.neg_().clamp_(min=0).sqrt_().to(W.dtype), doubt


def left_singular_by_sweeps(T: Tensor, spreads: Spreads) -> Task[Singular]:
    """The same without an eigenproblem, by a fixed number of sweeps (`swept`)."""
    W = yield from gram(T, spreads[0])
    V, sigma, doubt, apart = yield from solved(spreads, _by_sweeps, W)
    return Singular((yield from launch(exactly, T, V)), sigma, doubt, apart)


def _by_sweeps(W: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    inverse, M, doubt = _inner_problem(W)
    V, values, apart = swept(inverse, M)
    return V.to(W.dtype), values.sqrt().to(W.dtype), doubt, apart


def _inner_problem(W: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """R⁻¹, QᵀT TᵀQ for Q = T R⁻¹, and the doubt, from W = TᵀT, for the columns of T that are not dropped.

    With parts of the others, Q QᵀT TᵀQ Qᵀ ⪯ T Tᵀ would not hold, and no trace would bound the error.
    """
    W64 = W.double()
    inverse, doubt, dropped = _inverse_factor(W64, W)
    R = (inverse.mT @ W64).masked_fill(dropped.unsqueeze(-2), 0.0)
    return inverse, R @ R.mT, doubt


def swept(V: Tensor, M: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rotate M (S, l, l), positive, towards its eigenvectors; return V times the rotations.

    Also returned are the diagonal of the rotated M, descending, and a bound (S,) on the norm of the rest. A
    diagonal entry that could be a rounding error is zero. A
    sweep is a step of QR iteration, in two Cholesky factors: M = L Lᵀ, LᵀL = K Kᵀ, M ← KᵀK, and the rotation
    is L K⁻ᵀ. What a sweep leaves decays with the ratios of eigenvalues. So directions are mixed only if their
    eigenvalues are similar, and a warm start has most of the rest.
    """
    # M + shift has the same eigenvectors, and a condition at which the rotations are orthogonal
    shift = _SINGULAR * M.diagonal(dim1=-2, dim2=-1).sum(-1, keepdim=True)
    M = M + shift.expand(M.shape[:-1]).diag_embed()
    for _ in range(_SWEEPS):
        L = _shifted_cholesky_(M)
        K = _shifted_cholesky_(L.mT @ L)
        V = V @ torch.linalg.solve_triangular(K, L.mT, upper=False).mT
        M = K.mT @ K
    values, order = (M.diagonal(dim1=-2, dim2=-1) - shift).sort(-1, descending=True)
    rest = M - M.diagonal(dim1=-2, dim2=-1).diag_embed()
    for _ in range(2):
        rest = rest @ rest
    # the norm of a symmetric E is at most ‖E⁴‖_F^(1/4), which is sharper than ‖E‖_F
    bound = torch.linalg.matrix_norm(rest).sqrt().sqrt()
    noise = _LOST * values.sum(-1)
    values = values * (values > noise.clamp(min=_NOTHING).unsqueeze(-1))
    return V.take_along_dim(order.unsqueeze(-2), -1), values, bound + 2 * noise


def _shifted_cholesky_(W: Tensor) -> Tensor:
    """The Cholesky factor of a float64 matrix that may be singular. W is overwritten."""
    squares = W.diagonal(dim1=-2, dim2=-1)
    squares.add_((_TINY * squares.sum(-1, keepdim=True)).clamp(min=torch.finfo(W.dtype).tiny))
    return torch.linalg.cholesky_ex(W).L

"""Linear algebra for sketches: Gram factors, thin SVD, orthonormal bases.

Everything is batched over leading dimensions. The cheap method (Cholesky-QR) is used only if its pivots show
that it is accurate. The pivots are read on the CPU only, where reading is free. On an accelerator, float32
uses a third method: products in float64, which are accurate for all float32 inputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from sketchy.core.spread import WHOLE, Spreads, part, size, solved, total, whole
from sketchy.core.tasks import Numbers, Request, Task, Unread, launch, readable
from sketchy.core.tuned.products import lower_gram, lower_gram_of_triangle

# Cholesky-QR loses about eps * cond² of orthonormality. A pivot divided by the length of its column is the
# sine of the angle between this column and the span of the columns before it. Above this value the loss was
# at most 50 eps in trials. In warm-started iterations the sine stays above 0.7.
_SAFE_SINE = 0.3

# If the ratio of the shortest to the longest column is smaller, squares of both don't fit float32's range.
_UNEQUAL = 1e-8

# In units of eps. If the ratio of two squared singular values is below it, an eigensolver of the same
# precision loses the smaller one.
_GRADED = 10.0

_SWEEPS = 2  # of `swept`
_SINGULAR, _LOST = 1e-8, 1e-12  # of the trace: a shift against singular matrices, and what rounding changes
_NOTHING = 1e-100  # below it, an eigenvalue of a stream of moderate size is zero

_SHIFT = 1e-14  # added to the diagonal of a float64 Gram matrix, relative to its trace


def gaussian(rows: int, columns: int, *, seed: int, like: Tensor) -> Tensor:
    """A (rows, columns) Gaussian matrix. It depends on the seed only, not on torch's defaults or device."""
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(rows, columns, generator=generator, dtype=torch.float64, device="cpu").to(like)


def scattered(rows: int, columns: int, *, like: Tensor) -> Tensor:
    """A (rows, columns) matrix of pseudo-random numbers in [-1, 1), the same on all devices.

    It is computed on the device, while `gaussian` copies from the host each time. The numbers are squares
    modulo a prime, and fit in 63 bits.
    """
    prime = 2**31 - 1
    x = i = torch.arange(1, rows * columns + 1, device=like.device)
    for multiplier in (48271, 69621, 16807):
        x = (x * x + multiplier * i) % prime
    return (x.double() * (2 / prime) - 1).to(like).reshape(rows, columns)


@dataclass(frozen=True, eq=False)
class Scattered(Request):
    """A request for a `scattered` (dim, l) matrix for the basis (..., d, l): one serves all, row by row."""

    joins: ClassVar[bool] = False
    dim: int = 0

    @property
    def key(self) -> Any:
        (U,) = self.tensors
        return Scattered, U.shape[-1], U.dtype, U.device

    @classmethod
    def answers(cls, requests: Sequence[Any], tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        (U,) = requests[0].tensors
        longest = scattered(max(request.dim for request in requests), U.shape[-1], like=U)
        return [longest[: request.dim] for request in requests]


def gram_factor(
    K: Tensor, plus: Tensor | None = None, spreads: Spreads = WHOLE
) -> Task[tuple[Tensor, bool] | None]:
    """The Cholesky factor L of Kᵀ K + diag(plus) for K (..., d, l), and whether its pivots are graded.

    ``plus``: (..., l). ``spreads``: of the rows of K, and of another axis if there is one. Return None if L
    cannot be trusted. That is so if the columns of K are nearly dependent: then those of K L⁻ᵀ may not be
    orthonormal to working precision. It is also so if the lengths of the columns differ so much that their
    squares don't fit float32's range. Pivots are graded if they differ so much that an eigensolver of this
    precision loses the small ones.
    """
    if not readable(K):
        return None
    added = () if plus is None else (plus,)
    W = yield from total(lower_gram(K), spreads[0])
    L, pivots = yield from solved(spreads, _cholesky_, W, *added, rank=K.shape[-1])
    return (L, _graded(pivots, L.dtype)) if _trusted(pivots) else None


def _cholesky_(W: Tensor, plus: Tensor | None = None, *, rank: int) -> tuple[Tensor, Unread]:
    """L (..., l, l), and the numbers that `_trusted` and `_graded` check."""
    squares = W.diagonal(dim1=-2, dim2=-1)[..., :rank]
    if plus is not None:
        squares.add_(plus)
    L, failed = torch.linalg.cholesky_ex(W)
    L = L[..., :rank, :rank]
    pivots = L.diagonal(dim1=-2, dim2=-1).square()
    sines = (pivots / squares).amin(-1)
    return L, Unread((failed, sines, *squares.aminmax(dim=-1), *pivots.aminmax(dim=-1)))


def _trusted(pivots: Numbers) -> bool:
    return pivots is not None and all(
        failed == 0 and squared_sine > _SAFE_SINE**2 and shortest > _UNEQUAL**2 * longest
        for failed, squared_sine, shortest, longest, *_ in pivots
    )


def _graded(pivots: Numbers, dtype: torch.dtype) -> bool:
    limit = _GRADED * torch.finfo(dtype).eps
    return pivots is None or any(low < limit * high for *_, low, high in pivots)


def orthonormal(M: Tensor) -> Tensor:
    """Orthonormalise the columns of M (..., d, l), d >= l, from the first one on, as Gram-Schmidt does.

    Signs are those of M's columns.
    """
    Q, R = torch.linalg.qr(M)
    return Q * torch.where(R.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(M).unsqueeze(-2)


def _gram_in_double(M: Tensor, above: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """M, or [above; M], in float64, and its Gram matrix."""
    D = M.double() if above is None else torch.cat([above.double(), M.double()], dim=-2)
    return D, D.mT @ D


def _divided_by(D: Tensor, L: Tensor, *, dtype: torch.dtype) -> Tensor:
    """D L⁻ᵀ."""
    return torch.linalg.solve_triangular(L, D.mT, upper=False).mT.to(dtype)


def _product_in_double(D: Tensor, V: Tensor, *, dtype: torch.dtype) -> Tensor:
    return (D @ V).to(dtype)


def _shifted_cholesky_(W: Tensor) -> Tensor:
    """The Cholesky factor of a float64 Gram matrix that may be singular. W is overwritten."""
    squares = W.diagonal(dim1=-2, dim2=-1)
    # larger than rounding errors of W, and smaller than float32's eps squared
    squares.add_((_SHIFT * squares.sum(-1, keepdim=True)).clamp(min=torch.finfo(W.dtype).tiny))
    return torch.linalg.cholesky_ex(W).L


def orthonormal_parts(M: Tensor, spreads: Spreads, above: Tensor | None = None) -> Task[Tensor]:
    """`orthonormal` for the matrix [above; M], whose rows may lie on several ranks, except those above.

    ``spreads``: see `gram_factor`. On an accelerator it is Cholesky-QR in float64, and only l x l matrices
    are sent. There, a column that depends on the columns before it (up to rounding) may be shorter than 1.
    """

    def joined(M: Tensor) -> Tensor:
        return M if above is None else torch.cat([above, M], dim=-2)

    if _in_double(M):
        if above is None or spreads[0] is None:
            D, W = yield from launch(_gram_in_double, *((M,) if above is None else (M, above)))
            W = yield from total(W, spreads[0])
        else:
            _, W = _gram_in_double(M)
            W = yield from total(W, spreads[0])
            W = W + _gram_in_double(above)[1]
            D = joined(M).double()
        L = yield from solved(spreads, _shifted_cholesky_, W)
        return (yield from launch(_divided_by, D, L, dtype=M.dtype))
    if spreads == WHOLE:
        return orthonormal(joined(M))
    Q = yield from solved(spreads, orthonormal, joined((yield from whole(M, spreads[0]))))
    if above is None:
        return part(Q, spreads[0])
    l = above.shape[-2]
    return torch.cat([Q[..., :l, :], part(Q[..., l:, :], spreads[0])], dim=-2)


def left_singular(M: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The leading ``rank`` left singular vectors and values of M (..., d, n), descending.

    It takes QR in the dtype of M, then the SVD of the square factor in float64. For float32 this is not
    slower than a float32 SVD, and about six times more accurate: the vectors of that are orthonormal to only
    ten eps.
    """
    if M.shape[-2] > M.shape[-1]:
        Q, R = torch.linalg.qr(M)
        U, sigma, _ = torch.linalg.svd(R.double())
        return Q @ U[..., :rank].to(M), sigma[..., :rank].to(M)
    R = torch.linalg.qr(M.mT, mode="r").R
    U, sigma, _ = torch.linalg.svd(R.mT.double())
    return U[..., :rank].to(M), sigma[..., :rank].to(M)


def nearly_singular(T: Tensor, spreads: Spreads = WHOLE) -> Task[tuple[Tensor, Tensor, Tensor]]:
    """`left_singular_by_products` without an eigenproblem: by a fixed number of sweeps (`swept`), in float64.

    Return (Z, σ, apart): orthonormal Z with ‖T Tᵀ - Z diag(σ²) Zᵀ‖ <= apart (...).
    """
    D, W = yield from launch(_gram_in_double, T)
    W = yield from total(W, spreads[0])
    V, values, apart = yield from solved(spreads, _swept_gram, W)
    Z = yield from launch(_product_in_double, D, V, dtype=T.dtype)
    return Z, values.sqrt().to(T.dtype), apart


def _swept_gram(W: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """V, σ² and ``apart`` for `nearly_singular`, from W = TᵀT: T V is orthonormal. W is overwritten."""
    L = _shifted_cholesky_(W)
    V = torch.eye(W.shape[-1], dtype=W.dtype, device=W.device).expand_as(W)
    return swept(torch.linalg.solve_triangular(L.mT, V, upper=True), L.mT @ L)


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


def left_singular_by_products(T: Tensor, spreads: Spreads = WHOLE) -> Task[tuple[Tensor, Tensor]]:
    """Left singular vectors and values of T (..., d, l), d >= l, mostly by matrix products.

    It takes Cholesky-QR, T = (T L⁻ᵀ) Lᵀ, then an l x l eigenproblem for Lᵀ L. If columns are nearly
    dependent, it takes the SVD instead. The result is as accurate as the SVD: to eps relative to the largest
    singular value. If squares would lose the small singular values, the eigenproblem is solved in float64. On
    an accelerator everything is in float64, from Tᵀ T. Vectors are orthonormal if their singular values are
    above rounding errors; `fill` replaces the others. ``spreads``: see `gram_factor`.
    """
    found = yield from gram_factor(T, spreads=spreads)
    if found is not None:
        L, graded = found
        V, sigma = yield from solved(spreads, _ritz, L, precision=torch.float64 if graded else T.dtype)
        return T @ V, sigma
    if _in_double(T):
        D, W = yield from launch(_gram_in_double, T)
        W = yield from total(W, spreads[0])
        V, sigma = yield from solved(spreads, _ritz_in_double, W, dtype=T.dtype)
        return (yield from launch(_product_in_double, D, V, dtype=T.dtype)), sigma
    T = yield from whole(T, spreads[0])  # it is thin
    if spreads == WHOLE:
        return left_singular(T, T.shape[-1])
    U, sigma = yield from solved(spreads, left_singular, T, rank=T.shape[-1])
    return part(U, spreads[0]), sigma


def _ritz(L: Tensor, *, precision: torch.dtype) -> tuple[Tensor, Tensor]:
    """V and σ: any T with TᵀT = L Lᵀ has the left singular vectors T V and the singular values σ."""
    # negative, so that the largest comes first; UPLO="U" of the transpose is 5 % faster than UPLO="L"
    theta, V = torch.linalg.eigh(lower_gram_of_triangle(L.to(precision)).neg_().mT, UPLO="U")
    V = torch.linalg.solve_triangular(L.mT, V.to(L.dtype), upper=True)
    return V, theta.neg_().clamp_(min=0).sqrt_().to(L.dtype)


def _ritz_in_double(W: Tensor, *, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The same as `_ritz`, but from W = TᵀT in float64."""
    theta, V = torch.linalg.eigh(W.neg())
    sigma = theta.neg_().clamp_(min=0).sqrt_()
    eps, tiny = torch.finfo(dtype).eps, torch.finfo(dtype).tiny
    return V / torch.maximum(sigma, (eps * sigma[..., :1]).clamp(min=tiny)).unsqueeze(-2), sigma.to(dtype)


def fill(U: Tensor, live: Tensor, spreads: Spreads = WHOLE) -> Task[Tensor]:
    """Replace the columns of orthonormal U (..., d, l) that are not ``live`` (..., l) by random ones.

    A direction without mass may be replaced by any other. A random direction has a component along every new
    gradient, so the next power step finds it. This makes the subspace solver's cold start exact. Live columns
    must come first; they do not change, up to rounding. ``spreads``: see `gram_factor`.
    """
    d = size(U.shape[-2], spreads[0])
    noise = part((yield Scattered(scattered, (U,), dim=d)), spreads[0])
    filled = yield from launch(_with_noise, U, live, noise.expand_as(U), size=d**-0.5)
    return (yield from orthonormal_parts(filled, spreads))


def _with_noise(U: Tensor, live: Tensor, noise: Tensor, *, size: float) -> Tensor:
    """U, and ``size`` times the noise in columns that are not ``live``."""
    return torch.where(live.unsqueeze(-2), U, noise * size)


def _in_double(x: Tensor) -> bool:
    """Whether to compute in float64. It is needed for float32 if no value can be read to check accuracy."""
    return x.dtype == torch.float32 and not readable(x)

"""Small linear algebra under the sketch: Gram factors, thin SVD, orthonormal bases.

Everything is batched over leading dimensions. A cheap way (Cholesky-QR) is taken only where numbers that can
be read for free show that it is safe. On an accelerator nothing is read, and float32 takes a third way:
products in float64, which are safe for all float32 inputs.
"""

import torch
from torch import Tensor

from sketchy.core.tasks import Numbers, Task, read, readable, together
from sketchy.core.tuned.products import lower_gram, lower_gram_of_triangle

# Cholesky-QR loses about eps * cond² of orthonormality. A pivot relative to its column's length is
# the sine of the angle between the column and the span of those before it. Above this value the loss
# was at most 50 eps in trials; warm-started iterations stay at 0.7 and above.
_SAFE_SINE = 0.3

# Columns whose lengths are further apart have squares that span float32's range.
_UNEQUAL = 1e-8

# Squared singular values further apart than this many eps are not resolved by an eigensolver of
# the same precision.
_GRADED = 10.0

_SHIFT = 1e-14


def gaussian(rows: int, columns: int, *, seed: int, like: Tensor) -> Tensor:
    """A (rows, columns) Gaussian matrix. It depends on the seed alone, not on defaults or the device."""
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(rows, columns, generator=generator, dtype=torch.float64, device="cpu").to(like)


def scattered(rows: int, columns: int, *, like: Tensor) -> Tensor:
    """A (rows, columns) matrix of unordered numbers in [-1, 1), the same on all devices.

    It is computed on the device, where `gaussian` would copy from the host each time: squares modulo a prime,
    which fit in 63 bits.
    """
    prime = 2**31 - 1
    x = i = torch.arange(1, rows * columns + 1, device=like.device)
    for multiplier in (48271, 69621, 16807):
        x = (x * x + multiplier * i) % prime
    return (x.double() * (2 / prime) - 1).to(like).reshape(rows, columns)


def gram_factor(K: Tensor, plus: Tensor | None = None) -> Task[tuple[Tensor, bool] | None]:
    """L of Kᵀ K + diag(plus) = L Lᵀ for K (..., d, l), and whether its pivots are graded; None: not trusted.

    ``plus``: (..., l). L is not trusted where the columns of K are close to dependent, so that those of K L⁻ᵀ
    may not be orthonormal to working precision, and where they are so unequal that their squares span
    float32's range. The pivots are graded where they are so far apart that an eigensolver of this precision
    loses the small ones.
    """
    if not readable(K):
        return None
    added = () if plus is None else (plus,)
    L, pivots = yield from together(_cholesky_, lower_gram(K), *added, rank=K.shape[-1])
    return (L, _graded(pivots, L.dtype)) if _trusted(pivots) else None


def _cholesky_(W: Tensor, plus: Tensor | None = None, *, rank: int) -> tuple[Tensor, Numbers]:
    """L (..., l, l), and what `_trusted` and `_graded` need to know of it."""
    squares = W.diagonal(dim1=-2, dim2=-1)[..., :rank]
    if plus is not None:
        squares.add_(plus)
    L, failed = torch.linalg.cholesky_ex(W)
    L = L[..., :rank, :rank]
    pivots = L.diagonal(dim1=-2, dim2=-1).square()
    sines = (pivots / squares).amin(-1)
    return L, read(failed, sines, *squares.aminmax(dim=-1), *pivots.aminmax(dim=-1))


def _trusted(pivots: Numbers) -> bool:
    return pivots is not None and all(
        failed == 0 and squared_sine > _SAFE_SINE**2 and shortest > _UNEQUAL**2 * longest
        for failed, squared_sine, shortest, longest, *_ in pivots
    )


def _graded(pivots: Numbers, dtype: torch.dtype) -> bool:
    limit = _GRADED * torch.finfo(dtype).eps
    return pivots is None or any(low < limit * high for *_, low, high in pivots)


def orthonormal(M: Tensor) -> Tensor:
    """Orthonormal columns: the first k span the first k columns of M (..., d, l), d >= l, with their signs.

    In float64 by products, a column that depends on those before it up to rounding may come out shorter.
    """
    if not _in_double(M):
        Q, R = torch.linalg.qr(M)
        return Q * torch.where(R.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(M).unsqueeze(-2)
    D = M.double()
    W = D.mT @ D
    squares = W.diagonal(dim1=-2, dim2=-1)
    # more than rounding can take from W, and less than float32's rounding squared
    squares.add_((_SHIFT * squares.sum(-1, keepdim=True)).clamp(min=torch.finfo(D.dtype).tiny))
    L, _ = torch.linalg.cholesky_ex(W)
    return torch.linalg.solve_triangular(L, D.mT, upper=False).mT.to(M)


def left_singular(M: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The leading ``rank`` left singular vectors and values of M (..., d, n), descending.

    QR in the dtype of M, then the SVD of the square factor in float64: no slower, and some six
    times closer than a float32 SVD, whose vectors are orthonormal to ten eps only.
    """
    if M.shape[-2] > M.shape[-1]:
        Q, R = torch.linalg.qr(M)
        U, sigma, _ = torch.linalg.svd(R.double())
        return Q @ U[..., :rank].to(M), sigma[..., :rank].to(M)
    R = torch.linalg.qr(M.mT, mode="r").R
    U, sigma, _ = torch.linalg.svd(R.mT.double())
    return U[..., :rank].to(M), sigma[..., :rank].to(M)


def left_singular_by_products(T: Tensor) -> Task[tuple[Tensor, Tensor]]:
    """Left singular vectors and values of T (..., d, l), d >= l, mostly by matrix products.

    Cholesky-QR, T = (T L⁻ᵀ) Lᵀ, then an l x l eigenproblem for Lᵀ L; the SVD where columns are nearly
    dependent. As accurate as the SVD: to eps relative to the largest singular value. Where squaring would
    lose the small ones, the eigenproblem is solved in float64. Where nothing may be read all is float64,
    without a factor. Vectors are orthonormal as far as their values stand above rounding; `fill` replaces the
    rest.
    """
    if _in_double(T):
        D = T.double()
        V, sigma = yield from together(_ritz_in_double, D.mT @ D, dtype=T.dtype)
        return (D @ V).to(T), sigma
    found = yield from gram_factor(T)
    if found is None:
        return left_singular(T, T.shape[-1])
    L, graded = found
    V, sigma = yield from together(_ritz, L, precision=torch.float64 if graded else T.dtype)
    return T @ V, sigma


def _ritz(L: Tensor, *, precision: torch.dtype) -> tuple[Tensor, Tensor]:
    """V and σ with left singular vectors T V and values σ of every T with TᵀT = L Lᵀ."""
    # negative, so that the largest comes first; UPLO="U" is 5 % faster than the other, copied across
    theta, V = torch.linalg.eigh(lower_gram_of_triangle(L.to(precision)).neg_().mT, UPLO="U")
    V = torch.linalg.solve_triangular(L.mT, V.to(L.dtype), upper=True)
    return V, theta.neg_().clamp_(min=0).sqrt_().to(L.dtype)


def _ritz_in_double(W: Tensor, *, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The same from W = TᵀT in float64."""
    theta, V = torch.linalg.eigh(W.neg())
    sigma = theta.neg_().clamp_(min=0).sqrt_()
    eps, tiny = torch.finfo(dtype).eps, torch.finfo(dtype).tiny
    return V / torch.maximum(sigma, (eps * sigma[..., :1]).clamp(min=tiny)).unsqueeze(-2), sigma.to(dtype)


def fill(U: Tensor, live: Tensor) -> Tensor:
    """Replace the columns of orthonormal U (..., d, l) that are not ``live`` (..., l) by random ones.

    A direction that holds no mass is free. A random direction lets the next power step meet every new
    direction. This makes the subspace solver's cold start exact. Live columns must come first; they stay as
    they are up to rounding.
    """
    noise = scattered(*U.shape[-2:], like=U) / U.shape[-2] ** 0.5
    return orthonormal(torch.where(live.unsqueeze(-2), U, noise))


def _in_double(x: Tensor) -> bool:
    """Whether to take small factors in float64: no value can be read, and columns may be dependent."""
    return x.dtype == torch.float32 and not readable(x)

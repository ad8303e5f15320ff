"""Linear algebra for sketches: Gram factors, thin SVD, orthonormal bases.

Everything is batched over leading dimensions. The cheap method (Cholesky-QR) is used only if its pivots show
that it is accurate. The pivots are read on the CPU only, where reading is free. On an accelerator, float32
uses a third method, `core.cholesky_qr`, which needs no reading.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from sketchy.core.cholesky_qr import (
    SAFE_SINE,
    Singular,
    left_singular_by_eigh,
    orthonormal_by_products,
)
from sketchy.core.spread import WHOLE, Spreads, part, size, solved, total, whole
from sketchy.core.tasks import Numbers, Request, Task, Unread, kept, launch, readable
from sketchy.core.tuned.products import lower_gram, lower_gram_of_triangle

# If the ratio of the shortest to the longest column is smaller, squares of both don't fit float32's range.
_UNEQUAL = 1e-8

# In units of eps. If the ratio of two squared singular values is below it, an eigensolver of the same
# precision loses the smaller one.
_GRADED = 10.0


def gaussian(rows: int, columns: int, *, seed: int, like: Tensor) -> Tensor:
    """A (rows, columns) Gaussian matrix. It depends on the seed only, not on torch's defaults or device."""
    if like.device.type == "meta":  # planning must not need the memory
        return like.new_empty(rows, columns)
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


@lru_cache(8)
def _scattered(rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return scattered(rows, columns, like=torch.empty(0, dtype=dtype, device=device))


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
        longest = kept(_scattered, U)(max(r.dim for r in requests), U.shape[-1], U.dtype, U.device)
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
        failed == 0 and squared_sine > SAFE_SINE**2 and shortest > _UNEQUAL**2 * longest
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


def orthonormal_parts(M: Tensor, spreads: Spreads, above: Tensor | None = None) -> Task[Tensor]:
    """`orthonormal` for the matrix [above; M], whose rows may lie on several ranks, except those above.

    ``spreads``: see `gram_factor`.
    """
    gathered = yield from whole(M, spreads[0])
    l = 0 if above is None else above.shape[-2]
    joined = gathered if above is None else torch.cat([above, gathered], dim=-2)
    if spreads == WHOLE:
        return orthonormal(joined)
    Q = yield from solved(spreads, orthonormal, joined)
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


def left_singular_by_products(T: Tensor, spreads: Spreads = WHOLE) -> Task[Singular]:
    """Left singular vectors and values of T (..., d, l), d >= l, mostly by matrix products.

    It takes Cholesky-QR, T = (T L⁻ᵀ) Lᵀ, then an l x l eigenproblem for Lᵀ L. If columns are nearly
    dependent, it takes the SVD instead. The result is as accurate as the SVD: to eps relative to the largest
    singular value. If squares would lose the small singular values, the eigenproblem is solved in float64. On
    an accelerator see `cholesky_qr`. ``spreads``: see `gram_factor`.
    """
    if unread(T):
        return (yield from left_singular_by_eigh(T, spreads))
    found = yield from gram_factor(T, spreads=spreads)
    if found is not None:
        L, graded = found
        V, sigma = yield from solved(spreads, _ritz, L, precision=torch.float64 if graded else T.dtype)
        return Singular(T @ V, sigma)
    T = yield from whole(T, spreads[0])  # it is thin
    if spreads == WHOLE:
        return Singular(*left_singular(T, T.shape[-1]))
    U, sigma = yield from solved(spreads, left_singular, T, rank=T.shape[-1])
    return Singular(part(U, spreads[0]), sigma)


def _ritz(L: Tensor, *, precision: torch.dtype) -> tuple[Tensor, Tensor]:
    """V and σ: any T with TᵀT = L Lᵀ has the left singular vectors T V and the singular values σ."""
    # negative, so that the largest comes first; UPLO="U" of the transpose is 5 % faster than UPLO="L"
    theta, V = torch.linalg.eigh(lower_gram_of_triangle(L.to(precision)).neg_().mT, UPLO="U")
    V = torch.linalg.solve_triangular(L.mT, V.to(L.dtype), upper=True)
    return V, theta.neg_().clamp_(min=0).sqrt_().to(L.dtype)


def fill(
    U: Tensor, live: Tensor, spreads: Spreads = WHOLE, *, by_products: bool | None = None
) -> Task[Tensor]:
    """Replace the columns of orthonormal U (..., d, l) that are not ``live`` (..., l) by random ones.

    A direction without mass may be replaced by any other. A random direction has a component along every new
    gradient, so the next power step finds it. This makes the subspace solver's cold start exact. Live columns
    must come first; they do not change, up to rounding. ``spreads``: see `gram_factor`. ``by_products``: by
    the method of `cholesky_qr`, which also mends columns that are only nearly orthonormal; None: if no value
    can be read.
    """
    d = size(U.shape[-2], spreads[0])
    noise = part((yield Scattered(scattered, (U,), dim=d)), spreads[0])
    filled = yield from launch(_with_noise, U, live, noise.expand_as(U), size=d**-0.5)
    if unread(U) if by_products is None else by_products:
        return (yield from orthonormal_by_products(filled, spreads))
    return (yield from orthonormal_parts(filled, spreads))


def _with_noise(U: Tensor, live: Tensor, noise: Tensor, *, size: float) -> Tensor:
    """U, and ``size`` times the noise in columns that are not ``live``."""
    return torch.where(live.unsqueeze(-2), U, noise * size)


def unread(x: Tensor) -> bool:
    """Whether no value can be read to check accuracy, so that `cholesky_qr` is needed. It is for float32."""
    return x.dtype == torch.float32 and not readable(x)

"""Small linear algebra under the sketch: Gram factors, thin SVD, certified norms.

Everything is batched over leading dimensions. Where a cheap road and a safe road exist, the
cheap one is taken only when the numbers at hand show that it is safe. That choice reads one
boolean, which is free on the CPU. On an accelerator it would wait for the device: there nothing is
read, and float32 takes a third road, by products in float64, which is safe for all of its numbers.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import torch
from torch import Tensor

from sketchy.core.panels import panels
from sketchy.core.products import multiply, multiply_into
from sketchy.core.ragged import joined, parted

# Cholesky-QR loses about eps * cond² of orthonormality. A pivot relative to its column's length is
# the sine of the angle between the column and the span of those before it. Above this value the loss
# was at most 50 eps in trials; warm-started iterations stay at 0.7 and above.
_SAFE_SINE = 0.3

# Columns whose lengths are further apart have squares that span float32's range.
_UNEQUAL = 1e-8

# Squared singular values further apart than this many eps are not resolved by an eigensolver of
# the same precision.
_GRADED = 10.0

_POWER = 128
_STRIDE_PADDING = 8

_SHIFT = 1e-14

# Two products with 16 probes bound a flat spectrum of 1000 directions to 2.5 times its norm; three
# to 1.6 times, at 5 % of an update's time.
_CHEBYSHEV_DEGREE = 2


def certain(condition: Tensor) -> bool:
    """Whether a condition holds everywhere, as far as that may be asked.

    Reading a boolean is free on the CPU, a synchronisation on an accelerator and a break in a
    compiled graph. There the answer is no, and the caller takes the road that is right either way.
    """
    return _readable(condition) and bool(condition if condition.numel() == 1 else condition.all())


def within(values: Tensor, low: float, high: float) -> bool:
    """Whether all values are known to lie between two numbers; on the CPU cheaper than to compare tensors."""
    return _readable(values) and all(low < value < high for value in values.flatten().tolist())


def _readable(x: Tensor) -> bool:
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def _in_double(x: Tensor) -> bool:
    """Whether small factors are taken in float64: unseen, float32 may be as close to dependent as it can."""
    return x.dtype == torch.float32 and not _readable(x)


def energies(A: Tensor) -> tuple[Tensor, Tensor]:
    """The sums of squares of the rows (..., d) and of the columns (..., k) of A (..., d, k), float64.

    Safe from overflow and underflow for float32; NaN or Inf exactly if an entry is. Sums are taken in the
    dtype of A.
    """
    rows, columns = _safe(A, _row_and_column_energy)
    return rows, columns


def row_energy(A: Tensor) -> Tensor:
    """The first of `energies`."""
    (rows,) = _safe(A, lambda A: (_row_energy(A),))
    return rows


def frobenius(A: Tensor) -> Tensor:
    """The Frobenius norm of each (..., d, k) matrix, as safe as its `row_energy`."""
    return row_energy(A).sum(-1).sqrt()


def _safe(A: Tensor, squares: Callable[[Tensor], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Sums of squares of A, the first of them over rows; extreme ones by way of A over its magnitude."""
    info = torch.finfo(A.dtype)
    if A.numel() == 0:
        return squares(A)
    if _readable(A):
        found = squares(A)
        lowest = info.tiny / info.eps  # below it, sums of squares lose digits
        if within(found[0].sum(-1), lowest, 1 / lowest):
            return found
    largest = torch.linalg.vector_norm(A, torch.inf, dim=(-2, -1), keepdim=True)
    power = largest.log2().floor().clamp(max=math.frexp(info.max)[1] - 1)  # rounding may reach one more
    unit = torch.where(largest > 0, torch.exp2(power), 1.0)  # exact to divide by
    return tuple(sums * unit[..., 0].double().square() for sums in squares(A / unit))


def _row_energy(A: Tensor) -> Tensor:
    return torch.linalg.vector_norm(A, dim=-1).double().square()


def _row_and_column_energy(A: Tensor) -> tuple[Tensor, Tensor]:
    S = A.reshape(math.prod(A.shape[:-2]), *A.shape[-2:])
    rows = S.new_empty(S.shape[:2], dtype=torch.float64)
    columns = S.new_zeros(len(S), S.shape[2], dtype=torch.float64)
    for stack, piece in panels(S):
        squares = S[piece].square()
        rows[piece] = squares.sum(-1).double()
        columns[stack] += squares.sum(-2)
    return rows.reshape(A.shape[:-1]), columns.reshape(*A.shape[:-2], A.shape[-1])


def extreme_scale(magnitude: Tensor, dtype: torch.dtype) -> Tensor | None:
    """A power of two to divide by where a magnitude is extreme, 1 elsewhere (and for zero); None: 1 for all.

    Squares of extreme numbers overflow or underflow: a float32 gradient of 1e20 has a second moment
    of 1e40. Dividing by a power of two is exact; it is in the range of ``dtype``.
    """
    if within(magnitude, 1e-8, 1e8):
        return None
    most = 126 if dtype == torch.float32 else 500
    power = torch.exp2(magnitude.log2().floor().clamp(-most, most))
    return torch.where((magnitude > 0) & ((magnitude < 1e-8) | (magnitude > 1e8)), power, 1.0)


def divide(A: Tensor, scale: Tensor) -> Tensor:
    """A / scale for (..., d, k) by (...)."""
    return A / scale.to(A.dtype).unsqueeze(-1).unsqueeze(-1)


def as_weights(values: Tensor, x: Tensor) -> Tensor:
    """Values in the dtype of x; those beyond its range become its largest, since zero times inf is NaN."""
    most = torch.finfo(x.dtype).max
    return values.double().clamp(-most, most).to(x)


def gaussian(rows: int, columns: int, *, seed: int, like: Tensor) -> Tensor:
    """A (rows, columns) Gaussian matrix that depends on the seed alone: on no default and no device."""
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(rows, columns, generator=generator, dtype=torch.float64, device="cpu").to(like)


def scattered(rows: int, columns: int, *, like: Tensor) -> Tensor:
    """A (rows, columns) matrix of numbers in [-1, 1) without order, the same on all devices, made on its own.

    Where `gaussian` would copy from the host each time. Squares modulo a prime, which fit in 63 bits.
    """
    prime = 2**31 - 1
    x = i = torch.arange(1, rows * columns + 1, device=like.device)
    for multiplier in (48271, 69621, 16807):
        x = (x * x + multiplier * i) % prime
    return (x.double() * (2 / prime) - 1).to(like).reshape(rows, columns)


def gram_factors(Ks: Sequence[Tensor], plus: Tensor | None = None) -> list[Tensor | None]:
    """L of Kᵀ K + diag(plus) = L Lᵀ for stacks K (..., d, l) of any d; None where it may not be trusted.

    ``plus`` (..., l) is joined. Untrusted is where the columns of K are so close to dependent that those of
    K L⁻ᵀ may not be orthonormal to working precision, or so unequal that their squares span float32's range.
    """
    if not _readable(Ks[0]):
        return [None] * len(Ks)
    l, W = Ks[0].shape[-1], joined([_lower_gram(K) for K in Ks])
    squares = W.diagonal(dim1=-2, dim2=-1)[..., :l]
    if plus is not None:
        squares.add_(plus)
    L, info = torch.linalg.cholesky_ex(W)
    L = L[..., :l, :l]
    sines = (L.diagonal(dim1=-2, dim2=-1).square() / squares).amin(-1)
    trusted = iter(
        [
            failed == 0 and squared_sine > _SAFE_SINE**2 and shortest > _UNEQUAL**2 * longest
            for failed, squared_sine, shortest, longest in _each(info, sines, *squares.aminmax(dim=-1))
        ]
    )
    return [
        part if all(list(islice(trusted, math.prod(part.shape[:-2])))) else None for part in parted(L, Ks)
    ]


def _each(*values: Tensor) -> Iterator[tuple[float, ...]]:
    return zip(*(each.flatten().tolist() for each in values), strict=True)


def _lower_gram(K: Tensor) -> Tensor:
    """Kᵀ K (..., l, l), of which the lower triangle counts; for some l bordered by a unit matrix."""
    l = K.shape[-1]
    if l % _POWER:
        return multiply(K.mT, K)
    # columns a power of two apart share few cache lines: with a longer stride the factor takes half the time
    W = K.new_empty(*K.shape[:-2], l + _STRIDE_PADDING, l + _STRIDE_PADDING)
    W[..., l:, :] = 0.0
    W.diagonal(dim1=-2, dim2=-1)[..., l:] = 1.0
    half = l // 2  # three quarters of the product are enough
    multiply_into(W[..., :l, :half], K.mT, K[..., :half])
    multiply_into(W[..., half:l, half:l], K[..., half:].mT, K[..., half:])
    return W


def _lower_gram_of_triangle(L: Tensor) -> Tensor:
    """LᵀL of a lower triangle (..., l, l), of which the lower triangle counts."""
    l = L.shape[-1]
    if l % _POWER:
        return multiply(L.mT, L)
    W, half = L.new_empty(L.shape), l // 2  # half of the product is enough
    multiply_into(W[..., :half, :half], L[..., :half].mT, L[..., :half])
    multiply_into(W[..., half:, :], L[..., half:, half:].mT, L[..., half:, :])
    return W


def orthonormal(M: Tensor) -> Tensor:
    """Orthonormal columns whose leading ones span those of M (..., d, l), d >= l, in the same direction.

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


def left_singular_by_products(Ts: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
    """Left singular vectors of stacks T (..., d, l), d >= l, mostly by matrix products; values are joined.

    Cholesky-QR, T = (T L⁻ᵀ) Lᵀ, then an l x l eigenproblem for Lᵀ L; the SVD where columns are nearly
    dependent. Accurate, as the SVD is, to eps relative to the largest singular value: where squaring would
    lose the small ones, the eigenproblem is solved in float64. Where nothing may be read all is float64,
    without a factor; vectors are orthonormal as far as their values stand above rounding; `fill` finishes.
    """
    dtype, eps = Ts[0].dtype, torch.finfo(Ts[0].dtype).eps
    if _in_double(Ts[0]):
        Ds = [T.double() for T in Ts]
        theta, V = torch.linalg.eigh(joined([multiply(D.mT, D) for D in Ds]).neg_())
        sigma = theta.neg_().clamp_(min=0).sqrt_()
        V = V / torch.maximum(sigma, (eps * sigma[..., :1]).clamp(min=torch.finfo(dtype).tiny)).unsqueeze(-2)
        return [multiply(D, part).to(dtype) for D, part in zip(Ds, parted(V, Ts), strict=True)], sigma.to(
            dtype
        )
    factors = gram_factors(Ts)
    Us: list[Tensor] = [Ts[0]] * len(Ts)
    sigmas = list(Us)
    alike: dict[torch.dtype, list[int]] = {}
    for i, (T, L) in enumerate(zip(Ts, factors, strict=True)):
        if L is None:
            Us[i], sigmas[i] = left_singular(T, T.shape[-1])
        else:
            alike.setdefault(torch.float64 if _graded(L) else dtype, []).append(i)
    for precision, chosen in alike.items():
        some = [Ts[i] for i in chosen]
        L = joined([factor for i in chosen if (factor := factors[i]) is not None])
        S = L.to(precision)
        # negative, so that the largest comes first; UPLO="U" is 5 % faster than the other, copied across
        theta, V = torch.linalg.eigh(_lower_gram_of_triangle(S).neg_().mT, UPLO="U")
        V = torch.linalg.solve_triangular(L.mT, V.to(dtype), upper=True)
        sigma = theta.neg_().clamp_(min=0).sqrt_().to(dtype)
        for i, v, values in zip(chosen, parted(V, some), parted(sigma, some), strict=True):
            Us[i], sigmas[i] = multiply(Ts[i], v), values
    return Us, joined(sigmas)


def _graded(L: Tensor) -> bool:
    """Whether squared pivots of a factor are so far apart that an eigensolver loses the small ones."""
    ends = L.diagonal(dim1=-2, dim2=-1).aminmax(dim=-1)
    return any(low**2 < _GRADED * torch.finfo(L.dtype).eps * high**2 for low, high in _each(*ends))


def fill(U: Tensor, live: Tensor) -> Tensor:
    """Replace the columns of orthonormal U (..., d, l) that are not ``live`` (..., l) by random ones.

    A direction that holds no mass is free. Pointing it at random, not wherever rounding left it,
    lets the next power step meet every new direction: this makes the subspace solver's cold
    start exact. Live columns must come first; they stay as they are up to rounding.
    """
    noise = scattered(*U.shape[-2:], like=U) / U.shape[-2] ** 0.5
    return orthonormal(torch.where(live.unsqueeze(-2), U, noise))


def norm_bound(
    apply: Callable[[Tensor], Tensor], probes: Tensor, width: Tensor, failure_probability: float
) -> Tensor:
    """An upper bound on the norm of a symmetric operator D, from Gaussian probes.

    ``apply`` maps rows X (..., r, d) to X D; ``probes`` is Gaussian (r, d), independent of D;
    ``width`` (...) is a guess of the norm from below: the bound is valid for any positive width and
    tight when most of the spectrum lies in [0, width]. Returns (...), float64.

    With T_q the Chebyshev polynomial on [0, width] and v an eigenvector of D to the eigenvalue mu
    of largest |T_q|, W T_q(D) v = T_q(mu) W v, so that ‖W T_q(D)‖ >= |T_q(mu)| ‖W v‖; and
    ‖W v‖² is chi-square with r degrees, below x = 2 (delta Γ(r/2 + 1))^(2/r) with probability at
    most delta. Inverting the monotone T_q outside [-1, 1] bounds mu. Cost: q products with D.
    """
    width = width.clamp(min=torch.finfo(probes.dtype).tiny)
    half = (width / 2).to(probes).unsqueeze(-1).unsqueeze(-1)
    before, now = probes, apply(probes) / half - probes  # T_0 and T_1 at D / half - 1
    for _ in range(_CHEBYSHEV_DEGREE - 1):
        before, now = now, 2 * (apply(now) / half - now) - before
    now = now.double()
    largest = torch.linalg.eigvalsh(now @ now.mT)[..., -1].clamp(min=0).sqrt()
    r = probes.shape[-2]
    log_chi_square = math.log(2) + (math.log(failure_probability) + math.lgamma(r / 2 + 1)) * 2 / r
    ratio = (largest / math.exp(log_chi_square / 2)).clamp(min=1)
    return width / 2 * (1 + torch.cosh(torch.acosh(ratio) / _CHEBYSHEV_DEGREE))

"""Numbers whose squares overflow or underflow: safe sums of squares, and scaling by powers of two.

A float32 gradient of 1e20 has a second moment of 1e40. Squared quantities are therefore float64. Matrices
with extreme entries are first divided by a power of two, which is exact.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from sketchy.core.tasks import Request, Task, read, readable, within
from sketchy.core.tuned.panels import panels

_LOW, _HIGH = 1e-8, 1e8  # matrices with norms between them are not scaled


def energies(A: Tensor) -> tuple[Tensor, Tensor]:
    """The sums of squares of the rows (..., d) and of the columns (..., k) of A (..., d, k), float64.

    Safe from overflow and underflow for float32; NaN or Inf exactly if an entry is. Sums are taken in the
    dtype of A on the CPU, and in float64 elsewhere.
    """
    if not readable(A):
        return _norms_in_double(A, -1).square(), _norms_in_double(A, -2).square()
    rows, columns = _safe(A, _row_and_column_energy)
    return rows, columns


def column_norms(A: Tensor) -> Tensor:
    """The norms of the columns (..., k); see `energies`."""
    return energies(A)[1].sqrt() if readable(A) else _norms_in_double(A, -2)


def row_norms(A: Tensor) -> Tensor:
    """The norms of the rows (..., d); see `energies`."""
    if not readable(A):
        return _norms_in_double(A, -1)
    (rows,) = _safe(A, lambda A: (torch.linalg.vector_norm(A, dim=-1).double(),), power=1)
    return rows


def row_energy(A: Tensor) -> Tensor:
    """The sums of squares of the rows (..., d); see `energies`."""
    return row_norms(A).square()


def frobenius(A: Tensor) -> Tensor:
    """The Frobenius norm of each (..., d, k) matrix, as safe from overflow as `row_norms`."""
    return row_energy(A).sum(-1).sqrt()


def extreme_scale(norm: Tensor, past: Tensor, beta2: float, dtype: torch.dtype) -> Task[Tensor | None]:
    """A power of two for each matrix (...). Division by it makes max(norm, √(β₂ past)) moderate.

    None means that no matrix needs one. The power is 1 where both numbers are moderate or zero. It is always
    in the range of ``dtype``.
    """
    numbers = yield Request(read, (norm, past))
    if numbers is not None and all(_LOW < max(size, (beta2 * old) ** 0.5) < _HIGH for size, old in numbers):
        return None
    # moderate numbers divided by the least power are in the range of float32, too
    least, most = (-100, 126) if dtype == torch.float32 else (-500, 500)
    return (yield Request(power_of_two, (norm, past), (), {"beta2": beta2, "least": least, "most": most}))


def power_of_two(norm: Tensor, past: Tensor, *, beta2: float, most: int, least: int | None = None) -> Tensor:
    """The power of two (...) at or below max(norm, √(β₂ past)); 1 where it is moderate.

    It is between 2^least and 2^most. By default, least is -most.
    """
    least = -most if least is None else least
    magnitude = torch.maximum(norm, (beta2 * past).sqrt())
    power = torch.exp2(magnitude.log2().floor().clamp(least, most))
    return torch.where((magnitude > 0) & ((magnitude < _LOW) | (magnitude > _HIGH)), power, 1.0)


def divide(A: Tensor, scale: Tensor) -> Tensor:
    """A / scale for A (..., d, k) and scale (...)."""
    return A / scale.to(A.dtype).unsqueeze(-1).unsqueeze(-1)


def as_weights(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Values in a dtype. Values beyond its range become its largest number, since 0 * inf is NaN."""
    most = torch.finfo(dtype).max
    return values.double().clamp(-most, most).to(dtype)


def _norms_in_double(A: Tensor, dim: int) -> Tensor:
    """One pass that reads A: an accelerator is so much slower at loading float32 than at squaring float64.

    The sum of squares of float64 numbers is scaled, because it may overflow.
    """
    others = [*A.shape]
    del others[dim]  # in a trace or on meta tensors, torch 2.10 keeps an axis of length 1
    if A.dtype != torch.float64:
        return torch.linalg.vector_norm(A, dim=dim, dtype=torch.float64).reshape(others)
    if A.numel() == 0:
        return A.new_zeros(others)
    unit = torch.linalg.vector_norm(A, torch.inf, dim=(-2, -1), keepdim=True).clamp(
        min=torch.finfo(A.dtype).tiny
    )
    return torch.linalg.vector_norm(A / unit, dim=dim).reshape(others) * unit[..., 0]


def _safe(A: Tensor, sums: Callable[[Tensor], tuple[Tensor, ...]], *, power: int = 2) -> tuple[Tensor, ...]:
    """Norms of rows and columns of A, to a power, the first over rows.

    Extreme matrices are first divided by a power of two.
    """
    info = torch.finfo(A.dtype)
    if A.numel() == 0:
        return sums(A)
    found = sums(A)
    lowest = info.tiny / info.eps  # below it, sums of squares lose digits
    whole = found[0] if power == 2 else found[0].square()
    if within(read(whole.sum(-1)), lowest, 1 / lowest):
        return found
    largest = torch.linalg.vector_norm(A, torch.inf, dim=(-2, -1), keepdim=True)
    most = math.frexp(info.max)[1] - 1  # log2 may round up to one more
    unit = torch.where(largest > 0, torch.exp2(largest.log2().floor().clamp(max=most)), 1.0)
    return tuple(found * unit[..., 0].double() ** power for found in sums(A / unit))


def _row_and_column_energy(A: Tensor) -> tuple[Tensor, Tensor]:
    S = A.reshape(math.prod(A.shape[:-2]), *A.shape[-2:])
    rows = S.new_empty(S.shape[:2], dtype=torch.float64)
    columns = S.new_zeros(len(S), S.shape[2], dtype=torch.float64)
    for stack, piece in panels(S):
        squares = S[piece].square()
        rows[piece] = squares.sum(-1).double()
        columns[stack] += squares.sum(-2)
    return rows.reshape(A.shape[:-1]), columns.reshape(*A.shape[:-2], A.shape[-1])

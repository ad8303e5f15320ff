"""Numbers in few bits: integer codes, and one scale for each block of neighbours in a row.

A row of n numbers is cut into blocks of `BLOCK`, from its first entry on; the last block may be shorter. The
scale s of a block is its largest absolute value, so the largest entry has the largest code and is kept as it
is. If all entries of a block are multiplied by one number, only the scale changes.

- **Signed numbers** (momenta): x ≈ s c / L with |c| <= L; L is 127 in 8 bits and 7 in 4 bits.
- **Roots** of second moments, which must not become zero: r ≈ s (c / 255)², c = 0, ..., 255.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

BLOCK = 128
NEAREST = 2.0**20  # a ``fade`` without effect
EIGHT_BITS, FOUR_BITS, ROOT_LEVELS = 127, 7, 255
# A root that only decays with its block has an integer t, up to rounding: dither never changes it.
_ROUNDING = 2.0**-10
# Fractions of their multiples are spread evenly: the golden ratio, and its likes for two more dimensions.
_STEP, _ROW, _COLUMN = 0.6180339887498949, 0.7548776662466927, 0.5698402909980532


def blocks(n: int) -> int:
    """The number of blocks in a row of n numbers."""
    return -(-n // BLOCK)


def encode(
    x: Tensor,
    levels: int,
    dtype: torch.dtype,
    fade: float | Tensor | None = None,
    *,
    out: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Codes c (..., n), int8, and scales s (..., blocks) in ``dtype``, of x (..., n).

    With t = L x / s, c is the nearest integer to t. With ``fade`` = 1 - β₁, it is trunc(t + clip(fade t,
    ±1/2)): the same for large t, but towards zero for small t. A momentum without new gradients, t = β₁ c,
    then loses a code at each step. The nearest integer to 0.9 c is c for c <= 4, so it would never vanish.
    ``fade`` may be a tensor (..., n); where it is `NEAREST`, c is the nearest integer.
    ``out``: scratch memory like x, or x itself, which is then overwritten.
    """
    s = _scales(x, dtype)
    t = torch.empty_like(x) if out is None else out
    for part, of, own in _runs(x, t):
        torch.div(part, s[..., own].unsqueeze(-1), out=of)
    t.mul_(levels)
    if fade is not None:
        t.add_((fade * t).clamp_(-0.5, 0.5))
    else:
        t.round_()
    return t.to(torch.int8), s  # truncates


def decode(c: Tensor, s: Tensor, levels: int, dtype: torch.dtype) -> Tensor:
    """x = s (c / L), in ``dtype``. For c = L this is s, to the bit, and encoding gives c and s again."""
    x = c.to(dtype).mul_(1 / levels)
    for part, _, own in _runs(x, x):
        part.mul_(s[..., own].unsqueeze(-1))
    return x


def pack(c: Tensor) -> Tensor:
    """Two codes of four bits in a byte: the j-th byte of a row has those of columns j and j + ceil(n / 2).

    A byte of zeros stands for two zeros.
    """
    nibbles = c.bitwise_and(15).view(torch.uint8)
    low, high = nibbles.split(_half(c.shape[-1]), -1) if c.shape[-1] > 1 else (nibbles, nibbles[..., :0])
    packed = low.clone()
    packed[..., : high.shape[-1]].bitwise_or_(high << 4)
    return packed


def unpack(packed: Tensor, n: int) -> Tensor:
    """The codes (..., n), int8, of `pack`."""
    nibbles = torch.cat([packed & 15, packed[..., : n - _half(n)] >> 4], -1)
    return nibbles.bitwise_xor_(8).view(torch.int8).sub_(8)  # 15 stands for -1


def encode_roots(r: Tensor, dither: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Codes c (..., n), uint8, and scales s (..., blocks) in ``dtype``, of r (..., n) >= 0.

    With t = 255 (r / s)^(1/2), c = floor(t + ``dither``), but at least 1 if r > 0. A moment with β₂ = 0.999
    changes by less than a code in a step: rounded to the nearest, or always up, it would never decay.
    ``dither``: (..., n), see `spread`.
    """
    s = _scales(r, dtype)
    t = torch.empty_like(r)
    for part, of, own in _runs(r, t):
        torch.div(part, s[..., own].unsqueeze(-1), out=of)
    t.sqrt_().mul_(ROOT_LEVELS)
    least = t.ceil().clamp_(max=1)
    t.add_(dither).floor_().clamp_(max=ROOT_LEVELS)
    return torch.maximum(t, least, out=t).to(torch.int16).to(torch.uint8), s  # twice as fast as at once


def decode_roots(c: Tensor, s: Tensor, dtype: torch.dtype) -> Tensor:
    """r = s (c / 255)², in ``dtype``."""
    r = c.to(dtype).mul_(1 / ROOT_LEVELS).square_()
    for part, _, own in _runs(r, r):
        part.mul_(s[..., own].unsqueeze(-1))
    return r


def spread(step: Tensor, first: int, rows: int, columns: int) -> Tensor:
    """Dither (K, rows, columns) in (0, 1), float32: other numbers for each step (K,), row and column.

    The same for the same arguments. Over steps, and over rows or columns, it covers the interval evenly. It
    keeps off its ends by `_ROUNDING`. ``first``: the number of the first row.
    """
    down, across = (
        torch.arange(start, start + count, dtype=torch.float64, device=step.device).mul_(by).frac_()
        for start, count, by in ((first, rows, _ROW), (0, columns, _COLUMN))
    )
    phase = (step.double().reshape(-1, 1) * _STEP + down).frac_().float()
    return (phase.unsqueeze(-1) + across.float()).frac_().mul_(1 - 2 * _ROUNDING).add_(_ROUNDING)


def relative_error(x: Tensor, s: Tensor, levels: int) -> Tensor:
    """The expected relative error of one rounding to the nearest code, for stored numbers x (..., n).

    Rounding errors are evenly distributed over a code's width s / L, so their mean square is (s / L)² / 12.
    """
    n = x.shape[-1]
    lengths = torch.full((blocks(n),), float(min(BLOCK, n)), dtype=torch.float64, device=s.device)
    lengths[-1] = n - (blocks(n) - 1) * BLOCK
    unit = s.double().amax().clamp(min=torch.finfo(torch.float32).tiny)  # squares must not underflow
    noise = ((s.double() / unit / levels).square() * lengths).sum() / 12
    size = (x.double() / unit).square().sum()
    return torch.where(size > 0, (noise / size).sqrt(), 0.0)


def _scales(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The largest absolute value of each block; at least the smallest normal number."""
    # by far the fastest way on the CPU
    found = [torch.maximum(part.amax(-1), -part.amin(-1)) for part, _, _ in _runs(x, x)]
    return torch.cat(found, -1).to(dtype).clamp_(min=torch.finfo(torch.float32).tiny)


def _runs(x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor, slice]]:
    """Views (..., blocks, length) of x and y (..., n), and the index of their scales: whole blocks, and the
    shorter last one."""
    n = x.shape[-1]
    whole = n // BLOCK
    if whole:
        parts = (z[..., : whole * BLOCK].unflatten(-1, (whole, BLOCK)) for z in (x, y))
        yield *parts, slice(whole)
    if n % BLOCK:
        yield x[..., whole * BLOCK :].unsqueeze(-2), y[..., whole * BLOCK :].unsqueeze(-2), slice(whole, None)


def _half(n: int) -> int:
    return -(-n // 2)

"""Numbers in few bits: the error of a code, and what must survive it exactly."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from cases import F32, F64
from sketchy.core import quantize

SIZES = st.integers(1, 300)
SEEDS = st.integers(0, 1000)
EXPONENTS = st.integers(-100, 83)  # 1e-30 to 1e25
LEVELS = pytest.mark.parametrize("levels", [quantize.EIGHT_BITS, quantize.FOUR_BITS])
FADES = pytest.mark.parametrize("fade", [None, 0.001, 0.1, quantize.NEAREST])


def numbers(seed: int, n: int, exponent: int = 0, dtype: torch.dtype = F32) -> Tensor:
    """(2, 3, n), with some zeros and some small numbers."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(2, 3, n, generator=g, dtype=F64) * torch.rand(2, 3, n, generator=g, dtype=F64) ** 4
    x[torch.rand(2, 3, n, generator=g) < 0.1] = 0.0
    return (x * 2.0**exponent).to(dtype)


def per_entry(s: Tensor, n: int) -> Tensor:
    return s.repeat_interleave(quantize.BLOCK, -1)[..., :n]


def there_and_back(x: Tensor, levels: int, fade: float | None = None) -> Tensor:
    return quantize.decode(*quantize.encode(x, levels, x.dtype, fade), levels, x.dtype)


@LEVELS
@given(n=SIZES, seed=SEEDS, exponent=EXPONENTS)
@example(n=128, seed=0, exponent=0)
@example(n=1, seed=0, exponent=83)
def test_an_entry_is_off_by_at_most_half_a_code_and_the_largest_of_a_block_not_at_all(
    levels: int, n: int, seed: int, exponent: int
) -> None:
    x = numbers(seed, n, exponent)
    c, s = quantize.encode(x, levels, F32)
    y = quantize.decode(c, s, levels, F32)
    width = per_entry(s, n).double() / levels
    assert ((y.double() - x.double()).abs() <= 0.500001 * width).all()
    assert c.dtype == torch.int8 and int(c.abs().max()) <= levels
    largest = x.abs() == per_entry(s, n)
    assert torch.equal(y[largest], x[largest]) and (largest.any() or not x.any())


@LEVELS
@FADES
@given(n=SIZES, seed=SEEDS, exponent=st.integers(-149, 83))
def test_a_stored_number_is_stored_as_itself_again(
    levels: int, fade: float | None, n: int, seed: int, exponent: int
) -> None:
    y = there_and_back(numbers(seed, n, exponent), levels, fade)
    assert torch.equal(there_and_back(y, levels, fade), y)


@LEVELS
@FADES
@given(n=SIZES, seed=SEEDS, exponent=EXPONENTS)
def test_a_power_of_two_goes_into_the_scale(
    levels: int, fade: float | None, n: int, seed: int, exponent: int
) -> None:
    x = numbers(seed, n) + 1e-6  # no block of zeros, whose scale stays
    (c, s), (d, t) = (quantize.encode(z, levels, F32, fade) for z in (x, x * 2.0**exponent))
    assert torch.equal(c, d) and torch.equal(s * 2.0**exponent, t)


@LEVELS
@FADES
@given(n=SIZES, seed=SEEDS)
def test_a_block_that_only_decays_keeps_its_codes(levels: int, fade: float | None, n: int, seed: int) -> None:
    c, s = quantize.encode(numbers(seed, n), levels, F32, fade)
    first = c
    for _ in range(20):
        c, s = quantize.encode(0.9 * quantize.decode(c, s, levels, F32), levels, F32, fade)
    assert torch.equal(c, first)


@LEVELS
@pytest.mark.parametrize("n", [1, 5, 128, 129, 300])
def test_zeros_are_exact_and_numbers_below_all_normal_ones_err_by_less_than_those(
    levels: int, n: int
) -> None:
    assert not there_and_back(torch.zeros(2, n), levels).any()
    for tiny in (1e-45, -1e-40, 1e-38):
        x = torch.full((2, n), tiny)
        assert (there_and_back(x, levels) - x).abs().max() <= torch.finfo(F32).tiny / levels


def test_float64_numbers_keep_their_range() -> None:
    x = numbers(0, 200, dtype=F64) * 1e-30
    assert ((there_and_back(x, 127) - x).abs() <= x.abs().max() / 127).all()


def test_a_momentum_without_gradients_fades_beside_a_large_one() -> None:
    """To the nearest code, 0.9 times 4 codes would be 4 codes for ever."""
    x = torch.tensor([[1.0, 0.03, -0.03, 0.008]])
    faded, stuck = x.clone(), x.clone()
    for _ in range(60):
        faded[:, 1:] *= 0.9
        stuck[:, 1:] *= 0.9
        faded, stuck = there_and_back(faded, 127, fade=0.1), there_and_back(stuck, 127)
    assert faded.tolist() == [[1.0, 0.0, 0.0, 0.0]]
    assert (stuck[:, 1:] != 0).all()


@given(n=SIZES, seed=SEEDS)
@example(n=1, seed=0)
@example(n=2, seed=0)
def test_two_codes_in_a_byte_come_back(n: int, seed: int) -> None:
    c = torch.randint(-7, 8, (2, 3, n), generator=torch.Generator().manual_seed(seed)).to(torch.int8)
    packed = quantize.pack(c)
    assert packed.dtype == torch.uint8 and packed.shape == (2, 3, -(-n // 2))
    assert torch.equal(quantize.unpack(packed, n), c)
    assert not quantize.unpack(torch.zeros_like(packed), n).any()
    assert n % 2 == 0 or not (packed[..., -1] >> 4).any()  # nothing is there


def test_the_largest_numbers_come_back_with_their_signs() -> None:
    x = torch.tensor([[3.0, -3.0, 0.0]])
    for levels in (quantize.EIGHT_BITS, quantize.FOUR_BITS):
        c, s = quantize.encode(x, levels, F32)
        c = c if levels == quantize.EIGHT_BITS else quantize.unpack(quantize.pack(c), 3)
        assert torch.equal(quantize.decode(c, s, levels, F32), x)


def test_codes_of_roots_are_as_written() -> None:
    """floor(t + dither), and at least 1 if r > 0."""
    t = torch.tensor([[0.0, 0.3, 1.3, 1.7, 254.2, 254.8, 255.0]])
    c, s = quantize.encode_roots(2.0 * (t / 255) ** 2, torch.full_like(t, 0.5), F32)
    assert c.tolist() == [[0, 1, 1, 2, 254, 255, 255]] and s.tolist() == [[2.0]]


@given(n=SIZES, seed=SEEDS, exponent=EXPONENTS, step=st.integers(1, 10**6))
def test_a_root_is_off_by_less_than_a_code_and_never_becomes_zero(
    n: int, seed: int, exponent: int, step: int
) -> None:
    r = numbers(seed, n, exponent).abs()
    c, s = quantize.encode_roots(r, quantize.spread(torch.tensor([float(step)] * 2), 0, 3, n), F32)
    back = quantize.decode_roots(c, s, F32)
    t, u = (255 * (z.double() / per_entry(s, n)).sqrt() for z in (r, back))
    assert ((t - u).abs() <= 1.0001).all()
    assert torch.equal(back > 0, r > 0)


@given(n=SIZES, seed=SEEDS)
def test_a_uniform_decay_of_roots_goes_into_the_scale_for_ever(n: int, seed: int) -> None:
    def dither(step: int) -> Tensor:
        return quantize.spread(torch.tensor([float(step)] * 2), 0, 3, n)

    c, s = quantize.encode_roots(numbers(seed, n).abs(), dither(0), F32)
    first = c
    for step in range(1, 50):
        c, s = quantize.encode_roots(0.999**0.5 * quantize.decode_roots(c, s, F32), dither(step), F32)
    assert torch.equal(c, first)


def test_a_root_decays_beside_one_that_does_not() -> None:
    """Slower than a code in a step: rounded to the nearest or up, it would stay."""
    beta2, steps = 0.999, 4000
    r = torch.full((1, 1, 128), 0.5)
    r[..., 0] = 1.0
    for step in range(steps):
        r[..., 1:] *= beta2**0.5
        dither = quantize.spread(torch.tensor([float(step)]), 0, 1, 128)
        r = quantize.decode_roots(*quantize.encode_roots(r, dither, F32), F32)
    true = 0.5 * beta2 ** (steps / 2)
    assert 0.8 * true <= float(r[..., 1:].mean()) <= 1.2 * true
    assert float(r[..., 0]) == 1.0


def test_dither_covers_the_interval_evenly_over_steps_rows_and_columns() -> None:
    over_steps = quantize.spread(torch.arange(256.0) + 1e6, 0, 1, 1).flatten()
    rows, columns = quantize.spread(torch.ones(1), 5, 256, 1), quantize.spread(torch.ones(1), 0, 1, 256)
    for values in (over_steps, rows.flatten(), columns.flatten()):
        counts = torch.histc(values, 8, 0.0, 1.0)
        assert counts.min() >= 24 and counts.max() <= 40
    later = quantize.spread(torch.ones(1), 7, 254, 1)  # panels agree with the whole
    assert torch.equal(rows[:, 2:], later)


@LEVELS
@pytest.mark.parametrize("n", [100, 128, 1000])
def test_the_expected_error_is_that_of_rounding(levels: int, n: int) -> None:
    x = torch.randn(64, n, generator=torch.Generator().manual_seed(0))
    c, s = quantize.encode(x, levels, F32)
    y = quantize.decode(c, s, levels, F32)
    true = float((y - x).norm() / x.norm())
    assert float(quantize.relative_error(y, s, levels)) == pytest.approx(true, rel=0.05)
    halves = quantize.relative_error(y.unflatten(0, (32, 2)), s.unflatten(0, (32, 2)), levels)
    assert float(halves) == pytest.approx(true, rel=0.05)
    assert float(quantize.relative_error(y * 1e-30, s * 1e-30, levels)) == pytest.approx(true, rel=0.05)
    assert float(quantize.relative_error(0 * y, s, levels)) == 0.0
    one = torch.zeros(1, 300)
    one[0, 0] = 3.0  # the other blocks have no errors
    expected = (128 / 12) ** 0.5 / levels
    scales = quantize.encode(one, levels, F32)[1]
    assert float(quantize.relative_error(one, scales, levels)) == pytest.approx(expected)

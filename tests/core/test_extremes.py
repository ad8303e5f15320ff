"""Norms and sums of squares of numbers whose squares leave the range of their dtype."""

import pytest
import torch

from cases import F32, F64
from checks import assert_close
from sketchy.core import extremes
from sketchy.core.tasks import run


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1.0, 1e20, 1e30])
def test_frobenius_is_right_where_squares_overflow(scale, rng):
    A = (torch.randn(5, 7, generator=rng, dtype=F64) * scale).to(F32)
    assert_close(extremes.frobenius(A), A.double().norm(), scale=scale, tolerance=1e-5)


@pytest.mark.parametrize("fill", ["gaussian", 0.1, 1.3])
@pytest.mark.parametrize("scale", [1.0, 1e25])
def test_frobenius_of_a_large_matrix_is_right_to_a_few_eps(fill, scale, rng):
    """A plain float32 sum over four million squares is off by hundreds of eps."""
    shape = (2000, 2000)
    A = torch.randn(shape, generator=rng) if fill == "gaussian" else torch.full(shape, float(fill))
    A = A * scale
    assert_close(extremes.frobenius(A), A.double().norm(), scale=A.double().norm(), tolerance=2e-6)


def test_energies_of_numbers_whose_squares_are_subnormal_have_all_digits():
    A = torch.full((40, 50), 3e-21)
    for found, count in zip(extremes.energies(A), (50, 40), strict=True):
        assert_close(found / (count * 9e-42), torch.ones_like(found), scale=1, tolerance=1e-6)


@pytest.mark.parametrize(
    ("norm", "past", "dtype", "expected"),
    [
        (1e-45, 0.0, F32, 2.0**-100),
        (3e39, 0.0, F32, 2.0**126),
        (1e-200, 0.0, F64, 2.0**-500),
        (1e200, 0.0, F64, 2.0**500),
        (1e30, 1.0, F32, 2.0**99),
        (1.0, 4.0**41, F32, 2.0**40),  # √(past / 4)
        (2.0**-28, 0.0, F32, 2.0**-28),
        (0.0, 0.0, F32, 1.0),
    ],
)
def test_an_extreme_matrix_is_scaled_by_a_power_of_two_at_or_below_its_norm(norm, past, dtype, expected):
    """And a moderate one beside it is not."""
    norms, pasts = (torch.tensor([x, 1.0], dtype=F64) for x in (norm, past))
    found = run(extremes.extreme_scale(norms, pasts, 0.25, dtype))
    assert found.tolist() == [expected, 1.0]


def test_energies_of_the_largest_number_are_finite():
    most = torch.finfo(F32).max
    assert extremes.row_energy(torch.full((2, 3, 4), most)).tolist() == [[4 * most**2] * 3] * 2


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_frobenius_of_a_bad_matrix_is_not_finite(bad):
    A = torch.ones(4, 3)
    A[2, 1] = bad
    assert not torch.isfinite(extremes.frobenius(A))


@pytest.mark.parametrize("scale", [0.0, 1e-42, 1e-20, 1.0, 1e30])
def test_on_an_accelerator_energies_are_sums_of_squares(blind, scale, rng):
    A = (torch.randn(3, 5, 7, generator=rng, dtype=F64) * scale).to(F32)
    squares = A.double().square()
    for norms, dim in ((extremes.row_norms(A), -1), (extremes.column_norms(A), -2)):
        assert_close(norms.square(), squares.sum(dim), scale=squares.sum(), tolerance=1e-5)
    for found, dim in zip(extremes.energies(A), (-1, -2), strict=True):
        assert_close(found, squares.sum(dim), scale=squares.sum(), tolerance=1e-5)
    assert extremes.column_norms(A[:, :0]).tolist() == [[0.0] * 7] * 3

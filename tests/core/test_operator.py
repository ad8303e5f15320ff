"""Each method of the operator equals the same operation on the dense matrix."""

import pytest
import torch

from cases import F32, F64, stream
from checks import assert_close
from sketchy import reference
from sketchy.core import sketch
from sketchy.core.operator import Compensated

POWERS = (-1.0, -0.5, -0.25, 0.0, 0.3, 0.5, 1.0, 2.0)


def case(name: str, rng: torch.Generator) -> Compensated:
    """A sketch with mass everywhere, one without escaped mass, a full one, an empty one."""
    d = 12
    match name:
        case "hot":
            matrices, rank = stream("power", d, 5, 10), 4
        case "cold":
            matrices, rank = stream("power", d, 1, 3), 6
        case "full":
            matrices, rank = stream("power", d, 5, 10), d
        case "empty":
            matrices, rank = [], 4
    state = sketch.empty(d, rank, dtype=F64)
    for A in matrices:
        state = sketch.update(state, A, beta2=0.9)
    return Compensated.of(state)


@pytest.fixture(params=["hot", "cold", "full", "empty"])
def operator(request, rng):
    return case(request.param, rng)


def twin(operator: Compensated) -> torch.Tensor:
    eye = torch.eye(operator.dim, dtype=F64)
    return (operator.basis * operator.eigenvalues) @ operator.basis.T + operator.escaped_mass * eye


def test_to_dense_is_the_sketch_plus_the_escaped_mass(operator):
    assert_close(operator.to_dense(), twin(operator), scale=1, tolerance=1e-13)
    assert torch.equal(operator.apply(torch.eye(operator.dim, dtype=F64)), operator.to_dense())


@pytest.mark.parametrize("power", POWERS)
def test_apply_equals_the_dense_pseudo_power(operator, power, rng):
    x = torch.randn(operator.dim, 3, generator=rng, dtype=F64)
    S = twin(operator)
    expected = reference.pseudo_power((S + S.T) / 2, power) @ x
    assert_close(operator.apply(x, power), expected, scale=1 + expected.abs().max(), tolerance=1e-10)
    assert_close(operator.to_dense(power) @ x, expected, scale=1 + expected.abs().max(), tolerance=1e-10)


@pytest.mark.parametrize("p", [1, 2, 4])
def test_an_inverse_root_applied_p_times_is_the_pseudo_inverse(operator, p, rng):
    x = torch.randn(operator.dim, 2, generator=rng, dtype=F64)
    y = x
    for _ in range(p):
        y = operator.apply(y, -1 / p)
    assert_close(
        y, torch.linalg.pinv(twin(operator), rtol=1e-13) @ x, scale=1 + y.abs().max(), tolerance=1e-9
    )


def test_trace_and_log_determinant_equal_the_dense_ones(operator):
    assert_close(operator.trace(), twin(operator).trace(), scale=1, tolerance=1e-12)
    lam = torch.linalg.eigvalsh(twin(operator))
    if lam.min() > 1e-12 * lam.max():
        assert_close(operator.logdet(), lam.log().sum(), scale=1 + lam.log().sum().abs(), tolerance=1e-9)
    else:
        assert operator.logdet() == -torch.inf


@pytest.mark.parametrize("noise", [0.0, 1e-16, 9e-15])
def test_rounding_noise_is_never_inverted(noise, rng):
    U = torch.linalg.qr(torch.randn(6, 3, generator=rng, dtype=F64))[0]
    lam = torch.tensor([4.0, noise * 4.0, 0.0], dtype=F64)
    operator = Compensated(U, lam, torch.tensor(0.0, dtype=F64))
    x = torch.randn(6, 1, generator=rng, dtype=F64)
    assert_close(operator.apply(x, -0.5), U[:, :1] @ U[:, :1].T @ x / 2, scale=1, tolerance=1e-14)


def test_by_default_an_eigenvalue_is_noise_up_to_1e_14_of_the_largest(rng):
    U, zero = torch.linalg.qr(torch.randn(6, 3, generator=rng, dtype=F64))[0], torch.tensor(0.0, dtype=F64)
    lam = torch.tensor([3.0, 6e-14, 2.9e-14], dtype=F64)
    for operator in (Compensated(U, lam, zero), Compensated.of(sketch.Sketch(U, lam, zero, zero))):
        assert operator.spectrum()[0].tolist() == [3.0, 6e-14, 0.0]


def test_a_threshold_is_relative_to_the_largest_eigenvalue(rng):
    U = torch.linalg.qr(torch.randn(6, 2, generator=rng, dtype=F64))[0]
    lam = torch.tensor([1e-40, 0.0], dtype=F64)
    operator = Compensated(U, lam, torch.tensor(1e-42, dtype=F64), threshold=1e-3)
    assert operator.spectrum()[1] == 1e-42
    assert Compensated(U, lam, operator.escaped_mass, threshold=0.1).spectrum()[1] == 0


@pytest.mark.parametrize(("size", "power", "x"), [(1e40, 1.0, 1e-10), (1e-40, -1.0, 1e-20)])
def test_weights_beyond_the_range_of_float32_give_results_within_it(size, power, x):
    U = torch.eye(4)[:, :2]
    operator = Compensated(U, torch.tensor([size, 0.0], dtype=F64), torch.tensor(size, dtype=F64))
    expected = torch.tensor([(2 * size) ** power, size**power, size**power, size**power], dtype=F64) * x
    actual = operator.apply(torch.full((4, 1), x), power).squeeze(-1)
    assert_close(actual, expected, scale=expected.max(), tolerance=1e-6)


@pytest.mark.parametrize("dtype", [F32, F64])
def test_batches_and_dtypes_are_kept(dtype, rng):
    state = sketch.empty(8, 3, batch=(2, 4), dtype=dtype)
    state = sketch.update(state, torch.randn(2, 4, 8, 5, generator=rng).to(dtype))
    operator = Compensated.of(state)
    x = torch.randn(2, 4, 8, 2, generator=rng).to(dtype)
    y = operator.apply(x, -0.5)
    assert y.dtype == dtype and y.shape == x.shape
    one = Compensated(state.basis[1, 2], state.eigenvalues[1, 2], state.escaped_mass[1, 2])
    assert_close(y[1, 2], one.apply(x[1, 2], -0.5), scale=1, tolerance=1e-5)
    assert operator.trace().shape == operator.logdet().shape == (2, 4)
    assert operator.outside == one.outside and operator.trace()[1, 2] == one.trace()
    assert operator.to_dense().shape == (2, 4, 8, 8)

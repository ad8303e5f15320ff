"""The polar step: products of Gram matrices give the singular values that Newton-Schulz gives."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from checks import assert_close
from sketchy import reference
from sketchy.core.linalg import gaussian
from sketchy.core.polar import polar_
from sketchy.core.tasks import run

F64 = torch.float64
SHAPES = [(6, 6), (4, 9), (9, 4), (1, 5), (5, 1)]


def matrix(m, n, seed=0, dtype=F64):
    return gaussian(m, n, seed=seed, like=torch.empty(0, dtype=dtype)).unsqueeze(0)


@pytest.mark.parametrize("steps", [1, 3, 5])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_step_is_newton_schulz_on_the_matrix_itself(shape, steps):
    X, scale = matrix(*shape), torch.tensor([0.5], dtype=F64)
    direction, factor = run(polar_(X.clone(), scale, steps))
    assert_close(factor * direction[0], reference.polar(0.5 * X[0], steps), scale=1, tolerance=1e-12)


@pytest.mark.parametrize("shape", SHAPES)
def test_after_enough_steps_singular_values_are_alike_and_vectors_are_kept(shape):
    X = matrix(*shape)
    direction, scale = run(polar_(X.clone(), torch.ones(1, dtype=F64), 8))
    U, _, V = torch.linalg.svd(X[0], full_matrices=False)
    turned = U.T @ (scale * direction[0]) @ V.T
    values = turned.diagonal()
    assert float((turned - torch.diag(values)).abs().max()) < 1e-9 * float(values.max())
    assert float(values.min()) > 0.5 * float(values.max())


@settings(deadline=None, max_examples=50)
@given(
    power=st.integers(-30, 25),
    dtype=st.sampled_from([torch.float32, F64]),
    shape=st.sampled_from(SHAPES),
    zero=st.booleans(),
)
def test_the_length_stays_the_same_and_zero_stays_zero(power, dtype, shape, zero):
    X = matrix(*shape, dtype=dtype) * 10.0**power * (0 if zero else 1)
    both = torch.cat([X, matrix(*shape, seed=1, dtype=dtype)])
    direction, scale = run(polar_(both.clone(), torch.ones(2, dtype=F64), 3))
    found = scale * torch.linalg.matrix_norm(direction.double())
    expected = torch.linalg.matrix_norm(both.double())
    assert direction.isfinite().all()
    assert_close(found / expected.clamp(min=1e-300), (expected > 0).double(), scale=1, tolerance=1e-5)


@pytest.mark.parametrize("size", [1e-30, 1e25])
def test_the_polar_factor_does_not_depend_on_the_size_of_a_direction(size):
    X, one = matrix(4, 9, dtype=torch.float32), torch.ones(1, dtype=F64)
    (found, factor), (expected, scale) = (run(polar_(c * X, one, 3)) for c in (size, 1.0))
    assert_close(factor / size * found, scale * expected, scale=1, tolerance=1e-5)


def test_a_block_with_more_axes_is_a_matrix_of_its_first_one():
    x, one = matrix(3, 20).reshape(1, 3, 4, 5), torch.ones(1, dtype=F64)
    found, factor = run(polar_(x.clone(), one, 3, (None, None, None)))
    expected, scale = run(polar_(x.reshape(1, 3, 20), one, 3))
    assert torch.equal(found, expected.reshape(x.shape)) and torch.equal(factor, scale)

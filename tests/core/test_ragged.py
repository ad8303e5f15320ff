"""Stacks of unlike sketches that are updated together are what they would be one by one."""

import pytest
import torch
from torch import Tensor

from cases import F32, F64, stream
from checks import assert_close
from sketchy.core import sketch
from sketchy.core.preconditioner import inverse_root, inverse_roots
from sketchy.core.sketch import SOLVERS, Sketch

RANK, STEPS = 6, 8
SIZES = ((20, 9), (12, 30), (40, 7))  # d and k
# of the streams in each of three stacks: all cheap; a step each on the safe road, in float64, by the SVD
MIXTURES = (
    ("power", "white", "drifting"),
    ("rank-deficient", "power", "zero"),
    ("zero", "repeated", "white"),
)


def stacks(kinds: tuple[str, ...], dtype: torch.dtype) -> list[list[Tensor]]:
    """For each step, a stack (2, d, k) for each of the sizes."""
    made = []
    for i, (kind, (d, k)) in enumerate(zip(kinds, SIZES, strict=True)):
        pair = [stream(kind, d, k, STEPS, seed=10 * i + j, dtype=dtype) for j in range(2)]
        made.append([torch.stack(matrices) for matrices in zip(*pair, strict=True)])
    return [list(each) for each in zip(*made, strict=True)]


def dense(state: Sketch) -> Tensor:
    U = state.basis.double()
    return (U * state.eigenvalues.unsqueeze(-2)) @ U.mT


def alike(actual: Sketch, expected: Sketch, tolerance: float) -> None:
    scale = expected.eigenvalues.amax().clamp(min=1e-300)
    assert_close(dense(actual), dense(expected), scale=scale, tolerance=tolerance)
    for name in ("eigenvalues", "escaped_mass", "error_bound"):
        assert_close(getattr(actual, name), getattr(expected, name), scale=scale, tolerance=tolerance)


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("size", [1.0, 1e-12])
@pytest.mark.parametrize("kinds", MIXTURES)
def test_sketches_updated_together_are_those_updated_alone(kinds, size, solver, dtype):
    empty = [sketch.empty(d, RANK, batch=(2,), dtype=dtype) for d, _ in SIZES]
    together, alone = list(empty), list(empty)
    tolerance = 2e-3 if dtype == F32 else 1e-9
    for As in stacks(kinds, dtype):
        As = [As[0] * size, *As[1:]]
        together = sketch.update_all(together, As, beta2=0.9, solver=solver)
        alone = [sketch.update(s, A, beta2=0.9, solver=solver) for s, A in zip(alone, As, strict=True)]
    for actual, expected in zip(together, alone, strict=True):
        alike(actual, expected, tolerance)


def test_inverse_roots_taken_together_are_those_taken_alone(rng):
    sketches = []
    for d, k in (*SIZES, (RANK, 11)):  # the last is whole
        state = sketch.empty(d, RANK, batch=(2,), dtype=F64)
        A = torch.randn(2, d, k, generator=rng, dtype=F64)
        sketches.append(sketch.update(state, A) if d != 12 else state)  # one has seen nothing
    for actual, state in zip(inverse_roots(sketches, 0.25, 1e-7), sketches, strict=True):
        expected = inverse_root(state, 0.25, 1e-7)
        assert_close(actual.inside, expected.inside, scale=1.0, tolerance=1e-14)
        assert_close(actual.outside, expected.outside, scale=1.0, tolerance=1e-14)
        assert actual.basis is state.basis

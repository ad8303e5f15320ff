"""Whitened streams: the fast form equals the dense one, and certificates hold for what a sketch sees."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from checks import assert_close
from sketchy import reference
from sketchy.core import sketch as core
from sketchy.core.linalg import gaussian
from sketchy.core.sketch import Sketch
from sketchy.core.tasks import run
from sketchy.core.whitening import DAMPING, Whitened, Whitening, whitening

F64 = torch.float64


def stack(rows: int, columns: int, seed: int, dtype: torch.dtype = F64) -> Tensor:
    return gaussian(rows, columns, seed=seed, like=torch.empty(0, dtype=dtype)).unsqueeze(0)


def sketched(dim: int, rank: int, seed: int = 0, updates: int = 3, dtype: torch.dtype = F64) -> Sketch:
    found = core.empty(dim, rank, batch=(1,), dtype=dtype)
    for i in range(updates):
        found = core.update(found, stack(dim, 2 * dim, seed + i, dtype), beta2=0.9)
    return found


def dense(sketch: Sketch) -> Tensor:
    """B Bᵀ + ρ I."""
    eye = torch.eye(sketch.dim, dtype=F64)
    return ((sketch.basis * sketch.eigenvalues.unsqueeze(-2)) @ sketch.basis.mT + sketch.escaped_mass * eye)[
        0
    ]


@pytest.mark.parametrize(("dim", "rank", "updates"), [(9, 4, 3), (6, 6, 3), (9, 4, 0), (5, 5, 0), (12, 2, 1)])
def test_products_and_norms_are_those_of_the_dense_root(dim, rank, updates):
    sketch = sketched(dim, rank, updates=updates)
    W, expected = whitening(sketch), reference.whitening(dense(sketch), DAMPING)
    X, G = stack(dim, 3, 10), stack(7, dim, 11)
    once, again = run(W.twice(X))
    assert_close(once[0], expected @ X[0], scale=1, tolerance=1e-12)
    assert_close(again[0], expected @ expected @ X[0], scale=1, tolerance=1e-12)
    assert_close(run(W.apply(X)), once, scale=1, tolerance=1e-12)
    assert_close(run(W.form(G))[0], G[0] @ expected, scale=1, tolerance=1e-12)
    norm = torch.linalg.matrix_norm(G)
    assert_close(
        run(W.norm(norm, G @ sketch.basis))[0],
        torch.linalg.matrix_norm(run(W.form(G))),
        scale=1,
        tolerance=1e-12,
    )
    assert float(W.outside) >= float(torch.linalg.matrix_norm(expected, 2)) * (1 - 1e-12)


def test_weights_are_inverse_roots_relative_to_the_mean_of_each_sketch():
    """Also if the last eigenvalue is not zero, as in a full covariance; an empty sketch has the weights 1."""
    lam, rho = (
        torch.tensor([[6.0, 2.0], [4.0, 3.0], [0.0, 0.0]], dtype=F64),
        torch.tensor([2.0, 0.0, 0.0], dtype=F64),
    )
    W = whitening(Sketch(torch.eye(4, 2, dtype=F64).expand(3, 4, 2), lam, rho, rho))
    inside, outside = lam + rho.unsqueeze(-1), rho.clone()
    for values in (inside, outside):
        values[0], values[1] = (values[0] / 4 + DAMPING) ** -0.5, (values[1] / 1.75 + DAMPING) ** -0.5
        values[2] = 1.0
    assert_close(W.inside, inside, scale=1, tolerance=1e-14)
    assert_close(W.outside, outside, scale=32, tolerance=1e-14)
    for found, expected in zip(W.short, (inside, inside - outside.unsqueeze(-1), outside), strict=True):
        assert_close(found, expected, scale=32, tolerance=1e-14)


def whitened_update(sketch: Sketch, G: Tensor, W: Whitening, beta2: float) -> Sketch:
    norm = torch.linalg.matrix_norm(G.double())
    whitened = Whitened(W, G.mT @ sketch.basis, W.outside * norm)
    return run(
        core.update_task(
            sketch,
            G,
            beta2=beta2,
            solver="subspace",
            norm=run(W.norm(norm, G @ W.basis))[0],
            whitened=whitened,
        )
    )


@pytest.mark.parametrize("beta2", [1.0, 0.9])
@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
def test_an_update_without_forming_the_stream_equals_one_with_it(beta2, scale):
    W, sketch = whitening(sketched(8, 3, seed=5)), sketched(10, 4)
    found = whitened_update(sketch, scale * stack(10, 8, 20), W, beta2)
    expected = core.update(sketch, scale * run(W.form(stack(10, 8, 20))), beta2=beta2, solver="subspace")
    size = float(expected.eigenvalues[..., 0])
    assert_close(found.eigenvalues, expected.eigenvalues, scale=size, tolerance=1e-12)
    assert_close(found.escaped_mass, expected.escaped_mass, scale=size, tolerance=1e-12)
    B, C = (s.basis * s.eigenvalues.unsqueeze(-2) @ s.basis.mT for s in (found, expected))
    assert_close(B, C, scale=size, tolerance=1e-12)


@settings(deadline=None, max_examples=40)
@given(
    seed=st.integers(0, 10**6),
    beta2=st.sampled_from([1.0, 0.95, 0.5]),
    dtype=st.sampled_from([torch.float32, F64]),
    steepness=st.sampled_from([0.0, 1.0, 3.0]),
    live=st.integers(1, 8),
)
def test_the_certificate_holds_for_the_whitened_stream(seed, beta2, dtype, steepness, live):
    """Both sketches of a drifting low-rank stream, each whitened by the other; C is summed in float64."""
    m, n, rank = 14, 11, 4
    left, right = (core.empty(d, rank, batch=(1,), dtype=dtype) for d in (m, n))
    C = torch.zeros(m, m, dtype=F64)
    for step in range(6):
        spectrum = torch.arange(1, live + 1, dtype=F64) ** -steepness
        P, Q = stack(m, live, seed + step), stack(n, live, seed + 100 + step // 3)
        G = ((P * spectrum) @ Q.mT).to(dtype)
        W_R, W_L = whitening(right), whitening(left)
        A = run(W_R.form(G))[0]
        C = beta2 * C + A @ A.T
        left, right = (
            whitened_update(left, G, W_R, beta2),
            whitened_update(right, G.mT.contiguous(), W_L, beta2),
        )
        U = left.basis[0].double()
        error = torch.linalg.matrix_norm(C - (U * left.eigenvalues[0]) @ U.T, 2)
        assert float(error) <= float(left.error_bound) * (1 + 1e-9)


def test_rounding_noise_of_a_low_rank_stream_does_not_count_as_directions():
    """The live direction has a small weight, all others a large one: noise grows by their ratio."""
    m, n, rank = 96, 128, 8
    left, right = (core.empty(d, rank, batch=(1,), dtype=torch.float32) for d in (m, n))
    G = stack(m, 1, 1, torch.float32) @ stack(n, 1, 2, torch.float32).mT
    for _ in range(5):
        W_R, W_L = whitening(right), whitening(left)
        left, right = (
            whitened_update(left, G, W_R, 0.95),
            whitened_update(right, G.mT.contiguous(), W_L, 0.95),
        )
    assert int((left.eigenvalues > 0).sum()) == 1
    assert int((right.eigenvalues > 0).sum()) == 1


def test_directions_below_the_rounding_errors_of_whitened_products_are_cut():
    """These errors are relative to the noise of the products, or to the largest σ if that is larger."""
    sigma, zero = torch.tensor([[4.0, 1.0, 0.25]], dtype=F64), torch.zeros(1, dtype=F64)
    old, rounding = (torch.full((1,), 5.0, dtype=F64), sigma.new_zeros(1, 3), zero, zero), (1e-3, 0.0)
    plain = core._cut(sigma, *old, *rounding, beta2=0.9)
    for noise, live in ((0.0, 3), (0.5 / (core.NOISE * torch.finfo(F64).eps), 2)):
        found = core._cut(sigma, *old, zero + noise, *rounding, beta2=0.9, names=("noise",))
        assert found[3].sum() == live
        assert noise or all(map(torch.equal, found[:4], plain[:4]))

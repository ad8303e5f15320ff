"""Promises of the sketch: equalities first, then orders and bounds, then long streams."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cases import DECAYING, DECAYS, F32, F64, SOLVERS, STREAMS, TOLERANCE, covariance, stream
from checks import assert_close, assert_psd_leq, dense, norm, orthonormality
from sketchy import reference
from sketchy.core import bounds, sketch
from sketchy.core.linalg import gaussian
from sketchy.core.operator import Compensated
from sketchy.core.sketch import Sketch

PROBES = 16


def run(matrices, rank, *, decay=1.0, solver="exact", probe=True):
    """The sketches after each update."""
    d, dtype = len(matrices[0]), matrices[0].dtype
    state, states = sketch.empty(d, rank, dtype=dtype), []
    for t, A in enumerate(matrices):
        probes = gaussian(PROBES, d, seed=1000 + t, like=A) if probe else None
        state = sketch.update(state, A, beta2=decay, solver=solver, probes=probes)
        states.append(state)
    return states


@st.composite
def problems(draw):
    """A short stream, the sketch's rank and the decay."""
    d = draw(st.integers(1, 14))
    matrices = stream(
        draw(st.sampled_from(STREAMS)),
        d,
        draw(st.integers(1, 18)),
        draw(st.integers(1, 6)),
        seed=draw(st.integers(0, 10**6)),
    )
    return matrices, draw(st.integers(2, d + 2)), draw(st.sampled_from((*DECAYS, 0.5, 0.0)))


# -- equalities --------------------------------------------------------------------------------------


@given(problems())
def test_the_exact_solver_equals_the_reference(problem):
    matrices, rank, decay = problem
    oracle = reference.DenseSketch.empty(len(matrices[0]), rank)
    for A, state in zip(matrices, run(matrices, rank, decay=decay), strict=True):
        oracle = oracle.update(A @ A.T, decay)
        scale = norm(oracle.compensated())
        assert_close(dense(state), oracle.G_bar, scale=scale, tolerance=1e-10)
        assert_close(state.escaped_mass, oracle.rho, scale=scale, tolerance=1e-10)


@given(problems(), st.sampled_from(SOLVERS))
def test_the_record_is_what_it_says(problem, solver):
    """Orthonormal basis; eigenvalues descending, the last one exactly 0 (Alg. 1, its invariant)."""
    matrices, rank, decay = problem
    for state in run(matrices, rank, decay=decay, solver=solver):
        assert orthonormality(state.basis) < 1e-13
        assert state.eigenvalues[-1] == 0
        assert (state.eigenvalues.diff() <= 0).all()
        assert state.escaped_mass >= 0
        assert state.rank == min(rank, state.dim)


@given(problems(), st.sampled_from(SOLVERS))
def test_at_full_rank_the_compensated_sketch_is_the_covariance(problem, solver):
    matrices, _, decay = problem
    d = len(matrices[0])
    state = run(matrices, d, decay=decay, solver=solver)[-1]
    C = covariance(matrices, decay)
    assert_close(Compensated.of(state, threshold=0).to_dense(), C, scale=norm(C), tolerance=1e-10)


@given(st.integers(0, 10**6), st.integers(2, 8), st.integers(3, 12))
def test_lemma_10_for_rank_one_streams(seed, rank, d):
    """G̃_t = G_t + Σ ρ_s N_s, N_s the projector on what the basis leaves out."""
    rank = min(rank, d)
    vectors = stream("power", d, 1, 15, seed=seed)
    added = torch.zeros(d, d, dtype=F64)
    before = 0.0
    for t, state in enumerate(run(vectors, rank)):
        escaped = state.escaped_mass - before
        before = state.escaped_mass
        added += escaped * (torch.eye(d, dtype=F64) - state.basis @ state.basis.T)
        C = covariance(vectors[: t + 1])
        compensated = dense(state) + state.escaped_mass * torch.eye(d, dtype=F64)
        assert_close(compensated, C + added, scale=norm(C), tolerance=1e-12)


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("shape", ["single vectors", "repeated vectors", "sparse, then elsewhere", "wide"])
def test_cold_start_is_exact_while_the_stream_has_a_lower_rank(shape, solver, decay, dtype, rng):
    d, rank = 40, 12
    vectors = list(torch.randn(rank - 1, d, 1, generator=rng, dtype=F64))
    match shape:
        case "single vectors":
            matrices = vectors
        case "repeated vectors":  # many more updates than directions
            matrices = [vectors[t % 5] for t in range(40)]
        case "sparse, then elsewhere":  # a free direction must not have been left where rounding put it
            sparse = torch.zeros(d, 1, dtype=F64)
            sparse[:4] = torch.randn(4, 1, generator=rng, dtype=F64)
            block = torch.zeros(d, rank - 3, dtype=F64)
            block[20:] = torch.randn(20, rank - 3, generator=rng, dtype=F64)
            matrices = [sparse] * 5 + [block]
        case _:  # a wide block of low rank
            low = torch.randn(d, 6, generator=rng, dtype=F64)
            matrices = [low @ torch.randn(6, 100, generator=rng, dtype=F64) for _ in range(3)]
    matrices = [A.to(dtype) for A in matrices]
    for t, state in enumerate(run(matrices, rank, decay=decay, solver=solver)):
        C = covariance(matrices[: t + 1], decay)
        assert state.escaped_mass == 0
        assert_close(dense(state), C, scale=norm(C), tolerance=TOLERANCE[dtype])


@pytest.mark.parametrize("solver", SOLVERS)
def test_after_one_huge_gradient_small_ones_still_add_up(solver, rng):
    """Each small update is below eps of the whole; a thousand of them are not."""
    d, small = 30, torch.randn(30, 3, generator=rng)
    matrices = [1e4 * torch.randn(d, 1, generator=rng), *[small] * 1000]
    state = run(matrices, 8, solver=solver, probe=False)[-1]
    C = covariance(matrices)
    expected = torch.linalg.eigvalsh(C).flip(0)[:4]
    assert_close(state.eigenvalues[1:4], expected[1:4], scale=expected[1], tolerance=0.02)


@given(problems(), st.sampled_from(SOLVERS), st.sampled_from([1e-15, 0.125, 3.0, 1e12]))
def test_scaling_the_stream_scales_eigenvalues_and_escaped_mass_by_the_square(problem, solver, c):
    matrices, rank, decay = problem
    plain = run(matrices, rank, decay=decay, solver=solver)[-1]
    scaled = run([c * A for A in matrices], rank, decay=decay, solver=solver)[-1]
    largest = plain.eigenvalues[0] + plain.escaped_mass
    assert_close(scaled.eigenvalues / c**2, plain.eigenvalues, scale=largest, tolerance=1e-8)
    assert_close(scaled.escaped_mass / c**2, plain.escaped_mass, scale=largest, tolerance=1e-8)


@given(problems(), st.integers(0, 10**6))
def test_rotating_the_stream_rotates_the_basis(problem, seed):
    matrices, rank, decay = problem
    d = len(matrices[0])
    R = torch.linalg.qr(torch.randn(d, d, generator=torch.Generator().manual_seed(seed), dtype=F64))[0]
    plain = run(matrices, rank, decay=decay)[-1]
    turned = run([R @ A for A in matrices], rank, decay=decay)[-1]
    scale = norm(covariance(matrices, decay))
    assert_close(dense(turned), R @ dense(plain) @ R.T, scale=scale, tolerance=1e-9)
    assert_close(turned.escaped_mass, plain.escaped_mass, scale=scale, tolerance=1e-9)


@given(problems(), st.sampled_from(SOLVERS))
def test_the_order_of_columns_inside_an_update_is_irrelevant(problem, solver):
    matrices, rank, decay = problem
    plain = run(matrices, rank, decay=decay, solver=solver)[-1]
    flipped = run([A.flip(-1) for A in matrices], rank, decay=decay, solver=solver)[-1]
    scale = norm(covariance(matrices, decay))
    assert_close(dense(flipped), dense(plain), scale=scale, tolerance=1e-8)


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_batch_of_sketches_equals_one_by_one(solver, dtype):
    kinds = ["power", "rank-deficient", "huge", "zero", "drifting", "tiny"]
    streams = [stream(kind, 20, 4, 6, seed=i, dtype=dtype) for i, kind in enumerate(kinds)]
    batched = sketch.empty(20, 7, batch=(2, 3), dtype=dtype)
    for step in zip(*streams, strict=True):
        A = torch.stack(step).reshape(2, 3, 20, 4)
        batched = sketch.update(batched, A, beta2=0.9, solver=solver)
    for i, matrices in enumerate(streams):
        alone = run(matrices, 7, decay=0.9, solver=solver, probe=False)[-1]
        index = (i // 3, i % 3)
        scale = alone.eigenvalues[0] + alone.escaped_mass
        tolerance = 100 * TOLERANCE[dtype]
        U, lam = batched.basis[index].double(), batched.eigenvalues[index]
        assert_close((U * lam) @ U.T, dense(alone), scale=scale, tolerance=tolerance)
        assert_close(batched.escaped_mass[index], alone.escaped_mass, scale=scale, tolerance=tolerance)
        assert_close(batched.error_bound[index], alone.error_bound, scale=scale, tolerance=tolerance)
        # also if another member of the batch has no empty column
        assert orthonormality(U) < 100 * torch.finfo(dtype).eps


@pytest.mark.parametrize("solver", SOLVERS)
def test_beside_a_full_sketch_an_empty_one_still_finds_directions_that_were_zero_before(solver):
    """Random columns replace empty ones in each member: others could be at right angles to a new gradient."""
    full, sparse = stream("white", 20, 9, 4), torch.zeros(4, 20, 9, dtype=F64)
    sparse[:2, 0], sparse[2:, 15] = 1.0, 2.0
    found = sketch.empty(20, 5, batch=(2,), dtype=F64)
    for A, B in zip(full, sparse, strict=True):
        found = sketch.update(found, torch.stack([A, B]), beta2=0.9, solver=solver)
    U, C = found.basis[1], covariance(list(sparse), 0.9)
    assert_close((U * found.eigenvalues[1]) @ U.T, C, scale=norm(C), tolerance=1e-12)


# -- orders and bounds -------------------------------------------------------------------------------


@given(problems(), st.sampled_from(SOLVERS))
def test_the_sketch_lies_below_the_covariance_for_both_solvers(problem, solver):
    matrices, rank, decay = problem
    for t, state in enumerate(run(matrices, rank, decay=decay, solver=solver)):
        C = covariance(matrices[: t + 1], decay)
        assert_psd_leq(dense(state), C, scale=norm(C), tolerance=1e-12)


@given(problems())
def test_the_covariance_lies_below_the_compensated_sketch(problem):
    matrices, rank, decay = problem
    for t, state in enumerate(run(matrices, rank, decay=decay)):
        C = covariance(matrices[: t + 1], decay)
        compensated = dense(state) + state.escaped_mass * torch.eye(len(C), dtype=F64)
        assert_psd_leq(C, compensated, scale=norm(C), tolerance=1e-12)


@given(problems(), st.sampled_from(SOLVERS))
def test_the_escaped_mass_keeps_lemma_1_and_observation_6(problem, solver):
    matrices, rank, decay = problem
    state = run(matrices, rank, decay=decay, solver=solver)[-1]
    lam = torch.linalg.eigvalsh(covariance(matrices, decay)).clamp(min=0)
    omega = bounds.escaped_mass_bound(lam, rank)
    assert state.escaped_mass <= omega + 1e-12 * lam.max()


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("k", [1, 10, 80])
@pytest.mark.parametrize("kind", STREAMS)
def test_the_certificate_holds_at_every_moment_and_says_something(kind, k, solver, decay, dtype, seed):
    d, rank, steps = 60, 16, 60
    matrices = stream(kind, d, k, steps, seed=seed, dtype=dtype)
    resolved = 100 * torch.finfo(dtype).eps  # an error below this many eps is rounding, not sketching
    loosest = 0.0
    for t, state in enumerate(run(matrices, rank, decay=decay, solver=solver)):
        C = covariance(matrices[: t + 1], decay)
        error, largest = norm(C - dense(state)), norm(C)
        assert state.error_bound >= error, f"step {t}: {state.error_bound} < {error}"
        if error > resolved * largest:
            loosest = max(loosest, float(state.error_bound) / error)
    if kind in DECAYING:
        assert loosest <= 15
    if solver == "exact":
        slack = state.error_bound - state.escaped_mass
        assert 0 <= slack <= 50 * torch.finfo(dtype).eps * steps * largest


@pytest.mark.parametrize("decay", [1.0, 0.999])
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("kind", ["power", "drifting"])
def test_after_a_thousand_float32_updates_the_certificate_still_says_something(kind, solver, decay):
    matrices = stream(kind, 40, 8, 1000, dtype=F32)
    state = run(matrices, 10, decay=decay, solver=solver)[-1]
    error = norm(covariance(matrices, decay) - dense(state))
    assert error <= state.error_bound <= 15 * error


@pytest.mark.parametrize("k", [1, 10, 80])
@pytest.mark.parametrize("kind", STREAMS)
def test_without_probes_the_trace_bound_still_holds(kind, k, seed):
    matrices = stream(kind, 60, k, 40, seed=seed)
    for t, state in enumerate(run(matrices, 16, decay=0.9, solver="subspace", probe=False)):
        assert state.error_bound >= norm(covariance(matrices[: t + 1], 0.9) - dense(state))


@pytest.mark.parametrize("kind", ["power", "drifting"])
def test_the_subspace_solver_is_as_accurate_as_the_exact_one(kind, seed):
    matrices = stream(kind, 80, 40, 60, seed=seed)
    C = covariance(matrices, 0.95)
    error = {s: norm(C - dense(run(matrices, 20, decay=0.95, solver=s, probe=False)[-1])) for s in SOLVERS}
    assert error["subspace"] <= 1.1 * error["exact"], error


# -- merging -----------------------------------------------------------------------------------------


@given(problems(), st.integers(0, 10**6), st.sampled_from(SOLVERS), st.integers(2, 9))
def test_a_merged_sketch_certifies_both_streams_together(problem, seed, solver, other_rank):
    matrices, rank, _ = problem
    others = stream("power", len(matrices[0]), 3, 4, seed=seed)
    first = run(matrices, rank, solver=solver)[-1]
    second = run(others, other_rank)[-1]
    merged = sketch.merge(first, second)
    C = covariance(matrices) + covariance(others)
    assert merged.rank == first.rank
    assert merged.error_bound >= norm(C - dense(merged))
    assert merged.error_bound >= first.error_bound + second.error_bound
    assert_psd_leq(dense(merged), C, scale=norm(C), tolerance=1e-12)
    omega = bounds.escaped_mass_bound(torch.linalg.eigvalsh(C).clamp(min=0), min(rank, other_rank))
    assert merged.escaped_mass <= omega * (1 + 1e-9) + 1e-12 * norm(C)


def test_merging_with_an_empty_sketch_changes_nothing(rng):
    state = run(stream("power", 10, 3, 5), 4)[-1]
    merged = sketch.merge(state, sketch.empty(10, 4, dtype=F64))
    assert_close(dense(merged), dense(state), scale=norm(dense(state)), tolerance=1e-12)
    assert merged.escaped_mass == state.escaped_mass


# -- long streams ------------------------------------------------------------------------------------


def long_stream(steps: int, decay: float, solver: str) -> tuple[Sketch, torch.Tensor]:
    """The sketch and the covariance of many float32 updates."""
    d, rank, k = 24, 6, 2
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(997, d, k, generator=generator)  # prime, so that no pattern builds up
    spectrum = 1.0 / torch.arange(1, d + 1).unsqueeze(-1)
    state, C = sketch.empty(d, rank), torch.zeros(d, d, dtype=F64)
    for t in range(steps):
        A = spectrum * noise[t % 997]
        state = sketch.update(state, A, beta2=decay, solver=solver)
        C.mul_(decay).addmm_(A.double(), A.double().T)
    return state, C


@pytest.mark.parametrize("steps", [3_000, pytest.param(100_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("decay", [1.0, 0.999])
@pytest.mark.parametrize("solver", SOLVERS)
def test_long_float32_streams_keep_the_basis_orthonormal_and_the_certificate(solver, decay, steps):
    state, C = long_stream(steps, decay, solver)
    assert orthonormality(state.basis) < 1e-5
    assert state.error_bound >= norm(C - dense(state))


def test_a_probed_bound_fails_once_in_a_million_unless_told_otherwise(rng):
    A, probes = torch.randn(20, 9, generator=rng, dtype=F64), torch.randn(16, 20, generator=rng, dtype=F64)
    bounds_of = [
        sketch.update(sketch.empty(20, 5, dtype=F64), A, solver="subspace", probes=probes, **options)
        for options in ({}, {"failure_probability": 1e-6}, {"failure_probability": 1e-3})
    ]
    usual, same, bolder = (state.error_bound for state in bounds_of)
    assert usual == same > bolder


def test_the_certificate_counts_the_rounding_errors_of_all_columns(rng):
    """Those of a sum of k squares grow with √k, and columns of zeros count as others do."""
    A = torch.randn(2, 20, 9, generator=rng)
    wide = torch.cat([A, torch.zeros(2, 20, 1991)], -1)
    empty = sketch.empty(20, 5, batch=(2,))
    bounds_of = [sketch.update(empty, X, solver="subspace").error_bound for X in (A, wide)]
    assert (bounds_of[0] < bounds_of[1]).all()

"""The public object: streaming, buffering, certificates, merging."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cases import DECAYS, F32, F64, SOLVERS, covariance, stream
from checks import assert_close, assert_psd_leq, dense, feed, norm, same
from sketchy import FrequentDirections
from sketchy.core import sketch as core
from sketchy.core.linalg import gaussian

# -- streaming -------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("decay", DECAYS)
def test_blocks_are_one_update_each(solver, decay):
    matrices = stream("power", 30, 8, 10)
    fd = feed(FrequentDirections(30, 6, decay=decay, solver=solver, dtype=F64, certificate="none"), matrices)
    state = core.empty(30, 6, dtype=F64)
    for A in matrices:
        state = core.update(state, A, beta2=decay, solver=solver)
    assert torch.equal(fd.basis, state.basis) and torch.equal(fd.eigenvalues, state.eigenvalues)
    assert fd.escaped_mass == state.escaped_mass and fd.error_bound == state.error_bound
    assert fd.count == 80 and fd.state_dict()["folds"] == 10


@pytest.mark.parametrize("decay", DECAYS)
def test_without_a_buffer_single_vectors_are_alg_1_to_the_letter(decay):
    vectors = [v[:, 0] for v in stream("power", 20, 1, 50)]
    fd = feed(FrequentDirections(20, 6, decay=decay, dtype=F64, buffer=1), vectors)
    state = core.empty(20, 6, dtype=F64)
    for v in vectors:
        state = core.update(state, v.unsqueeze(-1), beta2=decay)
    assert torch.equal(fd.basis, state.basis) and fd.escaped_mass == state.escaped_mass


@pytest.mark.parametrize("decay", [*DECAYS, 0.0])
@pytest.mark.parametrize("solver", SOLVERS)
def test_buffered_vectors_equal_the_same_vectors_as_one_weighted_block(decay, solver):
    vectors = stream("power", 20, 1, 6)
    fd = feed(FrequentDirections(20, 6, decay=decay, solver=solver, dtype=F64), [v[:, 0] for v in vectors])
    weights = torch.tensor([decay ** (age / 2) for age in range(5, -1, -1)], dtype=F64)
    state = core.update(
        core.empty(20, 6, dtype=F64), torch.cat(vectors, 1) * weights, beta2=decay**6, solver=solver
    )
    C = covariance(vectors, decay)
    assert_close(fd.dense(), dense(state), scale=norm(C), tolerance=1e-12)
    assert fd.error_bound >= norm(C - fd.dense())


@pytest.mark.parametrize("buffer", [1, 2, 5])
def test_single_vectors_wait_until_the_buffer_is_full_and_blocks_do_not(buffer):
    fd = FrequentDirections(6, 5, buffer=buffer)
    for seen in range(1, 8):
        fd.update(torch.ones(6))
        assert len(fd.state_dict()["waiting"]) == seen % buffer
    fd.update(torch.ones(6, 2))
    assert len(fd.state_dict()["waiting"]) == 0


@pytest.mark.parametrize("count", [3, 6, 7, 11])
@pytest.mark.parametrize("solver", SOLVERS)
def test_each_buffered_vector_decays_the_past_once(count, solver):
    """At full rank nothing is lost, so that a decay of decay, or of decay^(k - 1), would show."""
    vectors = stream("power", 5, 1, count)
    fd = feed(
        FrequentDirections(5, 5, decay=0.7, solver=solver, dtype=F64, buffer=3), [v[:, 0] for v in vectors]
    )
    C = covariance(vectors, 0.7)
    assert_close(fd.dense(compensated=True), C, scale=norm(C), tolerance=1e-12)


@pytest.mark.parametrize("solver", SOLVERS)
def test_an_empty_block_is_a_column_of_zeros_that_does_not_count(solver):
    options = {"decay": 0.5, "solver": solver, "dtype": F64, "buffer": 1, "certificate": "none"}
    fd, other = (feed(FrequentDirections(6, 3, **options), stream("power", 6, 4, 1)) for _ in range(2))
    fd.update(torch.zeros(6, 0, dtype=F64))
    other.update(torch.zeros(6, 1, dtype=F64))
    assert torch.equal(fd.eigenvalues, other.eigenvalues) and fd.error_bound == other.error_bound
    assert fd.count == 4


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=25),
    st.sampled_from((*DECAYS, 0.5)),
    st.sampled_from(SOLVERS),
    st.sampled_from((None, 1, 3)),
    st.integers(0, 10**6),
)
def test_any_mix_of_batch_sizes_is_certified(widths, decay, solver, buffer, seed):
    """Vectors, blocks and empty blocks, in any order; one call decays once."""
    matrices = [stream("power", 9, max(k, 1), 1, seed=seed + i)[0][:, :k] for i, k in enumerate(widths)]
    fd = feed(FrequentDirections(9, 4, decay=decay, solver=solver, dtype=F64, buffer=buffer), matrices)
    C = covariance(matrices, decay)
    assert fd.error_bound >= norm(C - fd.dense())
    assert_psd_leq(fd.dense(), C, scale=norm(C), tolerance=1e-12)
    assert fd.count == sum(widths)


@pytest.mark.parametrize("direction", range(6))
@pytest.mark.parametrize("solver", SOLVERS)
def test_after_zeros_every_direction_is_still_found(solver, direction):
    """Zeros have no mass, so the basis must stay random: the axes of an SVD would miss the others."""
    fd = feed(FrequentDirections(6, 3, solver=solver, dtype=F64), [torch.zeros(6, 4, dtype=F64)] * 2)
    e = torch.eye(6, dtype=F64)[:, [direction]].expand(-1, 2)
    fd.update(e)
    assert_close(fd.dense(), e @ e.T, scale=2, tolerance=1e-12)


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_wide_block_is_split_and_decays_once(solver):
    A = stream("power", 40, 1000, 1)[0]
    fd = feed(FrequentDirections(40, 5, decay=0.5, solver=solver, dtype=F64), [A[:, :300], A])
    C = 0.5 * A[:, :300] @ A[:, :300].T + A @ A.T
    assert fd.error_bound >= norm(C - fd.dense())
    full = feed(FrequentDirections(40, 40, decay=0.5, solver=solver, dtype=F64), [A[:, :300], A])
    assert_close(full.dense(compensated=True), C, scale=norm(C), tolerance=1e-10)


@pytest.mark.parametrize(
    ("solver", "rank", "columns"), [("exact", 40, 80), ("subspace", 40, 160), ("exact", 4, 64)]
)
def test_workspace_stays_within_the_size_of_the_sketch(monkeypatch, solver, rank, columns):
    """No solver call sees more columns than a fixed multiple of the sketch's own."""
    seen = []
    original = core.update
    monkeypatch.setattr(core, "update", lambda s, A, **kw: seen.append(A.shape[-1]) or original(s, A, **kw))
    FrequentDirections(500, rank, solver=solver).update(torch.randn(500, 5000))
    assert max(seen) == columns and sum(seen) == 5000


@pytest.mark.parametrize("solver", SOLVERS)
def test_dense_and_apply_agree_with_the_operator(solver, rng):
    fd = feed(FrequentDirections(15, 5, solver=solver, dtype=F64), stream("power", 15, 4, 8))
    x = torch.randn(15, generator=rng, dtype=F64)
    G = fd.dense(compensated=True)
    lam, U = torch.linalg.eigh(G)
    assert_close(fd.apply(x), U @ (lam**-0.5 * (U.T @ x)), scale=1, tolerance=1e-9)
    assert fd.apply(x).shape == x.shape
    assert_close(fd.apply(torch.stack([x, x], 1), power=1.0)[:, 1], G @ x, scale=norm(G), tolerance=1e-12)
    assert_close(G - fd.dense(), fd.escaped_mass * torch.eye(15, dtype=F64), scale=norm(G), tolerance=1e-12)


@pytest.mark.parametrize("scale", [1e-20, 1e20])
@pytest.mark.parametrize("solver", SOLVERS)
def test_float32_streams_of_any_scale_have_finite_certified_sketches(scale, solver):
    matrices = [A.float() * scale for A in stream("power", 20, 5, 10)]
    fd = feed(FrequentDirections(20, 6, solver=solver), matrices)
    C = covariance(matrices)
    assert fd.dtype == F32 and torch.isfinite(fd.eigenvalues).all()
    assert norm(C - fd.dense()) <= fd.error_bound <= 15 * norm(C - fd.dense())
    whitened = fd.apply(matrices[-1])
    assert torch.isfinite(whitened).all() and whitened.norm() > 0.1


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_largest_finite_float32_numbers_are_kept(solver):
    A = torch.finfo(F32).max * torch.tensor([[1.0, 0.5], [-1.0, 0.25], [0.0, 1.0]])
    fd = feed(FrequentDirections(3, 3, solver=solver), [A, A.flip(0)])
    C = covariance([A, A.flip(0)])
    assert norm(C - fd.dense()) <= fd.error_bound <= norm(C)


@pytest.mark.parametrize("solver", SOLVERS)
def test_float64_numbers_whose_squares_vanish_count_as_zero_and_those_that_overflow_are_refused(solver):
    fd = FrequentDirections(4, 3, solver=solver, dtype=F64, buffer=1)
    fd.update(torch.full((4, 2), 1e-200, dtype=F64))
    assert torch.isfinite(fd.eigenvalues).all() and fd.eigenvalues.max() <= 1e-300
    fd.update(torch.full((4, 2), 1e140, dtype=F64))
    assert_close(fd.dense() / 1e280, 2 * torch.ones(4, 4, dtype=F64), scale=1, tolerance=1e-12)
    with pytest.raises(ValueError, match=r"A has entries above 1e\+150"):
        fd.update(torch.tensor([0.0, 0.0, -1e160, 1.0], dtype=F64))


@given(
    st.lists(st.tuples(st.integers(-150, 120), st.integers(1, 3)), min_size=1, max_size=12),
    st.sampled_from((1.0, 0.9, 0.5, 1e-3, 1e-30, 0.0)),
    st.sampled_from(SOLVERS),
    st.sampled_from((None, 1, 5)),
    st.booleans(),
    st.integers(0, 10**6),
)
def test_float32_streams_are_certified_at_every_scale_down_to_subnormal_numbers(
    blocks, decay, solver, buffer, alike, seed
):
    """Against dense float64. Each block has its own scale, or all have the first one's; two halves merge."""
    g = torch.Generator().manual_seed(seed)
    scales = [blocks[0][0] if alike else scale for scale, _ in blocks]
    stream = [
        (torch.randn(7, k, generator=g, dtype=F64) * 2.0**scale).float()
        for scale, (_, k) in zip(scales, blocks, strict=True)
    ]
    options = {"decay": decay, "solver": solver, "buffer": buffer, "certificate": "none"}
    fd = feed(FrequentDirections(7, 4, **options), stream)
    C = covariance(stream, decay)
    assert fd.error_bound >= norm(C - fd.dense())
    other = feed(FrequentDirections(7, 7, **options), stream[: len(stream) // 2])
    both = fd.merge(other)
    C = C + (covariance(stream[: len(stream) // 2], decay) if len(stream) > 1 else 0)
    assert both.error_bound >= norm(C - both.dense())


@pytest.mark.parametrize("decay", [0.9, 0.5])
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("scale", [2.0**-149, 2.0**-140, 1e-40])
def test_a_buffered_float32_stream_of_subnormal_numbers_keeps_its_digits(scale, solver, decay, seed):
    """Products with the weights of the decay were rounded to multiples of 1e-45, up to 2 % of the norm."""
    g = torch.Generator().manual_seed(seed)
    vectors = [(8 * scale * torch.randn(12, generator=g, dtype=F64)).float() for _ in range(12)]
    fd = feed(FrequentDirections(12, 12, decay=decay, solver=solver), vectors)
    C = covariance([v.unsqueeze(-1) for v in vectors], decay)
    assert_close(fd.dense(compensated=True) / norm(C), C / norm(C), scale=1, tolerance=2e-5)
    assert fd.error_bound >= norm(C - fd.dense())


@pytest.mark.parametrize("scale", [1e-40, 2.0**-149, 1.0, 3e38])
def test_sketches_of_the_least_and_largest_float32_numbers_merge(scale, seed):
    g = torch.Generator().manual_seed(seed)
    halves = [(scale * torch.rand(6, 2, generator=g, dtype=F64)).float() for _ in range(2)]
    a, b = (feed(FrequentDirections(6, 6), [A]) for A in halves)
    C = covariance(halves)
    merged = a.merge(b)
    assert_close(merged.dense() / norm(C), C / norm(C), scale=1, tolerance=2e-5)
    assert merged.error_bound >= norm(C - merged.dense())


def test_numbers_from_numpy_are_numbers():
    numpy = pytest.importorskip("numpy")
    fd = FrequentDirections(numpy.int64(5), numpy.int32(3), decay=numpy.float32(0.5))
    assert (fd.dim, fd.rank, fd.decay) == (5, 3, 0.5)


def test_the_default_dtype_changes_nothing_but_the_dtype():
    matrices = stream("power", 20, 5, 6)
    plain = feed(FrequentDirections(20, 4, solver="subspace", dtype=F64), matrices)
    before = torch.get_default_dtype()
    torch.set_default_dtype(F64)
    try:
        other = feed(FrequentDirections(20, 4, solver="subspace"), matrices)
    finally:
        torch.set_default_dtype(before)
    assert same(plain, other)


def test_rank_is_clipped_to_dim():
    assert FrequentDirections(5, 64).rank == FrequentDirections(5, 64).buffer == 5
    assert FrequentDirections(64, 5).rank == FrequentDirections(64, 5).buffer == 5
    one = feed(FrequentDirections(1, 2, dtype=F64, decay=0.5), [torch.tensor([2.0], dtype=F64)] * 3)
    assert_close(one.dense(compensated=True), torch.tensor([[7.0]]), scale=7, tolerance=1e-14)


def test_the_looser_the_failure_probability_the_smaller_the_bound():
    matrices = stream("drifting", 40, 20, 10)
    bound = {
        p: feed(
            FrequentDirections(40, 8, solver="subspace", dtype=F64, failure_probability=p), matrices
        ).error_bound
        for p in (1e-12, 1e-6, 1e-2)
    }
    assert bound[1e-12] > bound[1e-6] > bound[1e-2]
    assert FrequentDirections(40, 8).failure_probability == 1e-6


def test_each_update_has_sixteen_probes_of_its_own_seed():
    matrices = stream("drifting", 20, 8, 3)
    fd = feed(FrequentDirections(20, 5, solver="subspace", dtype=F64, seed=7), matrices)
    state = core.empty(20, 5, dtype=F64)
    for t, A in enumerate(matrices):
        probes = gaussian(16, 20, seed=hash((7, t)) % 2**63, like=A)
        state = core.update(state, A, solver="subspace", probes=probes, failure_probability=1e-6)
    assert fd.error_bound == state.error_bound


def test_without_probes_the_bound_is_by_traces_and_the_seed_does_not_count():
    matrices = stream("white", 40, 20, 3)
    by_traces, other, probed = (
        feed(
            FrequentDirections(40, 8, solver="subspace", dtype=F64, certificate=certificate, seed=seed),
            matrices,
        )
        for certificate, seed in (("none", 0), ("none", 1), ("probe", 0))
    )
    assert same(by_traces, other) and probed.error_bound < by_traces.error_bound


def test_results_repeat_and_depend_on_the_seed_only_through_the_bound():
    matrices = stream("drifting", 40, 20, 10)
    a, b = (
        feed(FrequentDirections(40, 8, solver="subspace"), [A.float() for A in matrices]) for _ in range(2)
    )
    assert same(a, b)
    other = feed(FrequentDirections(40, 8, solver="subspace", seed=1), [A.float() for A in matrices])
    assert torch.equal(a.basis, other.basis) and a.error_bound != other.error_bound


# -- merging ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("decay", [1.0, 0.9])
def test_merge_returns_a_new_certified_sketch_and_leaves_both_alone(solver, decay):
    left, right = stream("power", 20, 3, 9, seed=1), stream("geometric", 20, 1, 7, seed=2)
    a = feed(FrequentDirections(20, 6, decay=decay, solver=solver, dtype=F64), left)
    b = feed(FrequentDirections(20, 5, decay=decay, dtype=F64), [v[:, 0] for v in right])
    C = covariance(left, decay) + covariance(right, decay)
    bounds_before = float(a.error_bound), float(b.error_bound)
    merged = a.merge(b)
    assert merged.error_bound >= norm(C - merged.dense())
    assert merged.count == a.count + b.count == 34
    assert (float(a.error_bound), float(b.error_bound)) == bounds_before
    assert merged.error_bound >= sum(bounds_before)
    merged.update(left[0])
    assert merged.error_bound >= norm(decay * C + left[0] @ left[0].T - merged.dense())
    assert a.count == 27


@pytest.mark.parametrize(
    "other",
    [FrequentDirections(9, 4), FrequentDirections(8, 4, decay=0.5), FrequentDirections(8, 4, dtype=F64)],
    ids=["dim", "decay", "dtype"],
)
def test_merge_refuses_what_does_not_fit(other):
    with pytest.raises(ValueError, match=r"other\.(dim|decay|dtype)=.*must equal"):
        FrequentDirections(8, 4).merge(other)
    with pytest.raises(TypeError, match="FrequentDirections"):
        FrequentDirections(8, 4).merge("sketch")

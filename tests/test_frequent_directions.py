"""The public object: streaming, buffering, certificates, state, and errors that leave it as it was."""

import copy
import io
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cases import DECAYS, F32, F64, SOLVERS, covariance, stream
from checks import assert_close, assert_psd_leq, dense, norm
from sketchy import FrequentDirections
from sketchy.core import sketch as core


def feed(fd, matrices):
    for A in matrices:
        fd.update(A)
    return fd


def same(a: FrequentDirections, b: FrequentDirections) -> bool:
    """Bit for bit, without folding what waits."""
    mine, theirs = a.state_dict(), b.state_dict()
    return all(torch.equal(torch.as_tensor(mine[k]), torch.as_tensor(theirs[k])) for k in mine)


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
    assert fd.count == 80


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


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_wide_block_is_split_and_decays_once(solver):
    A = stream("power", 40, 1000, 1)[0]
    fd = feed(FrequentDirections(40, 5, decay=0.5, solver=solver, dtype=F64), [A[:, :300], A])
    C = 0.5 * A[:, :300] @ A[:, :300].T + A @ A.T
    assert fd.error_bound >= norm(C - fd.dense())
    full = feed(FrequentDirections(40, 40, decay=0.5, solver=solver, dtype=F64), [A[:, :300], A])
    assert_close(full.dense(compensated=True), C, scale=norm(C), tolerance=1e-10)


@pytest.mark.parametrize(("solver", "columns"), [("exact", 80), ("subspace", 160)])
def test_workspace_stays_within_the_size_of_the_sketch(monkeypatch, solver, columns):
    """No solver call sees more columns than a fixed multiple of the sketch's own."""
    seen = []
    original = core.update
    monkeypatch.setattr(core, "update", lambda s, A, **kw: seen.append(A.shape[-1]) or original(s, A, **kw))
    FrequentDirections(500, 40, solver=solver).update(torch.randn(500, 5000))
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
    with pytest.raises(ValueError, match=r"A has entries beyond 1e\+150"):
        fd.update(torch.full((4,), 1e160, dtype=F64))


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
    assert FrequentDirections(5, 64).rank == 5
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


# -- state -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["state_dict", "torch.save", "deepcopy", "pickle"])
@pytest.mark.parametrize("solver", SOLVERS)
def test_saved_and_continued_equals_never_having_stopped(way, solver):
    """Vectors are still waiting when it is saved."""
    before = [v[:, 0].float() for v in stream("power", 20, 1, 16, seed=1)]
    after = [A.float() for A in stream("power", 20, 4, 5, seed=2)]
    fd = feed(FrequentDirections(20, 7, decay=0.99, solver=solver), before)
    match way:
        case "deepcopy":
            restored = copy.deepcopy(fd)
        case "pickle":
            restored = pickle.loads(pickle.dumps(fd))
        case _:
            state = fd.state_dict()
            if way == "torch.save":
                file = io.BytesIO()
                torch.save(state, file)
                state = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
            restored = FrequentDirections(20, 7, decay=0.99, solver=solver)
            restored.load_state_dict(state)
    assert same(feed(fd, after), feed(restored, after))


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_a_copy_does_not_share_its_fate(duplicate):
    fd = feed(FrequentDirections(6, 3), [torch.ones(6)])
    twin = duplicate(fd)
    twin.update(2 * torch.ones(6))
    twin.update(torch.ones(6, 2))
    assert fd.count == 1 and twin.count == 4
    assert_close(fd.dense(), torch.ones(6, 6), scale=1, tolerance=1e-6)


@pytest.mark.parametrize(
    "damage",
    [
        lambda s: s.pop("basis"),
        lambda s: s.update(extra=1),
        lambda s: s.update(basis=s["basis"][:, :-1]),
        lambda s: s.update(basis=s["basis"].double()),
        lambda s: s.update(eigenvalues=s["eigenvalues"] * float("nan")),
        lambda s: s.update(waiting=torch.zeros(2, 3)),
        lambda s: s.update(count=-1),
        lambda s: s.update(count="many"),
        lambda s: s.update(count=True),
        lambda s: s.update({3: 4}),
        lambda s: s.update(basis="none"),
        lambda s: s.update(basis=torch.zeros_like(s["basis"])),
        lambda s: s.update(eigenvalues=-s["eigenvalues"]),
        lambda s: s.update(waiting=torch.tensor(1.0)),
    ],
)
def test_a_damaged_state_is_refused_and_changes_nothing(damage):
    fd = feed(FrequentDirections(6, 3), [torch.ones(6, 2), torch.ones(6)])
    before = copy.deepcopy(fd)
    state = dict(fd.state_dict())
    damage(state)
    with pytest.raises(ValueError, match="state"):
        fd.load_state_dict(state)
    assert same(fd, before)


def test_a_state_of_another_kind_is_refused():
    with pytest.raises(TypeError, match="state is a NoneType"):
        FrequentDirections(6, 3).load_state_dict(None)


def test_another_shape_is_refused_with_both_shapes():
    with pytest.raises(ValueError, match=r"\(7, 3\).*must be \(6, 3\).*dim=6, rank=3"):
        FrequentDirections(6, 3).load_state_dict(FrequentDirections(7, 3).state_dict())


def test_to_changes_the_dtype_and_keeps_the_certificate():
    matrices = stream("power", 20, 3, 10)
    fd = feed(FrequentDirections(20, 6, dtype=F64), matrices)
    fd.update(matrices[0][:, 0])
    C = covariance([*matrices, matrices[0][:, :1]])
    assert fd.to(F32) is fd and fd.dtype == F32 and fd.basis.dtype == F32
    assert fd.error_bound >= norm(C - fd.dense())
    fd.to("cpu").to(torch.device("cpu")).to(F64).update(matrices[0])
    assert fd.error_bound >= norm(C + matrices[0] @ matrices[0].T - fd.dense())


def test_the_default_dtype_is_torchs():
    assert FrequentDirections(4, 2).dtype == torch.get_default_dtype()
    assert "dim=4, rank=2" in repr(FrequentDirections(4, 2))


def test_gradients_do_not_flow_into_the_sketch():
    v = torch.ones(4, requires_grad=True)
    fd = feed(FrequentDirections(4, 3), [v, v.unsqueeze(-1).expand(-1, 2) * 2])
    assert not fd.basis.requires_grad and not fd.eigenvalues.requires_grad


def test_a_stream_may_reuse_its_memory():
    buffer = torch.zeros(4)
    fd = FrequentDirections(4, 4)
    for i in range(3):
        buffer.zero_()[i] = i + 1.0
        fd.update(buffer)
    assert_close(fd.dense().diagonal(), torch.tensor([1.0, 4.0, 9.0, 0.0]), scale=9, tolerance=1e-6)


# -- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"dim": 0}, ValueError, "dim=0: must be at least 1"),
        ({"dim": 2.5}, TypeError, "dim=2.5: must be an int"),
        ({"rank": 1}, ValueError, "rank=1: must be at least 2"),
        ({"rank": True}, TypeError, "rank=True: must be an int"),
        ({"decay": 1.1}, ValueError, r"decay=1.1: must be in \[0, 1\]"),
        ({"decay": -0.1}, ValueError, r"decay=-0.1: must be in \[0, 1\]"),
        ({"decay": float("nan")}, ValueError, "decay=nan"),
        ({"decay": "0.9"}, TypeError, "decay='0.9': must be a number"),
        ({"solver": "svd"}, ValueError, "solver='svd': must be one of .*exact.*subspace"),
        ({"certificate": "maybe"}, ValueError, "certificate='maybe': must be one of .*probe.*none"),
        ({"failure_probability": 0}, ValueError, r"failure_probability=0.0: must be in \(0, 1\)"),
        ({"buffer": 0}, ValueError, "buffer=0: must be at least 1"),
        ({"dtype": torch.bfloat16}, ValueError, "dtype=torch.bfloat16: must be torch.float32 or"),
        ({"device": "nope"}, ValueError, "device='nope': "),
        ({"device": "cuda:77"}, ValueError, "device='cuda:77': "),
        ({"seed": -1}, ValueError, "seed=-1: must be at least 0"),
        ({"seed": "lucky"}, TypeError, "seed='lucky': must be an int"),
    ],
)
def test_bad_options_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        FrequentDirections(**{"dim": 8, "rank": 4, **arguments})


BAD = {
    "shape": (torch.zeros(7), ValueError, r"A has the shape \(7,\): must be \(6,\) or \(6, k\)"),
    "transposed": (torch.zeros(2, 6), ValueError, r"A has the shape \(2, 6\)"),
    "three axes": (torch.zeros(6, 2, 2), ValueError, r"\(6, 2, 2\)"),
    "scalar": (torch.tensor(1.0), ValueError, r"A has the shape \(\)"),
    "dtype": (torch.zeros(6).double(), ValueError, "A is torch.float64 on cpu: must be torch.float32 on cpu"),
    "integers": (torch.zeros(6, dtype=torch.int64), ValueError, "A is torch.int64"),
    "device": (torch.zeros(6, device="meta"), ValueError, "on meta: must be torch.float32 on cpu"),
    "numpy": ([1.0] * 6, TypeError, r"A is a list: must be a torch.Tensor"),
    "nan": (torch.tensor([0, 0, float("nan"), 0, 0, 0]), ValueError, "A has NaN or Inf"),
    "sparse": (torch.eye(6)[:, :2].to_sparse(), ValueError, r"A is torch.sparse_coo: must be dense"),
    "inf": (torch.full((6, 3), float("inf")), ValueError, "A has NaN or Inf"),
    "late nan": (torch.cat([torch.ones(6, 500), torch.full((6, 1), float("nan"))], 1), ValueError, "NaN"),
}


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("name", BAD)
def test_a_bad_update_is_refused_and_changes_nothing(name, solver):
    A, error, message = BAD[name]
    fd = feed(FrequentDirections(6, 4, solver=solver), [torch.ones(6, 2), torch.ones(6)])
    before = copy.deepcopy(fd)
    with pytest.raises(error, match=message):
        fd.update(A)
    assert same(fd, before)


def test_apply_checks_its_argument_too():
    with pytest.raises(ValueError, match=r"x has the shape \(5,\)"):
        FrequentDirections(6, 4).apply(torch.zeros(5))

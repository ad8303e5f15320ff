"""Covariances and their certified bounds, from gradients and from the states of our optimizers."""

from typing import Any

import pytest
import torch
from watched import BETA2, Net, follow, gradients, intrinsic, share, truth

from sketchy import Shampoo, SketchyAdagrad, SketchyShampoo, SketchySOAP
from sketchy.analysis.covariances import Covariance
from sketchy.analysis.spectra import SpectrumMonitor

ROUNDING = 1e-5  # float32 sketches against float64 truth

# ---- the statistics


def test_of_a_whole_spectrum_all_three_numbers_are_the_definition():
    lam = torch.tensor([[8.0, 4.0, 3.0, 1.0]], dtype=torch.float64)
    zero = torch.zeros(1, dtype=torch.float64)
    known = Covariance(4, lam, zero, zero, zero, lam.sum(-1))
    assert [float(x) for x in known.top_share(2)] == [0.75] * 3
    assert [float(x) for x in known.intrinsic_dimension()] == [2.0] * 3


def test_a_zero_covariance_has_no_share():
    zero = torch.zeros(1, dtype=torch.float64)
    known = Covariance(3, torch.zeros(1, 3, dtype=torch.float64), zero, zero, zero)
    assert all(x.isnan() for x in (*known.top_share(1), *known.intrinsic_dimension()))


@pytest.mark.parametrize("k", [1, 3, 5, 9, 12])
@pytest.mark.parametrize("trace_known", [True, False])
def test_bounds_hold_for_every_matrix_within_the_certified_error(k: int, trace_known: bool, seed: int):
    """C = B Bᵀ + E for random 0 ⪯ E ⪯ e I, with spectra of E from flat to nearly rank one."""
    rng = torch.Generator().manual_seed(seed)
    d, l = 12, 5
    for trial in range(200):
        lam = torch.zeros(d, dtype=torch.float64)
        lam[: l - 1] = torch.rand(l - 1, generator=rng, dtype=torch.float64).sort(descending=True).values
        Q = torch.linalg.qr(torch.randn(d, d, generator=rng, dtype=torch.float64))[0]
        error = 0.3 * torch.rand(1, generator=rng, dtype=torch.float64)
        size = error * torch.rand(d, generator=rng, dtype=torch.float64) ** (trial % 8)
        C = torch.diag(lam) + (Q * size) @ Q.T
        zero = torch.zeros(1, dtype=torch.float64)
        trace = C.trace().reshape(1) if trace_known else None
        known = Covariance(d, lam[None, :l], zero, zero, error, trace)
        true = torch.linalg.eigvalsh(C).flip(-1)
        low, estimate, high = (float(x) for x in known.top_share(k))
        assert low - 1e-12 <= share(true, k) <= high + 1e-12
        assert low <= estimate <= high
        low, estimate, high = (float(x) for x in known.intrinsic_dimension())
        assert low - 1e-12 <= intrinsic(true) <= high + 1e-12


def test_bounds_are_attained_at_the_corners():
    """With the trace known, C = B Bᵀ + e P attains the upper bound for P on the leading k directions, and
    the lower bound for P on others; so no better bounds follow from λ, e and the trace alone."""
    lam, error, k = torch.tensor([5.0, 3.0, 1.0, 0.0], dtype=torch.float64), 0.25, 2
    for where, place in ((slice(0, k), 2), (slice(2, 4), 0)):
        C = lam.clone()
        C[where] += error
        zero = torch.zeros(1, dtype=torch.float64)
        known = Covariance(4, lam[None, :3], zero, zero, zero + error, C.sum().reshape(1))
        assert float(known.top_share(k)[place]) == pytest.approx(share(C, k), rel=1e-12)


# ---- from gradients


@pytest.mark.parametrize("shape", [(6, 10), (10, 6), (5, 3, 2)])
def test_short_axes_are_exact(shape: tuple[int, ...]):
    net, stream = Net(*shape), gradients(20, shape)
    monitor = follow(net, net.weight, stream, top=3, beta2=BETA2)
    assert [(r.parameter, r.axis, r.step) for r in monitor.records] == [
        ("weight", axis, 20) for axis in ("left", "right")
    ]
    for record in monitor.records:
        true = truth(stream)[record.axis]
        assert record.dim == record.rank == len(true)
        for value in (record.share, record.share_low, record.share_high):
            assert value == pytest.approx(share(true, 3), rel=1e-9)
        for value in (record.intrinsic_dimension, record.intrinsic_low, record.intrinsic_high):
            assert value == pytest.approx(intrinsic(true), rel=1e-9)
        assert record.trace == pytest.approx(float(true.sum()), rel=1e-9)
        assert record.escaped_mass == record.error_bound == record.skipped == 0


@pytest.mark.parametrize("rank", [4, 8, 24])
@pytest.mark.parametrize("k", [1, 6, 20])
def test_of_long_axes_the_truth_is_within_the_bounds(rank: int, k: int):
    net, stream = Net(40, 60), gradients(30, (40, 60))
    monitor = follow(net, net.weight, stream, top=k, beta2=BETA2, exact_up_to=0, rank=rank)
    for record in monitor.records:
        true = truth(stream)[record.axis]
        assert record.rank == rank and record.error_bound > 0
        assert record.trace == pytest.approx(float(true.sum()), rel=1e-5)
        assert record.share_low - ROUNDING <= share(true, k) <= record.share_high + ROUNDING
        within = record.intrinsic_low, record.intrinsic_high
        assert within[0] * (1 - ROUNDING) <= intrinsic(true) <= within[1] * (1 + ROUNDING)
        if rank == 24:  # and they say something
            assert within[1] < 1.1 * within[0] and record.share_high - record.share_low < 0.25
            assert record.intrinsic_dimension == pytest.approx(intrinsic(true), rel=0.05)


def test_blocks_are_recorded_one_by_one():
    net, stream = Net(6, 10), gradients(10, (6, 10))
    monitor = follow(net, net.weight, stream, top=2, beta2=BETA2, block_size=5)
    assert len(monitor.records) == 8
    for record in monitor.records:
        row, column = divmod(record.block, 2)
        part = [G[3 * row : 3 * row + 3, 5 * column : 5 * column + 5] for G in stream]
        assert record.intrinsic_dimension == pytest.approx(intrinsic(truth(part)[record.axis]), rel=1e-9)


@pytest.mark.parametrize("exact_up_to", [0, 512])
def test_a_gradient_that_is_not_finite_changes_nothing_but_the_counter(exact_up_to: int):
    stream = gradients(9, (12, 16))
    spoiled = [G.clone() for G in stream]
    for i, bad in ((3, torch.nan), (6, torch.inf)):
        spoiled.insert(i, torch.full((12, 16), bad))
    options = {"beta2": BETA2, "exact_up_to": exact_up_to, "rank": 4, "top": 3}
    nets = Net(12, 16), Net(12, 16)
    clean, other = (
        follow(net, net.weight, each, every=len(each), **options).records
        for net, each in zip(nets, (stream, spoiled), strict=True)
    )
    for mine, theirs in zip(clean, other, strict=True):
        assert theirs.skipped == 2 and mine.skipped == 0
        # a sketch's probes are drawn by step, so that its certificate alone may differ
        for field in ("trace", "escaped_mass", "share", "intrinsic_dimension"):
            assert getattr(theirs, field) == pytest.approx(getattr(mine, field), rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_any_floating_dtype_is_watched(dtype: torch.dtype):
    net, stream = Net(6, 8, dtype=dtype), [G.to(dtype) for G in gradients(8, (6, 8))]
    records = follow(net, net.weight, stream, beta2=BETA2, top=2).records
    for record in records:
        assert record.share == pytest.approx(share(truth(stream)[record.axis], 2), rel=1e-6)


@pytest.mark.parametrize("scale", [1e-25, 1e20])
def test_scaling_every_gradient_changes_no_share(scale: float):
    stream = gradients(8, (12, 20))
    options = {"beta2": BETA2, "top": 3, "exact_up_to": 12, "rank": 6}
    plain, scaled = (
        follow(net := Net(12, 20), net.weight, [G * factor for G in stream], **options).records
        for factor in (1.0, scale)
    )
    for mine, theirs in zip(plain, scaled, strict=True):
        for field in ("share", "share_low", "share_high", "intrinsic_dimension"):
            assert getattr(theirs, field) == pytest.approx(getattr(mine, field), rel=1e-3)


# ---- from our optimizers


@pytest.mark.parametrize("make", [SketchyShampoo, SketchySOAP, Shampoo])
@pytest.mark.parametrize("graft", ["factored", None])
@pytest.mark.parametrize("solver", ["exact", "subspace"])
def test_what_our_optimizers_know_holds_the_truth(make: Any, graft: str | None, solver: str):
    if make is Shampoo and solver == "exact":
        pytest.skip("Shampoo has no solver")
    options = {} if make is Shampoo else {"rank": 8, "solver": solver, "whiten": False}
    net, stream = Net(14, 30), gradients(40, (14, 30))
    optimizer = make([("weight", net.weight)], lr=0.0, betas=(0.0, BETA2), graft=graft, **options)
    records = follow(optimizer, net.weight, stream, optimizer, top=5).records
    assert [(r.parameter, r.axis, r.dim) for r in records] == [
        ("weight", "left", 14),
        ("weight", "right", 30),
    ]
    for record in records:
        true = truth(stream)[record.axis]
        if graft == "factored" or make is not SketchyShampoo:
            assert record.trace == pytest.approx(float(true.sum()), rel=1e-5)
        else:
            assert record.trace is None
        assert record.share_low - ROUNDING <= share(true, 5) <= record.share_high + ROUNDING
        low, high = record.intrinsic_low, record.intrinsic_high
        assert low * (1 - ROUNDING) <= intrinsic(true) <= high * (1 + ROUNDING)
        if make is Shampoo:
            assert record.intrinsic_dimension == pytest.approx(intrinsic(true), rel=1e-4)


@pytest.mark.parametrize("make", [SketchyShampoo, SketchySOAP])
def test_records_of_whitened_gradients_say_so_and_take_no_trace_from_moments_of_plain_ones(make: Any):
    net, stream = Net(14, 30), gradients(20, (14, 30))
    optimizer = make([net.weight], lr=0.0, betas=(0.0, BETA2), rank=14, whiten=True)
    left, right = follow(optimizer, net.weight, stream, optimizer).records
    assert left.whitened and right.whitened
    assert right.trace is None  # the left covariance is kept in full, and knows its own trace
    assert left.trace is not None and left.trace != pytest.approx(float(truth(stream)["left"].sum()), rel=0.1)
    assert not any(r.whitened for r in follow(net, net.weight, stream, optimizer).records)


def test_a_factor_that_is_kept_whole_tells_the_trace_of_the_other():
    net, stream = Net(4, 30), gradients(20, (4, 30))
    optimizer = SketchyShampoo([net.weight], lr=0.0, betas=(0.0, BETA2), rank=6, graft=None)
    right = follow(optimizer, net.weight, stream, optimizer).records[1]
    assert right.rank == 6 and right.trace == pytest.approx(float(truth(stream)["right"].sum()), rel=1e-5)


def test_sketches_that_skip_steps_take_no_trace_from_a_graft_that_does_not():
    net, stream = Net(14, 30), gradients(12, (14, 30))
    optimizer = SketchyShampoo([net.weight], lr=0.0, betas=(0.0, BETA2), rank=6, update_every=3)
    assert [r.trace for r in follow(optimizer, net.weight, stream, optimizer).records] == [None, None]


def test_blocks_vectors_and_skipped_steps_of_our_optimizers_are_read():
    net = Net(6, 10)
    optimizer = SketchyShampoo(net.named_parameters(), lr=0.0, block_size=5, precondition_1d=True, rank=3)
    with SpectrumMonitor(optimizer, every=3) as monitor:
        for i, G in enumerate(gradients(3, (6, 10))):
            net.weight.grad, net.bias.grad = G, torch.full((6,), torch.nan if i == 1 else 1.0)
            optimizer.step()
    assert {(r.parameter, r.axis, r.block, r.skipped) for r in monitor.records} == {
        *(("weight", axis, block, 0) for axis in ("left", "right") for block in range(4)),
        *(("bias", "only", block, 1) for block in range(2)),
    }


def test_one_sided_and_flat_optimizers_are_read():
    net, stream = Net(6, 9), gradients(5, (6, 9))
    one = SketchyShampoo([net.weight], lr=0.0, one_sided=True)
    assert [r.axis for r in follow(one, net.weight, stream, one).records] == ["left"]
    flat = SketchyAdagrad([net.weight], lr=0.0, rank=4)
    assert [(r.axis, r.dim) for r in follow(flat, net.weight, stream, flat).records] == [("only", 54)]

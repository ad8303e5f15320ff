import dataclasses
import json
from contextlib import nullcontext, suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sketchy import Shampoo, SketchyAdagrad, SketchyShampoo, SketchySOAP
from sketchy.analysis.covariances import Covariance
from sketchy.analysis.spectra import SpectrumMonitor, read

BETA2 = 0.95
ROUNDING = 1e-5  # float32 sketches against float64 truth


def gradients(steps: int, shape: tuple[int, ...], seed: int = 0) -> list[Tensor]:
    """A stream whose covariances decay as 1 / i² on both sides, with noise."""
    rng = torch.Generator().manual_seed(seed)
    m, n = shape[0], torch.Size(shape[1:]).numel()
    left, right = (
        torch.linalg.qr(torch.randn(d, d, generator=rng))[0] / torch.arange(1, d + 1) for d in (m, n)
    )
    return [(left @ torch.randn(m, n, generator=rng) @ right.T).reshape(shape) for _ in range(steps)]


def truth(stream: list[Tensor], beta2: float = BETA2) -> dict[str, Tensor]:
    """The eigenvalues of L and R, dense, descending."""
    found = {}
    for axis in ("left", "right"):
        C: Any = 0.0
        for gradient in stream:
            G = gradient.double().flatten(1)
            A = G if axis == "left" else G.T
            C = beta2 * C + A @ A.T
        found[axis] = torch.linalg.eigvalsh(C).flip(-1).clamp(min=0)
    return found


def share(eigenvalues: Tensor, k: int) -> float:
    return float(eigenvalues[:k].sum() / eigenvalues.sum())


def intrinsic(eigenvalues: Tensor) -> float:
    return float(eigenvalues.sum() / eigenvalues[0])


def follow(source: Any, weight: Tensor, stream: list[Tensor], optimizer: Any = None, **options: Any) -> Any:
    """The monitor after a run in which ``weight`` met each gradient of the stream."""
    optimizer = optimizer or torch.optim.SGD([weight], lr=0.0)
    with SpectrumMonitor(source, **{"every": len(stream), **options}) as monitor:
        for gradient in stream:
            weight.grad = gradient.clone()
            optimizer.step()
    return monitor


class Net(nn.Module):
    def __init__(self, *shape: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(shape, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(shape[0]))


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
    """C = B Bᵀ + E for random 0 ⪯ E ⪯ e I, from nearly flat to rank one: what may be there is within."""
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
    options = {} if make is Shampoo else {"rank": 8, "solver": solver}
    net, stream = Net(14, 30), gradients(40, (14, 30))
    optimizer = make([("weight", net.weight)], lr=0.0, betas=(0.0, BETA2), graft=graft, **options)
    records = follow(optimizer, net.weight, stream, optimizer, top=5).records
    assert [(r.parameter, r.axis, r.dim) for r in records] == [
        ("weight", "left", 14),
        ("weight", "right", 30),
    ]
    for record in records:
        true = truth(stream)[record.axis]
        if graft == "factored" or make is Shampoo:
            assert record.trace == pytest.approx(float(true.sum()), rel=1e-5)
        else:
            assert record.trace is None
        assert record.share_low - ROUNDING <= share(true, 5) <= record.share_high + ROUNDING
        low, high = record.intrinsic_low, record.intrinsic_high
        assert low * (1 - ROUNDING) <= intrinsic(true) <= high * (1 + ROUNDING)
        if make is Shampoo:
            assert record.intrinsic_dimension == pytest.approx(intrinsic(true), rel=1e-4)


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


# ---- any training loop


class Loop:
    """Trains the same network on the same rows in different ways."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
        self.rows = torch.randn(8, 12, 6)

    def loss(self, step: int, part: slice = slice(None)) -> Tensor:
        return self.net(self.rows[step][part]).square().sum()

    def plain(self, optimizer: torch.optim.Optimizer) -> None:
        for step in range(8):
            optimizer.zero_grad()
            self.loss(step).backward()
            optimizer.step()

    def accumulated(self, optimizer: torch.optim.Optimizer) -> None:
        for step in range(8):
            for part in (slice(0, 5), slice(5, 12)):
                self.loss(step, part).backward()
            optimizer.step()
            optimizer.zero_grad()

    def by_closure(self, optimizer: torch.optim.Optimizer) -> None:
        for step in range(8):

            def closure(step: int = step) -> Tensor:
                optimizer.zero_grad()
                loss = self.loss(step)
                loss.backward()
                return loss

            optimizer.step(closure)

    def scaled(self, optimizer: torch.optim.Optimizer) -> None:
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
        for step in range(8):
            optimizer.zero_grad()
            scaler.scale(self.loss(step)).backward()
            scaler.step(optimizer)
            scaler.update()

    def under_autocast(self, optimizer: torch.optim.Optimizer) -> None:
        for step in range(8):
            optimizer.zero_grad()
            self.loss(step).backward()
            with torch.autocast("cpu", torch.bfloat16):
                optimizer.step()


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.01)


@pytest.mark.parametrize("way", ["accumulated", "by_closure", "scaled", "under_autocast"])
@pytest.mark.parametrize("from_model", [True, False])
def test_each_way_to_train_shows_the_same_spectra(way: str, from_model: bool):
    ends = []
    for name in ("plain", way):
        loop = Loop()
        optimizer = sgd(loop.net)
        with SpectrumMonitor(loop.net if from_model else optimizer, every=4) as monitor:
            getattr(loop, name)(optimizer)
        ends.append(monitor.records)
    assert [r.step for r in ends[0]] == [4] * 4 + [8] * 4
    for mine, theirs in zip(*ends, strict=True):
        assert theirs.intrinsic_dimension == pytest.approx(mine.intrinsic_dimension, rel=1e-4)
        assert theirs.trace == pytest.approx(mine.trace, rel=1e-4)


def test_an_optimizer_that_writes_into_gradients_is_seen_before_it_does():
    class Destructive(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            super().step(closure)
            for group in self.param_groups:
                for p in group["params"]:
                    p.grad.zero_()

    traces = []
    for kind in (torch.optim.SGD, Destructive):
        loop = Loop()
        with SpectrumMonitor(loop.net, every=8) as monitor:
            loop.plain(kind(loop.net.parameters(), lr=0.01))
        traces.append([r.trace for r in monitor.records])
    assert traces[0] == traces[1]


def test_a_step_that_failed_is_not_counted_and_the_next_one_is():
    class Failing(torch.optim.SGD):
        fails = False

        def step(self, closure: Any = None) -> None:
            if self.fails:
                raise ArithmeticError
            super().step(closure)

    loop = Loop()
    optimizer = Failing(loop.net.parameters(), lr=0.01)
    with SpectrumMonitor(loop.net, every=1) as monitor:
        for step in range(3):
            loop.loss(step).backward()
            optimizer.fails = step == 1
            with suppress(ArithmeticError):
                optimizer.step()
    assert [r.step for r in monitor.records] == [1] * 4 + [2] * 4


def test_explicit_steps_record_what_a_with_block_records():
    loop, other = Loop(), Loop()
    with SpectrumMonitor(loop.net, every=4) as followed:
        loop.plain(sgd(loop.net))
    monitor, optimizer = SpectrumMonitor(other.net, every=4), sgd(other.net)
    for step in range(8):
        optimizer.zero_grad()
        other.loss(step).backward()
        monitor.step()
        optimizer.step()
    assert monitor.records == followed.records


def test_two_optimizers_of_one_model_each_count_their_own_steps():
    loop = Loop()
    halves = [torch.optim.SGD(part.parameters(), lr=0.01) for part in (loop.net[0], loop.net[2])]
    stranger = nn.Parameter(torch.ones(3, 3))
    with SpectrumMonitor(loop.net, every=2) as monitor:
        for step in range(4):
            loop.loss(step).backward()
            for i, optimizer in enumerate(halves):
                if i == 0 or step % 2 == 0:
                    optimizer.step()
            stranger.grad = torch.ones(3, 3)
            torch.optim.SGD([stranger], lr=0.1).step()
    assert [(r.parameter, r.step) for r in monitor.records if r.axis == "left"] == [
        ("0.weight", 2),
        ("2.weight", 2),
        ("0.weight", 4),
    ]


def test_nothing_is_followed_after_the_block_and_training_is_not_changed():
    ends = []
    for watched in (False, True):
        loop = Loop()
        optimizer = torch.optim.AdamW(loop.net.parameters())
        if watched:
            with SpectrumMonitor(loop.net, every=1) as monitor:
                loop.plain(optimizer)
            count = len(monitor.records)
            loop.plain(optimizer)
            assert len(monitor.records) == count == 4 * 8
        else:
            loop.plain(optimizer)
            loop.plain(optimizer)
        ends.append([p.detach() for p in loop.net.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def test_only_included_weights_are_watched():
    loop = Loop()
    with SpectrumMonitor(loop.net, every=8, include=lambda name, p: name.startswith("2")) as monitor:
        loop.plain(sgd(loop.net))
    assert {r.parameter for r in monitor.records} == {"2.weight"}


class HostReads(TorchFunctionMode):
    """Counts the calls that wait for a device to hand a value to Python."""

    names = ("tolist", "item", "cpu", "numpy", "equal", "__bool__", "__float__", "__int__", "__index__")
    count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.count += getattr(func, "__name__", "") in self.names
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("ours", [True, False])
def test_steps_that_are_not_recorded_read_no_values(ours: bool):
    """Beyond those that the optimizer reads itself."""
    counts = []
    for watched in (False, True):
        loop = Loop()
        optimizer = SketchyShampoo(loop.net.parameters(), rank=3) if ours else sgd(loop.net)
        monitor = SpectrumMonitor(optimizer if ours else loop.net, every=10)
        with monitor if watched else nullcontext():
            loop.plain(optimizer)
            for _ in range(2):
                with HostReads() as reads:
                    optimizer.step()
                counts.append(reads.count)
    alone, _, ninth, recorded = counts
    assert ninth == alone < recorded and len(monitor.records) == 4


# ---- files


def test_lines_are_appended_whole_and_read_back(tmp_path):
    path = tmp_path / "deep" / "spectra.jsonl"
    for resumed_at in (0, 8):
        loop = Loop()
        with SpectrumMonitor(loop.net, every=4, path=path, resumed_at=resumed_at) as monitor:
            loop.plain(sgd(loop.net))
        assert monitor.records == []  # the file has them
    records = read(path)
    assert [r.step for r in records if r.parameter == "0.weight" and r.axis == "left"] == [4, 8, 12, 16]
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        dataclasses.asdict(record) for record in records
    ]


def test_each_recording_is_on_disk_at_once(tmp_path):
    loop, path = Loop(), tmp_path / "spectra.jsonl"
    optimizer = sgd(loop.net)
    with SpectrumMonitor(loop.net, every=1, path=path):
        for step in range(3):
            loop.loss(step).backward()
            optimizer.step()
            assert len(read(path)) == 4 * (step + 1)


def test_a_last_line_that_was_cut_off_is_left_out_and_a_stray_line_is_named(tmp_path):
    loop, path = Loop(), tmp_path / "spectra.jsonl"
    with SpectrumMonitor(loop.net, every=8, path=path):
        loop.plain(sgd(loop.net))
    whole = path.read_text()
    path.write_text(whole + whole[:40])
    assert len(read(path)) == 4
    path.write_text(whole + '{"step": 3}\n')
    with pytest.raises(ValueError, match=r"line 5: not a record of SpectrumMonitor"):
        read(path)


def test_a_weight_without_mass_has_no_shares_and_its_line_is_still_json(tmp_path):
    net, path = Net(3, 4), tmp_path / "spectra.jsonl"
    follow(net, net.weight, [torch.zeros(3, 4)], path=path)
    for line in path.read_text().splitlines():
        assert json.loads(line, parse_constant=pytest.fail)["share"] is None
    assert all(record.intrinsic_dimension is None and record.trace == 0 for record in read(path))


class Writer:
    def __init__(self) -> None:
        self.seen: dict[str, float] = {}

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.seen[tag] = value


def test_scalars_go_to_a_writer():
    net, stream, writer = Net(6, 8), gradients(4, (6, 8)), Writer()
    records = follow(net, net.weight, stream, tensorboard=writer).records
    assert len(writer.seen) == 8
    assert writer.seen["intrinsic_dimension/weight/left"] == records[0].intrinsic_dimension


def test_tensorboard_files_hold_the_records(tmp_path):
    pytest.importorskip("tensorboard", reason="the spectra extra brings tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    net, stream = Net(6, 8), gradients(4, (6, 8))
    records = follow(net, net.weight, stream, tensorboard=tmp_path).records
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    (event,) = events.Scalars("share/weight/right")
    assert event.step == 4 and event.value == pytest.approx(records[1].share, rel=1e-6)


# ---- mistakes


MISTAKES: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"source": [1]}, TypeError, "source is a list: must be a torch module or optimizer"),
    ({"every": 0}, ValueError, "every=0: must be at least 1"),
    ({"top": 0}, ValueError, "top=0: must be at least 1, or a share"),
    ({"top": 1.5}, ValueError, "top=1.5: must be a count of eigenvalues, at least 1, or a share in"),
    ({"beta2": 1.5}, ValueError, "beta2=1.5: must be in"),
    ({"rank": 1}, ValueError, "rank=1: must be at least 2"),
]


@pytest.mark.parametrize(("options", "kind", "message"), MISTAKES)
def test_mistakes_are_named(options: dict[str, Any], kind: type[Exception], message: str):
    with pytest.raises(kind, match=message):
        SpectrumMonitor(**{"source": nn.Linear(2, 2), **options})


def test_a_monitor_counts_no_step_twice():
    with SpectrumMonitor(nn.Linear(2, 2)) as monitor:
        with pytest.raises(RuntimeError, match="follows the optimizers' steps itself"):
            monitor.step()
        with pytest.raises(RuntimeError, match="enter it once"):
            monitor.__enter__()

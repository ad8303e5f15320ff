"""The monitor works with any training loop, and does not change the training."""

from contextlib import nullcontext, suppress
from typing import Any

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from watched import Loop, sgd

from sketchy import SketchyShampoo
from sketchy.analysis.spectra import SpectrumMonitor


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
    """Not counting the values that the optimizer reads itself."""
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


MISTAKES: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"source": [1]}, TypeError, "source is a list: must be a torch module or optimizer"),
    ({"every": 0}, ValueError, "every=0: must be at least 1"),
    ({"top": 0}, ValueError, "top=0: must be at least 1, or a share"),
    ({"top": 1.5}, ValueError, "top=1.5: must be a number of eigenvalues, at least 1, or a share in"),
    ({"beta2": 1.5}, ValueError, "beta2=1.5: must be in"),
    ({"rank": 1}, ValueError, "rank=1: must be at least 2"),
]


@pytest.mark.parametrize(("options", "kind", "message"), MISTAKES)
def test_mistakes_are_named(options: dict[str, Any], kind: type[Exception], message: str):
    with pytest.raises(kind, match=message):
        SpectrumMonitor(**{"source": nn.Linear(2, 2), **options})


def test_a_monitor_counts_no_step_twice():
    with SpectrumMonitor(nn.Linear(2, 2)) as monitor:
        with pytest.raises(RuntimeError, match="the monitor steps by itself"):
            monitor.step()
        with pytest.raises(RuntimeError, match="enter it only once"):
            monitor.__enter__()

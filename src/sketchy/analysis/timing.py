"""Interleaved timing: all functions run in every round, so that a slow period of the machine affects all."""

import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch

Clock = Callable[[Callable[[], object]], tuple[float, float]]  # runs a function: wall and CPU seconds


@dataclass(frozen=True)
class Times:
    """Seconds by round: wall time, and CPU time where it was measured."""

    rounds: list[float]
    cpu: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    def __str__(self) -> str:
        low, _, high = statistics.quantiles(self.rounds, n=4)
        return f"{1e3 * self.median:.2f} ms ({1e3 * low:.2f} to {1e3 * high:.2f})"


def wall(run: Callable[[], object]) -> tuple[float, float]:
    """The clock of this machine, for work that is done when the function returns."""
    start = time.perf_counter(), time.process_time()
    run()
    return time.perf_counter() - start[0], time.process_time() - start[1]


def clock_of(device: torch.device) -> Clock:
    """The clock for work on a device: events on CUDA; elsewhere wall time until the device has finished."""
    if device.type == "cpu":
        return wall

    def events(run: Callable[[], object]) -> tuple[float, float]:
        with torch.cuda.device(device):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            began = time.process_time()
            start.record()
            run()
            end.record()
            spent = time.process_time() - began  # of the host, which may be done long before the device
            end.synchronize()
        return start.elapsed_time(end) / 1e3, spent

    def until_finished(run: Callable[[], object]) -> tuple[float, float]:
        torch.accelerator.synchronize(device)
        start = time.perf_counter(), time.process_time()
        run()
        spent = time.process_time() - start[1]
        torch.accelerator.synchronize(device)
        return time.perf_counter() - start[0], spent

    return events if device.type == "cuda" else until_finished


def interleave(
    runs: Mapping[str, Callable[[], object]], *, rounds: Iterable[int], repeats: int = 3, clock: Clock = wall
) -> dict[str, Times]:
    """In each round, call each function once to warm up, then ``repeats`` times, and keep the median.

    ``rounds``: such as ``range(25)``, or a progress bar over it.
    """
    results = {name: Times([]) for name in runs}
    for _ in rounds:
        for name, run in runs.items():
            run()
            seconds, cpu = zip(*(clock(run) for _ in range(repeats)), strict=True)
            results[name].rounds.append(statistics.median(seconds))
            results[name].cpu.append(statistics.median(cpu))
    return results


def ratio(slow: Times, fast: Times) -> str:
    """slow / fast, compared round by round: the median with quartiles."""
    ratios = [s / f for s, f in zip(slow.rounds, fast.rounds, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"

"""Interleaved timing: all functions run in every round, so that a slow period of the machine affects all."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rich.progress import track


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


def interleave(
    runs: Mapping[str, Callable[[], object]], *, rounds: int, repeats: int = 3, title: str = "timing"
) -> dict[str, Times]:
    """In each round, call each function once to warm up, then ``repeats`` times, and keep the median."""
    results = {name: Times([]) for name in runs}
    for _ in track(range(rounds), description=title, transient=True):
        for name, run in runs.items():
            run()
            seconds = []
            for _ in range(repeats):
                start = time.perf_counter(), time.process_time()
                run()
                seconds.append((time.perf_counter() - start[0], time.process_time() - start[1]))
            wall, cpu = zip(*seconds, strict=True)
            results[name].rounds.append(statistics.median(wall))
            results[name].cpu.append(statistics.median(cpu))
    return results


def ratio(slow: Times, fast: Times) -> str:
    """slow / fast, compared round by round: the median with quartiles."""
    ratios = [s / f for s, f in zip(slow.rounds, fast.rounds, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"

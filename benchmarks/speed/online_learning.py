"""Time the online table as a whole, its growth with d, and all settings at once beside one at a time.

    SKETCHY_DATA=... python -m benchmarks.speed.online_learning [--processes N] [--rounds N]

Nothing else should be running. After a Ctrl-C the same command continues with the table that was interrupted.
"""

import os
import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import tyro
from rich.console import Console
from rich.progress import track
from torch import Tensor

from benchmarks.common.arguments import at_least
from benchmarks.common.resumable import Sheet, show
from sketchy import oco
from sketchy.analysis.timing import Times, interleave, ratio
from sketchy.experiments import sweep, table
from sketchy.experiments.data import Dataset, load
from sketchy.experiments.mistakes import user_mistakes
from sketchy.experiments.pool import stop_by_signal
from sketchy.experiments.summary import exponent

WIDTHS = [1024, 2048, 4096, 8192]
console = Console(width=110)


@dataclass(frozen=True)
class Options:
    """Time the online table as a whole, by width, and beside one setting at a time."""

    processes: int = 2
    """Learners that run at the same time, for the whole table."""
    rounds: int = 3
    """Interleaved rounds of the other measurements."""
    data: str = "a9a"
    """The data set of the table."""
    slice_rows: int = 300
    """Rows for the comparison with one setting at a time."""
    slice_settings: int = 7
    """Settings that run one at a time, evenly chosen from the 49."""


def whole_table(data: Dataset, options: Options) -> Sheet:
    """The work of `sketchy oco`: all rows, six learners, 49 settings each."""
    began = time.perf_counter()
    plan = sweep.plan(data)
    with tempfile.TemporaryDirectory() as out:
        with stop_by_signal() as stop:  # the child processes learn of it from this one
            sweep.run(plan, data, Path(out), processes=options.processes, stopped=stop.is_set)
        if stop.is_set():
            raise KeyboardInterrupt  # the time of half a table is useless
        seconds = time.perf_counter() - began
        results = sweep.results(plan, Path(out))
    lines = []
    losses = {row.learner: row.average_loss for row in table.ranking(table.rows(plan, results))}
    for result in results:
        paper = table.PAPER.get(plan.data, {}).get(result.learner, "")
        micro = f"{1e6 * result.seconds / plan.rows:.0f}"
        loss = f"{losses[result.learner]:.4f}"
        lines.append((result.learner, f"{result.seconds:.1f}", micro, loss, paper))
    return {
        "title": f"{table.title(plan)}; {options.processes} processes: {seconds:.1f} s",
        "columns": ("learner", "seconds of its process", "µs a row", "average loss", "paper"),
        "lines": lines,
    }


def player(name: str, X: Tensor, y: Tensor, eta: Tensor, delta: Tensor) -> Callable[[], object]:
    """A function that runs a new learner on all rows."""

    def run() -> object:
        learner = oco.make(name, X.shape[1], eta=eta, delta=delta, sketch_size=sweep.SKETCH_SIZE)
        return list(oco.play(learner, oco.loss.logistic, X, y))

    return run


def growth(options: Options) -> Sheet:
    """The time of a row by width; it should be linear, with exponent 1."""
    rows = 24  # enough to fill the sketch
    g = torch.Generator().manual_seed(0)
    lines = []
    streams = {d: torch.randn(rows, d, generator=g, dtype=torch.float64) / d**0.5 for d in WIDTHS}
    y = torch.rand(rows, generator=g) > 0.5
    for name in sweep.PAPER_LEARNERS:
        runs = {str(d): player(name, X, y, *sweep.settings(name)) for d, X in streams.items()}
        times = interleave(runs, rounds=track(range(options.rounds), name, transient=True), repeats=1)
        cells = [f"{1e3 * times[str(d)].median / rows:.2f}" for d in WIDTHS]
        lines.append((name, *cells, f"{exponent(WIDTHS, [times[str(d)].median for d in WIDTHS]):.2f}"))
    return {
        "title": f"ms a row by d: 49 settings, sketch size 10, {rows} normal rows, one thread",
        "columns": ("learner", *(f"d = {d}" for d in WIDTHS), "exponent"),
        "lines": lines,
    }


def one_by_one(data: Dataset, options: Options) -> Sheet:
    """All settings in one pass, beside a pass for each setting, as in the published code."""
    count, rows = options.slice_settings, min(options.slice_rows, data.rows)
    chosen = torch.linspace(0, sweep.GRID_POINTS - 1, count).round().long()
    lines: list[tuple[str, ...]] = []
    X, y = data.X[:rows].double(), data.y[:rows]
    together, apart = [0.0] * options.rounds, [0.0] * options.rounds
    for name in sweep.PAPER_LEARNERS:
        eta, delta = sweep.settings(name)
        singles = [player(name, X, y, eta[i : i + 1], delta[i : i + 1]) for i in chosen.tolist()]
        runs: dict[str, Callable[[], object]] = {
            "together": player(name, X, y, eta, delta),
            "apart": partial(_each, singles),
        }
        times = interleave(runs, rounds=track(range(options.rounds), name, transient=True), repeats=1)
        extrapolated = Times([seconds * sweep.GRID_POINTS / count for seconds in times["apart"].rounds])
        lines.append((name, *_compared(extrapolated, times["together"])))
        together = [a + b for a, b in zip(together, times["together"].rounds, strict=True)]
        apart = [a + b for a, b in zip(apart, extrapolated.rounds, strict=True)]
    return {
        "title": f"{sweep.GRID_POINTS} settings over the first {rows} rows of {data.name}, one thread; "
        f"'one by one' is measured on {count} of them and multiplied by {sweep.GRID_POINTS}/{count}",
        "columns": ("learner", "together, s", "one by one, s", "ratio"),
        "lines": [*lines, (), ("all", *_compared(Times(apart), Times(together)))],
    }


def _each(runs: list[Callable[[], object]]) -> None:
    for run in runs:
        run()


def _compared(slow: Times, fast: Times) -> tuple[str, str, str]:
    return f"{fast.median:.2f}", f"{slow.median:.2f}", ratio(slow, fast)


def main(arguments: Sequence[str] | None = None) -> None:
    options = tyro.cli(Options, prog="python -m benchmarks.speed.online_learning", args=arguments)
    with user_mistakes("benchmarks.speed.online_learning"):
        at_least(1, processes=options.processes)
        at_least(1, slice_rows=options.slice_rows, slice_settings=options.slice_settings)
        at_least(2, rounds=options.rounds)  # for quartiles
        data = load(options.data)
    torch.set_num_threads(1)
    console.print(f"torch {torch.__version__}, {platform.machine()}, {os.cpu_count()} cores")
    tables = {
        "whole_table": partial(whole_table, data, options),
        "growth": partial(growth, options),
        "one_by_one": partial(one_by_one, data, options),
    }
    show("benchmarks.speed.online_learning", tables, options, console)


if __name__ == "__main__":
    main()

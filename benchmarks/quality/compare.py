"""Train with every optimizer on a task, tune the learning rates alike, and compare the losses.

    SKETCHY_DATA=... python -m benchmarks.quality charlm [--quick] [--tuned-rank 32] [--plot FILE]
    python -m benchmarks.quality --plot FILE

Each finished run is one line in benchmarks/results/quality-TASK.jsonl and is not run again. --again first
deletes the lines of the chosen optimizers. After a Ctrl-C the same command continues.
``benchmarks.quality.front`` draws the results.
"""

import math
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import tyro
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.common.arguments import at_least, positive
from benchmarks.common.process import only_legal_instructions
from benchmarks.common.provenance import commit
from benchmarks.common.results import QUICK, RESULTS
from benchmarks.quality.plan import Tuning, rows
from benchmarks.quality.rate_plot import rate_sweeps
from benchmarks.quality.runs import Budget, Run, Work, load, save, task_of_this_process
from benchmarks.quality.table import FOOTNOTE, cells, header, title
from benchmarks.quality.variants import RANKS, Contender, contenders, everyone
from sketchy.experiments import tasks
from sketchy.experiments.data import data_directory
from sketchy.experiments.mistakes import user_mistakes
from sketchy.experiments.pool import Stopped, spread, stop_by_signal

QUICK_STEPS = 20
QUICK_RANKS = (8, 32)
SWEEPS_SHOWN: tuple[tuple[str, int | None], ...] = (
    *((name, None) for name in ("adamw", "muon", "soap", "shampoo")),
    *((name, 64) for name in ("sketchy_shampoo", "sketchy_soap")),  # the default
)


@dataclass(frozen=True)
class Options:
    """Tune every optimizer over the same rates on a task, run the best on several seeds, and compare."""

    task: tyro.conf.Positional[str | None] = None
    """charlm, warpeace, autoencoder, cifar10, tox21, or the demo's digits; none to draw the picture only."""
    quick: bool = False
    """A few steps, one rate and one seed, to see that all runs; results go to runs/quick."""
    rates: int = 6
    """Learning rates for each optimizer, each twice the one before."""
    more_rates: int = 3
    """At most so many more for whoever has its best rate at an end of the grid."""
    finalists: int = 2
    """Rates of each optimizer that run on all seeds; the best mean counts."""
    seeds: int = 3
    """Runs at each of these."""
    optimizers: tuple[str, ...] = everyone()
    """Which to compare; AdamW's results are used if they are there."""
    ranks: tuple[int, ...] = RANKS
    """Ranks of the sketched optimizers."""
    tuned_rank: int | None = None
    """Tune at this rank only, and run the other ranks at its best rate: fewer tries for ours."""
    steps: int | None = None
    """Steps of a run; the task's own number if not given."""
    limit: float = 600.0
    """Seconds; a run that would take longer is given up after its first steps, with a message."""
    again: bool = False
    """Drop the results of the chosen optimizers and run them anew."""
    out: Path | None = None
    """Where the runs are kept; benchmarks/results/quality-TASK.jsonl if not given."""
    plot: Path | None = None
    """Draw loss against rate for all tasks in benchmarks/results."""
    processes: int = 2
    """Runs at the same time, one thread each."""
    data_dir: Path | None = None
    """Where data sets lie; $SKETCHY_DATA or a cache of yours if not given."""
    download: bool = False
    """Fetch the task's data set if it is not there."""

    @property
    def budget(self) -> Budget:
        return Budget(self.rates, self.more_rates, self.finalists, self.seeds, self.tuned_rank)

    def quicker(self) -> "Options":
        quick_ranks = QUICK_RANKS if self.ranks == RANKS else self.ranks
        return replace(self, rates=1, seeds=1, ranks=quick_ranks, steps=self.steps or QUICK_STEPS)


@dataclass(frozen=True)
class Sweep:
    """A task, who is compared on it, and the file that grows."""

    task: str
    steps: int
    path: Path
    compared: Sequence[Contender]
    options: Options

    @property
    def tuning(self) -> Tuning:
        return Tuning(load(self.path), self.steps, self.options.budget)

    def complete(self, progress: Progress, stopped: Stopped) -> bool:
        """Do what is missing, stage by stage; whether all was done."""
        while True:
            stage, runs = self.tuning.missing(self.compared)
            if not runs:
                return True
            if not self.do(stage, runs, progress, stopped):
                return False

    def do(self, stage: str, missing: list[Run], progress: Progress, stopped: Stopped) -> bool:
        """The slow and the unknown first, so that no process is left alone with one of them at the end."""
        seconds = {run.contender: record.seconds for run, record in load(self.path).items()}
        missing.sort(key=lambda run: -seconds.get(run.contender, math.inf))
        runs = {str(run): run for run in missing}
        bar = progress.add_task(stage, total=len(runs) * self.steps)
        steps = dict.fromkeys(runs, 0)

        def report(name: str, step: int) -> None:
            steps[name] = step
            progress.update(bar, completed=sum(steps.values()))

        work = Work(self.task, self.path, runs, self.options.limit, commit())
        return spread(work, list(runs), self.options.processes, report, stopped)


def table(sweep: Sweep) -> Table:
    """A line for every contender that has runs."""
    found = rows(sweep.tuning, sweep.compared)
    shown = Table(
        title=title(sweep.task, sweep.steps, sweep.options.budget),
        caption=FOOTNOTE,
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
    )
    for column in header(found):
        first = column == "optimizer"
        shown.add_column(column, justify="left" if first else "right", no_wrap=first)
    for row in found:
        shown.add_row(*cells(row, header(found)))
    return shown


def compare(options: Options, console: Console) -> None:
    assert options.task is not None
    with user_mistakes("benchmarks.quality"):
        at_least(1, processes=options.processes, steps=() if options.steps is None else [options.steps])
        at_least(2, ranks=options.ranks)
        positive(limit=options.limit)
        if options.data_dir is not None:
            os.environ["SKETCHY_DATA"] = str(data_directory(options.data_dir))  # for other processes, too
        if options.download:
            tasks.load(options.task, download=True)
        task = task_of_this_process(options.task)
        compared = contenders(options.optimizers, options.ranks)
        budget = options.budget
        if options.tuned_rank is not None and options.tuned_rank not in options.ranks:
            raise ValueError(f"tuned-rank={options.tuned_rank}: must be one of ranks={options.ranks}")
        path = options.out or (QUICK if options.quick else RESULTS) / f"quality-{options.task}.jsonl"
        dropped = compared if options.again else ()
        save(path, {run: r for run, r in load(path).items() if run.contender not in dropped}, budget)
    sweep = Sweep(options.task, options.steps or task.steps, path, compared, options)
    with stop_by_signal() as stop, Progress(console=console) as progress:
        complete = sweep.complete(progress, stop.is_set)
    console.print(table(sweep))
    console.print(f"runs: {path}", style="dim")
    if not complete:
        console.print("stopped; the same command, without --again, goes on from here")
        raise SystemExit(130)


def picture(directory: Path) -> bytes:
    """The sweeps of AdamW, Muon, ours and their dense twins on all tasks, in the order of the registry.

    Means over seeds, of which rates that did badly have one only.
    """
    panels: dict[str, dict[str, dict[float, float]]] = {}
    for name in tasks.TASKS:
        losses: dict[tuple[str, float], list[float]] = {}
        for run, record in load(directory / f"quality-{name}.jsonl").items():
            if (run.contender.optimizer, run.contender.rank) in SWEEPS_SHOWN:
                losses.setdefault((str(run.contender), run.rate), []).append(record.loss)
        for (contender, rate), some in losses.items():
            panels.setdefault(name, {}).setdefault(contender, {})[rate] = statistics.mean(some)
    if not panels:
        raise SystemExit(f"benchmarks.quality: no quality-TASK.jsonl in {directory}; run a task first")
    return rate_sweeps(panels)


def main(arguments: Sequence[str] | None = None) -> None:
    options = tyro.cli(Options, prog="python -m benchmarks.quality", args=arguments)
    with user_mistakes("benchmarks.quality"):
        if options.task is None and options.plot is None:
            raise ValueError("give a task, or --plot FILE to draw what there is")
    if options.quick:
        options = options.quicker()
    if options.task is not None:
        only_legal_instructions()
        compare(options, Console(width=190))
    if options.plot is not None:
        content = picture(RESULTS)
        with user_mistakes("benchmarks.quality"):
            options.plot.write_bytes(content)


if __name__ == "__main__":
    main()

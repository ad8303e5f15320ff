"""Train with every optimizer on a task, tune the learning rates alike, and compare the losses.

    SKETCHY_DATA=... python -m benchmarks.quality charlm [--quick] [--tuned-rank 32] [--plot FILE]
    python -m benchmarks.quality --plot FILE

Each finished run is one line in benchmarks/results/quality-TASK.jsonl and is not run again. --again first
deletes the lines of the chosen optimizers. After a Ctrl-C the same command continues.
``benchmarks.quality.front`` draws the results.
"""

import math
import os
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
from benchmarks.quality.plan import Tuning
from benchmarks.quality.rate_plot import Curves, rate_sweeps
from benchmarks.quality.runs import LIMIT, LIMITS, Budget, Work, save, task_of_this_process
from benchmarks.quality.variants import RANKS, everyone, variants
from sketchy.experiments import quality, quality_table, tasks
from sketchy.experiments.data import data_directory
from sketchy.experiments.mistakes import user_mistakes
from sketchy.experiments.pool import Stopped, spread, stop_by_signal
from sketchy.experiments.quality import Run, Variant

WIDTH = 270  # of the table in the terminal
QUICK_STEPS = 20
QUICK_RANKS = (8, 32)
SWEEPS_SHOWN = (
    *map(Variant, ("adamw", "muon", "soap", "shampoo")),
    *(Variant(name, 32) for name in ("sketchy_shampoo", "sketchy_soap")),  # the rank that is tuned
)


@dataclass(frozen=True)
class Options:
    """Train with every optimizer on a task, tune the learning rates alike, and compare the losses."""

    task: tyro.conf.Positional[str | None] = None
    """charlm, warpeace, autoencoder, cifar10, tox21, digits, charlm_long, gpt256 or gpt10m; without a task,
    --plot draws the picture."""
    quick: bool = False
    """A few steps, one learning rate and one seed, as a test; results go to runs/quick."""
    rates: int = 6
    """Learning rates for each optimizer, each twice the one before."""
    rate_factor: float = 1.0
    """Multiplies the centre of every optimizer's grid: 0.5 for larger networks."""
    more_rates: int = 3
    """At most so many more for an optimizer whose best rate is at an end of the grid."""
    finalists: int = 2
    """How many of the best rates of each optimizer run on all seeds."""
    seeds: int = 3
    """Runs at each of these rates."""
    optimizers: tuple[str, ...] = everyone()
    """The optimizers to compare; results of AdamW are used if the file has them."""
    ranks: tuple[int, ...] = RANKS
    """Ranks of the sketched optimizers."""
    tuned_rank: int | None = None
    """Tune the sketched optimizers at this rank only, and run other ranks at its best rate."""
    steps: int | None = None
    """Steps of a run; each task has its own default."""
    limit: float | None = None
    """Seconds; a run that would take longer is stopped after its first steps and reported as failed. 600 by
    default, and more on the tasks that take longer."""
    again: bool = False
    """Delete the results of the chosen optimizers and run them again."""
    out: Path | None = None
    """The file of the runs; benchmarks/results/quality-TASK.jsonl by default."""
    plot: Path | None = None
    """Draw loss against learning rate for all tasks in benchmarks/results into this file."""
    processes: int = 2
    """Runs at the same time, one thread each."""
    data_dir: Path | None = None
    """The directory of the data sets; $SKETCHY_DATA or a cache directory by default."""
    download: bool = False
    """Download the data set of the task if it is missing."""

    @property
    def budget(self) -> Budget:
        return Budget(
            self.rates, self.more_rates, self.finalists, self.seeds, self.tuned_rank, self.rate_factor
        )

    @property
    def seconds(self) -> float:
        """The longest time of a run."""
        return LIMITS.get(self.task or "", LIMIT) if self.limit is None else self.limit

    def quicker(self) -> "Options":
        quick_ranks = QUICK_RANKS if self.ranks == RANKS else self.ranks
        return replace(self, rates=1, seeds=1, ranks=quick_ranks, steps=self.steps or QUICK_STEPS)


def title(task: str, steps: int, budget: Budget) -> str:
    given = f"{budget.rates} learning rates and up to {budget.more_rates} more for each optimizer"
    if budget.tuned_rank is not None:
        given += f"; ours are tuned at rank {budget.tuned_rank}, and other ranks run at its best rate"
    return f"{task}: validation loss after {steps} steps, mean ± standard deviation over seeds; {given}"


@dataclass(frozen=True)
class Comparison:
    """A task, the variants that are compared on it, and the file of the runs."""

    task: str
    steps: int
    path: Path
    compared: Sequence[Variant]
    options: Options

    @property
    def tuning(self) -> Tuning:
        return Tuning(quality.load(self.path), self.steps, self.options.budget)

    def complete(self, progress: Progress, stopped: Stopped) -> bool:
        """Do the missing runs, stage by stage; False if stopped before the end."""
        while True:
            stage, runs = self.tuning.missing(self.compared)
            if not runs:
                return True
            if not self.do(stage, runs, progress, stopped):
                return False

    def do(self, stage: str, missing: list[Run], progress: Progress, stopped: Stopped) -> bool:
        """Do the runs of a stage. Slow ones go first, so that all processes end at about the same time."""
        seconds = {run.variant: record.seconds for run, record in quality.load(self.path).items()}
        missing.sort(key=lambda run: -seconds.get(run.variant, math.inf))
        runs = {str(run): run for run in missing}
        bar = progress.add_task(stage, total=len(runs) * self.steps)
        steps = dict.fromkeys(runs, 0)

        def report(name: str, step: int) -> None:
            steps[name] = step
            progress.update(bar, completed=sum(steps.values()))

        work = Work(self.task, self.path, runs, self.options.seconds, commit())
        return spread(work, list(runs), self.options.processes, report, stopped)


def table(found: Sequence[quality.Tuned], title: str) -> Table:
    """The results for the terminal."""
    shown = Table(
        title=title,
        caption=f"{quality_table.FOOTNOTE} {quality_table.failures(found)}",
        box=box.SIMPLE_HEAD,
        title_justify="left",
        caption_justify="left",
    )
    columns, lines = quality_table.table(found)
    for name in columns:
        first = name == "optimizer"
        shown.add_column(name, justify="left" if first else "right", no_wrap=first)
    for line in lines:
        shown.add_row(*line)
    return shown


def compare(options: Options, console: Console) -> None:
    assert options.task is not None
    with user_mistakes("benchmarks.quality"):
        at_least(1, processes=options.processes, steps=() if options.steps is None else [options.steps])
        at_least(2, ranks=options.ranks)
        positive(limit=options.seconds, rate_factor=options.rate_factor)
        if options.data_dir is not None:
            os.environ["SKETCHY_DATA"] = str(data_directory(options.data_dir))  # for other processes, too
        if options.download:
            tasks.load(options.task, download=True)
        task = task_of_this_process(options.task)
        compared = variants(options.optimizers, options.ranks)
        budget = options.budget
        if options.tuned_rank is not None and options.tuned_rank not in options.ranks:
            raise ValueError(f"tuned-rank={options.tuned_rank}: must be one of ranks={options.ranks}")
        path = options.out or (QUICK if options.quick else RESULTS) / f"quality-{options.task}.jsonl"
        dropped = compared if options.again else ()
        save(path, {run: r for run, r in quality.load(path).items() if run.variant not in dropped}, budget)
    comparison = Comparison(options.task, options.steps or task.steps, path, compared, options)
    with stop_by_signal() as stop, Progress(console=console) as progress:
        complete = comparison.complete(progress, stop.is_set)
    of_this_length = {run: r for run, r in quality.load(path).items() if run.steps == comparison.steps}
    found = [each for each in quality.tuned(of_this_length) if each.variant in compared]
    console.print(table(found, title(options.task, comparison.steps, budget)))
    console.print(f"runs: {path}", style="dim")
    if not complete:
        console.print("stopped; the same command, without --again, continues from here")
        raise SystemExit(130)


def picture(directory: Path) -> bytes:
    """Loss against learning rate on all tasks, for AdamW, Muon, ours and the dense optimizers they sketch.

    Points are means over seeds; rates that did badly ran on one seed only.
    """
    panels: dict[str, Curves] = {}
    for name in tasks.TASKS:
        if results := quality.load(directory / f"quality-{name}.jsonl"):
            found = {each.variant: each for each in quality.tuned(results)}
            shown = {v.name: (found[v].tried, found[v].rate) for v in SWEEPS_SHOWN if v in found}
            panels |= {name: shown} if shown else {}
    if not panels:
        raise SystemExit(f"benchmarks.quality: no quality-TASK.jsonl in {directory}; run a task first")
    return rate_sweeps(panels)


def main(arguments: Sequence[str] | None = None) -> None:
    options = tyro.cli(Options, prog="python -m benchmarks.quality", args=arguments)
    with user_mistakes("benchmarks.quality"):
        if options.task is None and options.plot is None:
            raise ValueError("give a task, or --plot FILE to draw the results")
    if options.quick:
        options = options.quicker()
    if options.task is not None:
        only_legal_instructions()
        compare(options, Console(width=WIDTH))
    if options.plot is not None:
        content = picture(RESULTS)
        with user_mistakes("benchmarks.quality"):
            options.plot.write_bytes(content)


if __name__ == "__main__":
    main()

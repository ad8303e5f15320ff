"""Training quality on real data: every optimizer tuned over the same rates, the best one on several seeds.

    SKETCHY_DATA=... python -m benchmarks.quality charlm [--quick] [--plot FILE]
    python -m benchmarks.quality --plot FILE

Each finished run is a line in benchmarks/results/quality-TASK.jsonl and is not run again; --again drops the
lines of the chosen optimizers first. Ctrl-C stops; the same command goes on.
"""

import json
import math
import signal
import statistics
import threading
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path

import tyro
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.contenders import BUILD, Contender, beyond, contenders, rates
from benchmarks.rate_plot import rate_sweeps
from sketchy.cli.mistakes import user_mistakes
from sketchy.experiments import tasks
from sketchy.experiments.pool import Report, Stopped, spread
from sketchy.experiments.sweep import write
from sketchy.experiments.training import Look, Record, running

RESULTS = Path(__file__).parent / "results"
MORE_RATES = 3  # at most so many are added to the grid of one whose best rate lies at an end
FINALISTS = 2  # rates that run on all seeds; the better mean counts
QUICK_STEPS = 30
SLOW = ("soap", "shampoo")  # go first, so that no process is left alone with one of them at the end
ADAMW = Contender("adamw")

stop = threading.Event()  # set by Ctrl-C: runs under way are dropped, finished ones are on disk


@dataclass(frozen=True)
class Options:
    """Tune every optimizer over the same rates on a task, run the best on several seeds, and compare."""

    task: tyro.conf.Positional[str | None] = None
    """charlm, autoencoder, cifar10 or digits; none to draw the picture only."""
    quick: bool = False
    """A few steps, two rates and one seed, to see that all runs; results go to runs/."""
    rates: int = 6
    """Learning rates for each optimizer, each twice the one before."""
    seeds: int = 3
    """Runs at each of the two best rates; the better mean counts."""
    optimizers: tuple[str, ...] = tuple(BUILD)
    """Which to compare; AdamW's results are used if they are there."""
    ranks: tuple[int, ...] | None = None
    """Ranks of the sketched optimizers; 32, and 8 for sketchy_soap, if not given."""
    steps: int | None = None
    """Steps of a run; the task's own number if not given."""
    again: bool = False
    """Drop the results of the chosen optimizers and run them anew."""
    out: Path | None = None
    """Where the runs are kept; benchmarks/results/quality-TASK.jsonl if not given."""
    plot: Path | None = None
    """Draw loss against rate for all tasks in benchmarks/results."""
    processes: int = 2
    """Runs at the same time, one thread each."""


@dataclass(frozen=True)
class Run:
    """One training run; a line of the results once it has its record."""

    contender: Contender
    rate: float
    seed: int
    steps: int

    def __str__(self) -> str:
        return f"{self.contender}, rate {self.rate:g}, seed {self.seed}"


Results = dict[Run, Record]


def load(path: Path) -> Results:
    """All whole lines; one that was cut off while written is left out."""
    results: Results = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            continue
        record = Record(**{**row["record"], "curve": [Look(**look) for look in row["record"]["curve"]]})
        contender = Contender(row["optimizer"], row["rank"])
        results[Run(contender, row["rate"], record.seed, record.steps)] = record
    return results


def line(run: Run, record: Record) -> str:
    names = {"optimizer": run.contender.optimizer, "rank": run.contender.rank, "rate": run.rate}
    return json.dumps({**names, "loss": record.loss, "record": asdict(record)}) + "\n"


def save(path: Path, results: Results) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, "".join(line(run, record) for run, record in results.items()))


@cache
def task_of_this_process(name: str) -> tasks.Task:
    return tasks.load(name)


def work(task: str, path: Path, runs: dict[str, Run], name: str, report: Report, stopped: Stopped) -> bool:
    """Do the named run and append its line; whether it came to its end."""
    run = runs[name]
    build = partial(run.contender.build, rate=run.rate)
    for record in running(task_of_this_process(task), build, steps=run.steps, seed=run.seed):
        report(name, record.step)
        if stopped():
            return False
    with path.open("ab", buffering=0) as file:  # one write, so that lines of two processes don't mix
        file.write(line(run, record).encode())
    report(name, run.steps)
    return True


@dataclass(frozen=True)
class Sweep:
    """A task, who is compared on it, and the file that grows."""

    task: str
    steps: int
    path: Path
    compared: Sequence[Contender]
    options: Options

    def complete(self, progress: Progress) -> None:
        """All stages: the grid, its extension, the seeds, the sketched ones at AdamW's rate."""
        grid = ((c, rate, 0) for c in self.compared for rate in self.grid(c))
        self.do("grid", grid, progress)
        for _ in range(MORE_RATES):
            tried = {c: self.tried(c) for c in self.compared}
            more = [(c, rate, 0) for c in self.compared if (rate := beyond(tried[c])) is not None]
            self.do("rates beyond the grid", more, progress)
        seeds = range(1, self.options.seeds)
        best = [(c, rate, seed) for c in self.compared for rate in self.finalists(c) for seed in seeds]
        self.do("seeds at the best rates", best, progress)
        if self.tried(ADAMW):
            rate = self.best(ADAMW)
            transfer = ((c, rate, seed) for c in self.compared if c.sketched for seed in (0, *seeds))
            self.do("at AdamW's rate", transfer, progress)

    def do(self, stage: str, wanted: Iterable[tuple[Contender, float, int]], progress: Progress) -> None:
        """Those of the wanted runs that the file doesn't have, the slow optimizers first."""
        done = load(self.path)
        missing = [run for c, rate, seed in wanted if (run := Run(c, rate, seed, self.steps)) not in done]
        if not missing:
            return
        missing.sort(key=lambda run: run.contender.optimizer not in SLOW)
        runs = {str(run): run for run in missing}
        bar = progress.add_task(stage, total=len(runs) * self.steps)
        steps = dict.fromkeys(runs, 0)

        def report(name: str, step: int) -> None:
            steps[name] = step
            progress.update(bar, completed=sum(steps.values()))

        doing = partial(work, self.task, self.path, runs)
        if not spread(doing, list(runs), self.options.processes, report, stop.is_set):
            raise SystemExit("stopped; the same command goes on from here")

    def grid(self, contender: Contender) -> list[float]:
        return rates(contender.optimizer, self.options.rates)

    def tried(self, contender: Contender) -> dict[float, float]:
        """Loss by rate, of seed 0, on the grid and beyond: what the rate is chosen by.

        Not AdamW's rate where that lies elsewhere: it would be one more try for the sketched ones alone.
        """
        runs = ((run, record.loss) for run, record in load(self.path).items())
        mine = {
            run.rate: loss
            for run, loss in runs
            if (run.contender, run.seed, run.steps) == (contender, 0, self.steps)
        }
        tried = {rate: mine[rate] for rate in self.grid(contender) if rate in mine}
        for _ in range(MORE_RATES):
            if (more := beyond(tried)) in mine:
                tried[more] = mine[more]
        return tried

    def best(self, contender: Contender) -> float:
        """By the mean over seeds: the best rate of one seed may be at the edge of divergence."""

        def mean(rate: float) -> float:
            return statistics.mean(record.loss for record in self.records(contender, rate))

        return min(self.finalists(contender), key=mean)

    def finalists(self, contender: Contender) -> list[float]:
        """The two best rates of seed 0, which run on all seeds."""
        tried = self.tried(contender)
        return sorted(tried, key=tried.__getitem__)[:FINALISTS]

    def records(self, contender: Contender, rate: float) -> list[Record]:
        """Of all seeds that were asked for."""
        results = load(self.path)
        runs = (Run(contender, rate, seed, self.steps) for seed in range(self.options.seeds))
        return [results[run] for run in runs if run in results]


def spread_of(values: Sequence[float], digits: int) -> str:
    """Mean ± standard deviation over the seeds."""
    if not all(math.isfinite(value) for value in values):
        return "diverged"
    around = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{around}"


def table(sweep: Sweep, task: tasks.Task) -> Table:
    """A line for every contender that has results."""
    adamw = sweep.records(ADAMW, sweep.best(ADAMW)) if sweep.tried(ADAMW) else []
    goal = statistics.mean(record.loss for record in adamw) if adamw else -math.inf
    header = ["optimizer", "rates", "best rate", task.loss_name, "at AdamW's rate", "steps to AdamW's loss"]
    header += ["accuracy"] if task.classifies else []
    title = f"{sweep.task}: validation loss after {sweep.steps} steps, {sweep.options.seeds} seed(s), ± std"
    shown = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for column in (*header, "state, kB", "ms in step()", "ms in all"):
        first = column == "optimizer"
        shown.add_column(column, justify="left" if first else "right", no_wrap=first)
    for contender in sweep.compared:
        tried, best = sweep.tried(contender), sweep.best(contender)
        records = sweep.records(contender, best)
        digits = 3 if goal < 10 else 1
        transfer = sweep.records(contender, sweep.best(ADAMW)) if adamw and contender.sketched else []
        reached = [steps for record in records if (steps := record.steps_to(goal)) is not None]
        cells = [str(contender), str(len(tried)), f"{best:g}", spread_of([r.loss for r in records], digits)]
        cells += [spread_of([r.loss for r in transfer], digits) if transfer else ""]
        everyone = contender != ADAMW and len(reached) == len(records)
        cells += [f"{statistics.mean(reached):.0f}" if everyone else "" if contender == ADAMW else "never"]
        cells += [spread_of([r.accuracy or 0.0 for r in records], 3)] if task.classifies else []
        per_step = [[1e3 * s / r.step for s in (r.optimizer_seconds, r.seconds)] for r in records]
        milliseconds = [f"{statistics.median(times):.1f}" for times in zip(*per_step, strict=True)]
        shown.add_row(*cells, f"{records[0].optimizer_bytes / 1e3:,.0f}", *milliseconds)
    return shown


def compare(options: Options, console: Console) -> None:
    assert options.task is not None
    with user_mistakes("benchmarks.quality"):
        task = task_of_this_process(options.task)
        compared = contenders(options.optimizers, options.ranks)
        if options.rates < 1 or options.seeds < 1 or options.processes < 1:
            raise ValueError("rates, seeds and processes must be at least 1")
        file = f"quality-{options.task}.jsonl"
        path = options.out or (Path("runs/quick") if options.quick else RESULTS) / file
        steps = options.steps or (QUICK_STEPS if options.quick else task.steps)
        dropped = compared if options.again else ()
        save(path, {run: record for run, record in load(path).items() if run.contender not in dropped})
    sweep = Sweep(options.task, steps, path, compared, options)
    with Progress(console=console) as progress:
        sweep.complete(progress)
    console.print(table(sweep, task))
    console.print(f"runs: {path}", style="dim")


def picture(directory: Path) -> bytes:
    """The sweeps of all tasks that have results, in the order of the registry."""
    panels: dict[str, dict[str, dict[float, float]]] = {}
    for name in tasks.TASKS:
        for run, record in load(directory / f"quality-{name}.jsonl").items():
            if run.seed == 0:
                panels.setdefault(name, {}).setdefault(str(run.contender), {})[run.rate] = record.loss
    if not panels:
        raise SystemExit(f"benchmarks.quality: no quality-TASK.jsonl in {directory}; run a task first")
    return rate_sweeps(panels)


def main(arguments: Sequence[str] | None = None) -> None:
    options = tyro.cli(Options, prog="python -m benchmarks.quality", args=arguments)
    if options.task is None and options.plot is None:
        raise SystemExit("benchmarks.quality: give a task, or --plot FILE to draw what there is")
    if options.quick:
        options = replace(options, rates=2, seeds=1)
    before = signal.signal(signal.SIGINT, lambda *_: stop.set())
    try:
        if options.task is not None:
            compare(options, Console(width=170))
        if options.plot is not None:
            options.plot.write_bytes(picture(RESULTS))
    finally:
        signal.signal(signal.SIGINT, before)


if __name__ == "__main__":
    main()

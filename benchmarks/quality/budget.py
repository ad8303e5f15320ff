"""Ranks that follow the spectra, against equal ranks with the same bytes.

    SKETCHY_DATA=... python -m benchmarks.quality.budget [charlm warpeace ...] [--ranks 8 16 32] [--quick]
    python -m benchmarks.quality.budget --only-show

For each task and rank there are three optimizers: SketchySOAP with this rank for all weights; the same bytes
as its ``budget``; and this budget with the first ranks kept, which follow from shapes alone. All run at the
learning rate that is best for SketchySOAP at rank 32. Each finished run is a line in
benchmarks/results/budget-TASK.jsonl. Then a run of each with seed 0 is watched: ranks and errors of all
weights go to benchmarks/results/budget-watched.jsonl. After a Ctrl-C the same command continues.
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from rich.progress import track

from benchmarks.common.arguments import known
from benchmarks.common.process import only_legal_instructions
from benchmarks.common.results import QUICK, RESULTS
from benchmarks.quality import compare
from benchmarks.quality.budget_plot import Line, draw
from benchmarks.quality.runs import task_of_this_process
from benchmarks.quality.variants import CENTRE, build
from sketchy.analysis import markdown
from sketchy.experiments import quality, tasks
from sketchy.experiments.mistakes import user_mistakes
from sketchy.experiments.pool import one_thread
from sketchy.experiments.quality import Results, Variant
from sketchy.experiments.quality_table import around
from sketchy.experiments.resume import append
from sketchy.experiments.training import Record, Training
from sketchy.files import read_rows
from sketchy.optim.engine import Engine

RANKS = (8, 16, 32)
EQUAL, BUDGET, SHAPES = "sketchy_soap", "sketchy_soap_budget", "sketchy_soap_shapes"
TUNED = Variant(EQUAL, 32)  # its best learning rate is taken
WATCHED = "budget-watched.jsonl"
DRAWN = ("charlm", 16)  # in the picture
LOOKS = 40  # in a watched run
Row = dict[str, Any]


@dataclass(frozen=True)
class Options:
    """Compare a budget of bytes with equal ranks of the same bytes."""

    tasks: tyro.conf.Positional[tuple[str, ...]] = ("charlm", "autoencoder", "warpeace", "tox21", "cifar10")
    """The tasks, one after the other."""
    ranks: tuple[int, ...] = RANKS
    """The equal ranks whose bytes are the budgets."""
    optimizers: tuple[str, ...] = (EQUAL, BUDGET, SHAPES)
    """Which of the three run."""
    seeds: int = 3
    """Runs of each."""
    steps: int | None = None
    """Steps of a run; each task has its own default."""
    again: bool = False
    """Delete the results of these optimizers and run them again."""
    quick: bool = False
    """A few steps and one seed, as a test; results go to runs/quick."""
    only_show: bool = False
    """Run nothing, and print the tables of what is there."""
    processes: int = 1
    """Runs at the same time, one thread each."""
    data_dir: Path | None = None
    """The directory of the data sets; $SKETCHY_DATA or a cache directory by default."""

    @property
    def results(self) -> Path:
        return QUICK if self.quick else RESULTS

    def of(self, task: str) -> compare.Options:
        """The options of the comparison that does the runs of a task."""
        return compare.Options(
            task,
            rates=1,
            more_rates=0,
            finalists=1,
            seeds=1 if self.quick else self.seeds,
            optimizers=self.optimizers,
            ranks=self.ranks,
            rate_factor=rate(task) / CENTRE,
            steps=compare.QUICK_STEPS if self.quick and self.steps is None else self.steps,
            again=self.again,
            out=file(self.results, task),
            processes=self.processes,
            data_dir=self.data_dir,
        )


def file(directory: Path, task: str) -> Path:
    return directory / f"budget-{task}.jsonl"


def rate(task: str, directory: Path = RESULTS) -> float:
    """The learning rate that was best for SketchySOAP at rank 32."""
    results = quality.of_usual_length(quality.load(directory / f"quality-{task}.jsonl"))
    found = quality.best_rate(quality.losses(results, TUNED))
    if found is None:
        raise ValueError(f"task={task}: {TUNED} has no runs in {directory}; benchmarks.quality makes them")
    return found


# ---- watched runs


def watch(task: str, variant: Variant, steps: int | None) -> list[Row]:
    """Ranks and errors of all sketches over a run with seed 0."""
    made: list[Engine] = []

    def optimizer(model: Any) -> Engine:
        made.append(build(variant, model, rate(task)))  # type: ignore[arg-type]
        return made[0]

    rows: list[Row] = []
    run = Training(task_of_this_process(task), optimizer, steps=steps, seed=0)
    for record in run:
        if record.step % max(1, record.steps // LOOKS) == 0 or record.step == 1:
            rows.append({**_key(task, variant), "step": record.step, "axes": list(_axes(made[0]))})
    return rows


def _axes(optimizer: Engine) -> Iterator[list[Any]]:
    """Name, axis, rank, escaped share and certified error of each sketch."""
    names = {p: n for g in optimizer.param_groups for p, n in zip(g["params"], g["param_names"], strict=True)}
    for k in optimizer.covariances():
        measured = float(k.escaped_share().max()), float(k.certified_error().max())
        yield [names[k.parameter], k.axis, k.sketch.rank, *(round(x, 5) for x in measured)]


def _key(task: str, variant: Variant) -> Row:
    return {"task": task, "optimizer": variant.optimizer, "rank": variant.rank}


def watched(path: Path) -> list[Row]:
    return read_rows(path, lambda row: row) if path.exists() else []


def watch_all(options: Options, console: Console) -> None:
    """The watched runs that are missing: a run is written when it is complete."""
    path = options.results / WATCHED
    there = {(row["task"], row["optimizer"], row["rank"]) for row in watched(path)}
    wanted = [
        (task, Variant(name, rank))
        for task in options.tasks
        for rank in options.ranks
        for name in options.optimizers
        if (task, name, rank) not in there
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    for task, variant in track(wanted, "watched runs", console=console):
        with one_thread():
            append(path, *watch(task, variant, options.of(task).steps))


# ---- tables and the picture


def load(directory: Path) -> dict[str, Results]:
    """The runs of the tasks that have results."""
    found = {task: quality.of_usual_length(quality.load(file(directory, task))) for task in tasks.TASKS}
    return {task: results for task, results in found.items() if results}


def _of(results: Results, name: str, rank: int) -> dict[int, Record]:
    return {run.seed: r for run, r in results.items() if run.variant == Variant(name, rank)}


def table(found: dict[str, Results]) -> str:
    """Losses of the three, and their mean differences over common seeds, by task and rank."""
    lines = []
    for task, results in found.items():
        for rank in sorted({run.variant.rank for run in results if run.variant.rank is not None}):
            own = {name: _of(results, name, rank) for name in (EQUAL, SHAPES, BUDGET)}
            if not own[EQUAL] or not own[BUDGET]:
                continue
            digits = 3 if next(iter(own[EQUAL].values())).loss < 10 else 1
            losses = [
                around([r.loss for r in runs.values()], digits) if runs else "" for runs in own.values()
            ]
            less = [_difference(own[name], own[EQUAL], digits) for name in (SHAPES, BUDGET)]
            bytes_ = next(iter(own[BUDGET].values())).optimizer_bytes
            lines.append([task, str(rank), f"{bytes_ / 1e6:.2f}", *losses, *less, _time(own)])
    header = ["task", "bytes of rank", "MB", "equal ranks", "by shape", "budget", "by shape - equal"]
    return markdown.table([*header, "budget - equal", "step time"], lines, left=("task",))


def _difference(runs: dict[int, Record], base: dict[int, Record], digits: int) -> str:
    """The mean difference over common seeds, and its standard error."""
    more = quality.differences(runs.values(), base.values())
    if not more:
        return ""
    error = f" ± {statistics.stdev(more) / len(more) ** 0.5:.{digits}f}" if len(more) > 1 else ""
    return f"{statistics.mean(more):+.{digits}f}{error}"


def _time(own: dict[str, dict[int, Record]]) -> str:
    """The CPU time in the steps of the budget, as a multiple of that with equal ranks.

    Only the whole run has CPU time. Steps have the share in it that they have in the run's wall time.
    """
    budget, equal = (
        statistics.median(r.cpu_seconds * r.optimizer_seconds / r.seconds for r in own[name].values())
        for name in (BUDGET, EQUAL)
    )
    return f"{budget / equal:.2f}x"


def errors_table(rows: Sequence[Row]) -> str:
    """Escaped shares and certified errors at the end of the watched runs, summed over all sketches."""
    last: dict[tuple[str, int], dict[str, Row]] = {}
    for row in rows:
        last.setdefault((row["task"], row["rank"]), {})[row["optimizer"]] = row
    lines = []
    for (task, rank), own in last.items():
        if EQUAL in own and BUDGET in own:
            sums = [[sum(axis[i] for axis in own[name]["axes"]) for name in (EQUAL, BUDGET)] for i in (3, 4)]
            least, most = (f(axis[2] for axis in own[BUDGET]["axes"]) for f in (min, max))
            shown = [f"{value:.2f}" for pair in sums for value in pair]
            lines.append([task, str(rank), *shown, f"{least} to {most}"])
    header = [
        "task",
        "bytes of rank",
        "escaped: equal",
        "budget",
        "certified error: equal",
        "budget",
        "ranks",
    ]
    return markdown.table(header, lines, left=("task",))


def picture(directory: Path) -> bytes:
    """Ranks by layer over training."""
    task, rank = DRAWN
    rows = [
        row
        for row in watched(directory / WATCHED)
        if _key(task, Variant(BUDGET, rank)).items() <= row.items()
    ]
    lines: dict[tuple[str, str], Line] = {}
    for row in rows:
        for name, axis, own, *_ in row["axes"]:
            lines.setdefault((name, axis), Line(name, axis, [], [])).add(row["step"], own)
    return draw(
        list(lines.values()), rank, f"{task}: ranks with the bytes of rank {rank}, by weight and axis"
    )


def drawable(directory: Path) -> bool:
    task, rank = DRAWN
    return any(
        _key(task, Variant(BUDGET, rank)).items() <= row.items() for row in watched(directory / WATCHED)
    )


def page(directory: Path) -> str:
    """The tables for the docs, with the picture; a sentence if there are no results."""
    if not (found := load(directory)):
        return "No results yet. `python -m benchmarks.quality.budget` makes them."
    rows = watched(directory / WATCHED)
    parts = [table(found), *([errors_table(rows)] if rows else [])]
    if drawable(directory):
        parts.append("![Ranks by layer over training](ranks.png)")
    return "\n\n".join(parts)


def main(arguments: Sequence[str] | None = None) -> None:
    options = tyro.cli(Options, prog="python -m benchmarks.quality.budget", args=arguments)
    with user_mistakes("benchmarks.quality.budget"):
        known((EQUAL, BUDGET, SHAPES), optimizers=options.optimizers)
        known(tasks.TASKS, tasks=options.tasks)
        comparisons = [] if options.only_show else [options.of(task) for task in options.tasks]
    console = Console(width=compare.WIDTH)
    if comparisons:
        only_legal_instructions()
        for comparison in comparisons:
            compare.compare(comparison, console)
        watch_all(options, console)
    print(page(options.results))


if __name__ == "__main__":
    main()

"""What each change to our optimizers is worth: all on, each one off, each one alone.

    SKETCHY_DATA=... python -m benchmarks.quality.ablation charlm warpeace [--rank 32] [--seeds 3] [--quick]
    python -m benchmarks.quality.ablation --only-show

`benchmarks.registry.changes` has the table of changes. Each of them gets the same learning rates: AdamW's
best one on the task, half and twice of it. They run on one seed, and the best one on all seeds. Each finished
run is a line in benchmarks/results/ablation-TASK.jsonl; after a Ctrl-C the same command continues. If the
table of changes is another one, --again is needed.
"""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console

from benchmarks.common.arguments import known
from benchmarks.common.process import only_legal_instructions
from benchmarks.common.results import QUICK, RESULTS
from benchmarks.quality import compare
from benchmarks.quality.ablation_plot import Dot, draw
from benchmarks.quality.variants import CENTRE
from benchmarks.registry.changes import ABLATION, ALL, SCALES, named
from sketchy.analysis import markdown
from sketchy.experiments import names, quality, tasks
from sketchy.experiments.mistakes import user_mistakes
from sketchy.experiments.quality import ADAMW, Tuned, Variant
from sketchy.experiments.quality_table import around

RANK = 32
Found = dict[str, dict[str, Tuned]]  # by task and change


@dataclass(frozen=True)
class Options:
    """Run our optimizers with all changes, without each and with each alone, and compare the losses."""

    tasks: tyro.conf.Positional[tuple[str, ...]] = ("charlm", "warpeace", "autoencoder", "cifar10", "tox21")
    """The tasks, one after the other."""
    optimizers: tuple[str, ...] = tuple(ABLATION)
    """Whose changes: sketchy_soap, sketchy_shampoo."""
    seeds: int = 3
    """Runs at the best rate."""
    rank: int = RANK
    """Rank of the sketches."""
    rates: int = 3
    """Learning rates for each change, each twice the one before."""
    rate: float | None = None
    """The middle one; AdamW's best rate on the task by default."""
    steps: int | None = None
    """Steps of a run; each task has its own default."""
    limit: float | None = None
    """Seconds of a run, as in benchmarks.quality."""
    again: bool = False
    """Delete the results of these optimizers and run them again."""
    quick: bool = False
    """A few steps, one learning rate and one seed, as a test; results go to runs/quick."""
    only_show: bool = False
    """Run nothing, and print the tables of what is there."""
    processes: int = 2
    """Runs at the same time, one thread each."""
    data_dir: Path | None = None
    """The directory of the data sets; $SKETCHY_DATA or a cache directory by default."""

    @property
    def results(self) -> Path:
        return QUICK if self.quick else RESULTS

    def of(self, task: str) -> compare.Options:
        """The options of the comparison that does the runs of a task."""
        options = compare.Options(
            task,
            quick=self.quick,
            rates=self.rates,
            more_rates=0,
            finalists=1,
            seeds=self.seeds,
            optimizers=tuple(named(name, change) for name in self.optimizers for change in ABLATION[name]),
            ranks=(self.rank,),
            rate_factor=(self.rate or adamws_rate(task)) / CENTRE,
            steps=self.steps,
            limit=self.limit,
            again=self.again,
            out=file(self.results, task),
            processes=self.processes,
            data_dir=self.data_dir,
        )
        return options.quicker() if self.quick else options


def file(directory: Path, task: str) -> Path:
    return directory / f"ablation-{task}.jsonl"


def adamws_rate(task: str, directory: Path = RESULTS) -> float:
    """The learning rate that was best for AdamW."""
    results = quality.of_usual_length(quality.load(directory / f"quality-{task}.jsonl"))
    rate = quality.best_rate(quality.losses(results, ADAMW))
    if rate is None:
        raise ValueError(f"task={task}: AdamW has no runs in {directory}; make them, or give --rate")
    return rate


def load(directory: Path, optimizer: str, rank: int = RANK) -> Found:
    """The changes of an optimizer at their best rates, for the tasks that have results."""
    found: Found = {}
    for task in tasks.TASKS:
        tuned = {each.variant: each for each in quality.tuned(quality.load(file(directory, task)))}
        variants = {change: Variant(named(optimizer, change), rank) for change in ABLATION[optimizer]}
        own = {change: tuned[v] for change, v in variants.items() if v in tuned and tuned[v].records}
        if own:
            found[task] = own
    return found


def minus_all(own: dict[str, Tuned], change: str) -> list[float]:
    """By how much the loss is higher than with all changes, for each seed of both."""
    return quality.differences(own[change].records, own[ALL].records) if ALL in own else []


def cell(own: dict[str, Tuned], change: str) -> str:
    """The loss, and its mean difference from that of all changes; a star: the best rate is at an end."""
    if change not in own:
        return ""
    digits = 3 if max(own[change].losses) < 10 else 1
    shown, worse = around(own[change].losses, digits), minus_all(own, change)
    shown += "*" if own[change].at_an_end else ""
    return f"{shown} ({statistics.mean(worse):+.{digits}f})" if worse and change != ALL else shown


def table(found: Found, optimizer: str) -> str:
    """Changes in rows, tasks in columns."""
    lines = [[change, *(cell(own, change) for own in found.values())] for change in ABLATION[optimizer]]
    return markdown.table([names.shown(optimizer), *found], lines, left=(names.shown(optimizer),))


def scales_table(found: Found, directory: Path) -> str:
    """SketchySOAP's mean losses around AdamW's best rate, by task and ``graft_scale``."""
    lines = []
    for task, own in found.items():
        for scale, change in SCALES.items():
            if change in own and len(tried := own[change].tried) > 1:
                digits = 3 if min(tried.values()) < 10 else 1
                losses = ", ".join(f"{loss:.{digits}f} at {rate:g}" for rate, loss in sorted(tried.items()))
                lines.append([task, f"{adamws_rate(task, directory):g}", f"{scale:g}", losses])
    header = ["task", "AdamW's rate", "graft_scale", "loss by learning rate"]
    return markdown.table(header, lines, left=(header[0], header[-1]))


def dots(own: dict[str, Tuned]) -> Iterator[Dot]:
    for change in own:
        if change != ALL and (worse := minus_all(own, change)):
            error = statistics.stdev(worse) / math.sqrt(len(worse)) if len(worse) > 1 else 0.0
            yield Dot(change, statistics.mean(worse), error)


def picture(directory: Path, optimizer: str) -> bytes:
    """Differences from all changes, with standard errors."""
    panels = {task: list(dots(own)) for task, own in load(directory, optimizer).items()}
    title = (
        f"{names.shown(optimizer)}: loss minus that with\nall changes on, mean ± standard error over seeds"
    )
    return draw(panels, [change for change in ABLATION[optimizer] if change != ALL], title)


def drawable(directory: Path, optimizer: str) -> bool:
    """Whether there is something to draw."""
    return any(list(dots(own)) for own in load(directory, optimizer).values())


def page(directory: Path, optimizer: str) -> str:
    """The table for the docs, with its picture; a sentence if there are no results."""
    found = load(directory, optimizer)
    if not found:
        return f"No results yet. `python -m benchmarks.quality.ablation --optimizers {optimizer}` makes them."
    image = f"![Loss minus that with all changes, by task](ablation-{optimizer}.png)"
    return "\n\n".join([table(found, optimizer), *([image] if drawable(directory, optimizer) else [])])


def scales_page(directory: Path) -> str:
    return scales_table(load(directory, "sketchy_soap"), directory)


def main(arguments: Sequence[str] | None = None) -> None:
    options = tyro.cli(Options, prog="python -m benchmarks.quality.ablation", args=arguments)
    with user_mistakes("benchmarks.quality.ablation"):
        known(ABLATION, optimizers=options.optimizers)
        known(tasks.TASKS, tasks=options.tasks)
        comparisons = [] if options.only_show else [options.of(task) for task in options.tasks]
    if comparisons:
        only_legal_instructions()
    for comparison in comparisons:
        compare.compare(comparison, Console(width=compare.WIDTH))
    for optimizer in options.optimizers:
        if found := load(options.results, optimizer, options.rank):
            print(f"{table(found, optimizer)}\n")


if __name__ == "__main__":
    main()

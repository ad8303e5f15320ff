"""Measure how time and state of a step grow with the size of a weight, the rank and the number of layers.

    python -m benchmarks.speed.scaling [--rounds N] [--optimizers ...] [--quick]
    python -m benchmarks.speed.scaling --table benchmarks/results/scaling.jsonl

One size changes at a time. The exponent is the slope of log cost against log size; 1 is linear. CPU time on
one core counts. Rows go to benchmarks/results/scaling.jsonl. After a Ctrl-C the same command continues with
the size that was interrupted.
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.common.arguments import at_least, known
from benchmarks.common.process import keep_freed_memory, only_legal_instructions, pin
from benchmarks.common.provenance import machine
from benchmarks.common.results import QUICK, RESULTS, load, save
from benchmarks.common.resumable import resumable
from benchmarks.registry.optimizers import OPTIMIZERS
from benchmarks.registry.problems import Gradients, Problem, matrix, transformer
from benchmarks.speed.step_table import about
from benchmarks.speed.step_time import Options as StepOptions
from benchmarks.speed.step_time import TimedStep, timed_step
from sketchy.analysis.markdown import table
from sketchy.experiments import names
from sketchy.experiments.mistakes import user_mistakes
from sketchy.experiments.summary import ResultRow, exponent, quartiles

FILE = "scaling.jsonl"
SIDE, RANK = 1024, 64  # of the weight, where they don't change
WIDTH, VOCABULARY = 128, 256  # of the transformer; a small vocabulary, so that layers dominate
SIZES = {
    "m": (512, 1024, 2048, 4096),
    "n": (512, 1024, 2048, 4096),
    "rank": (16, 32, 64, 128, 256),
    "layers": (2, 4, 8, 16),
}
FEWER = 3  # sizes of each with --quick


@dataclass(frozen=True)
class Options:
    """Measure how time and state of a step grow with its sizes."""

    optimizers: tuple[str, ...] = ("sketchy_shampoo", "sketchy_soap", "adamw")
    """The optimizers."""
    rounds: int = 7
    """Interleaved rounds."""
    quick: bool = False
    """Fewer sizes and rounds; rows go to runs/quick."""
    out: Path | None = None
    """The file of the rows; benchmarks/results/scaling.jsonl by default."""
    table: Path | None = None
    """Print the rows of this file as a Markdown table, and measure nothing."""


def problem(variable: str, size: int) -> Problem:
    """One weight, or a transformer, with one size changed."""
    if variable == "layers":
        return transformer(size, WIDTH, VOCABULARY)
    return matrix(size if variable == "m" else SIDE, size if variable == "n" else SIDE)


def timed_steps(variable: str, sizes: Sequence[int], options: Options) -> Iterator[tuple[int, TimedStep]]:
    """Every optimizer at every size."""
    steps = StepOptions(profile=variable == "layers")
    for size in sizes:
        named = problem(variable, size).parameters()
        gradients = Gradients(p for _, p in named)
        for name in options.optimizers:
            ranked = OPTIMIZERS[name].ranked
            if variable != "rank" or ranked:
                rank = (size if variable == "rank" else RANK) if ranked else None
                yield size, timed_step(name, rank, named, gradients, steps)


def measure(variable: str, sizes: Sequence[int], options: Options, progress: Progress) -> list[ResultRow]:
    """The rows of all sizes of one variable, timed in the same rounds."""
    everyone = list(timed_steps(variable, sizes, options))
    bar = progress.add_task(f"growth with {variable}", total=options.rounds * len(everyone))
    for round in range(options.rounds):
        for _, c in everyone:
            c.try_sample(round)
            progress.advance(bar)
    progress.remove_task(bar)
    return [{"variable": variable, "size": size, **c.row()} for size, c in everyone]


def fits(rows: Sequence[ResultRow]) -> Iterator[list[str]]:
    """A line for each variable and optimizer: its sizes, costs, bytes, and their exponents."""
    for variable in dict.fromkeys(row["variable"] for row in rows):
        for name in dict.fromkeys(row["optimizer"] for row in rows if row["variable"] == variable):
            own = [row for row in rows if (row["variable"], row["optimizer"]) == (variable, name)]
            if failed := [row["error"] for row in own if row["error"] is not None]:
                yield [variable, names.shown(name), failed[0], "", "", "", "", "", ""]
                continue
            sizes = [row["size"] for row in own]
            times = [statistics.median(s["cpu"] for s in row["samples"]) for row in own]
            bytes_ = [row["state_bytes"] for row in own]
            operations = [row["profile"]["operations"] for row in own if row["profile"]]
            yield [
                variable,
                names.shown(name),
                ", ".join(map(str, sizes)),
                ", ".join(f"{t:.1f}" for t in times),
                f"{exponent(sizes, times):.2f}",
                f"{exponent(sizes[-2:], times[-2:]):.2f}",
                ", ".join(f"{b / 1e6:.2f}" for b in bytes_),
                f"{exponent(sizes, bytes_):.2f}",
                ", ".join(map(str, operations)),
            ]


COLUMNS = (
    "variable", "optimizer", "sizes", "CPU ms a step", "exponent", "of the last two", "state, MB", "exponent",
    "operations",
)  # fmt: skip


def shown(rows: Sequence[ResultRow]) -> Table:
    title = (
        f"one {SIDE} x {SIDE} weight at rank {RANK}, or a transformer of width {WIDTH}, with one size changed"
    )
    found = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for column in COLUMNS:
        found.add_column(column, no_wrap=column == "optimizer")
    for line in fits(rows):
        found.add_row(*line)
    return found


def markdown(rows: Sequence[ResultRow]) -> str:
    return f"{table(COLUMNS, fits(rows), left=COLUMNS[:2])}\n\n{about(rows[0])}; {trust(rows)}"


def trust(rows: Sequence[ResultRow]) -> str:
    """How reliable the fits are."""
    widest = 0.0
    for row in rows:
        if row["error"] is None:
            low, middle, high = quartiles([s["cpu"] for s in row["samples"]])
            widest = max(widest, (high - low) / middle)
    return f"the widest quartiles are {100 * widest:.0f} % of their median apart"


def main(arguments: Sequence[str] | None = None) -> None:
    options = tyro.cli(Options, prog="python -m benchmarks.speed.scaling", args=arguments)
    with user_mistakes("benchmarks.speed.scaling"):
        if options.table is not None:
            print(markdown(load(options.table, "variable")))
            return
        known(OPTIMIZERS, optimizers=options.optimizers)
        at_least(1, rounds=options.rounds)
    if options.quick:
        options = Options(options.optimizers, rounds=3, quick=True, out=options.out)
    pin()
    keep_freed_memory()
    only_legal_instructions()
    console = Console(width=170)
    here, progress = machine(), Progress(console=console)
    path = options.out or (QUICK if options.quick else RESULTS) / FILE

    def rows_of(variable: str) -> list[ResultRow]:
        sizes = SIZES[variable][: FEWER if options.quick else None]
        return [{**row, **here} for row in measure(variable, sizes, options, progress)]

    with resumable("benchmarks.speed.scaling", SIZES, options, path, rows_of) as variables:
        with progress:
            rows = [row for _, new in variables for row in new]
        save(path, rows)
    console.print(shown(rows))
    console.print(f"{trust(rows)}; rows: {path}")


if __name__ == "__main__":
    main()

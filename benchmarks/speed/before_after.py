"""Compare the step time of this tree with that of another checkout, interleaved in one run.

    python -m benchmarks.speed.before_after OTHER_TREE [--rounds 12] [--pairs 3] [--problems block ...]
    python -m benchmarks.speed.before_after . --after '{"momentum_dtype": "int8"}'

The other tree is "before", this one is "after": a ratio below 1 means that this tree is faster. Each tree has
a process of its own, pinned to the same core with one thread. The two take turns, and the order alternates.
CPU time counts. Every pair of processes is new, because memory layout differs from process to process.
"""

import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated

import tyro
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.common import checkouts
from benchmarks.common.arguments import at_least, known
from sketchy.analysis.timing import Times, ratio
from sketchy.experiments.mistakes import user_mistakes

WORKER = "benchmarks.speed.before_after_worker"
RANKS = {"block": 64, "matrix": 256, "transformer": 64}
OPTIMIZERS = ("SketchyShampoo", "SketchySOAP")


@dataclass(frozen=True)
class Options:
    """Compare the step time of this tree with that of another checkout."""

    other: Annotated[Path, tyro.conf.Positional]
    """The other checkout: a directory with src/sketchy in it."""
    problems: tuple[str, ...] = tuple(RANKS)
    """Which weights are stepped; see benchmarks.registry.problems."""
    optimizers: tuple[str, ...] = OPTIMIZERS
    """Which of our optimizers take the steps."""
    rounds: int = 12
    """Rounds of each pair of processes; a round times three steps in each tree."""
    pairs: int = 3
    """Pairs of processes, one after the other."""
    after: str = "{}"
    """Options of the optimizers in this tree, as JSON; the other tree has its defaults."""


class Stepper:
    """The worker process of one tree."""

    def __init__(self, process: "subprocess.Popen[str]", tree: Path) -> None:
        self._process, self._tree = process, tree
        ready = self._read()
        self.operations, self.parts = ready["operations"], ready["parts"]
        checkouts.check_source(tree, ready["source"])

    def seconds(self) -> float:
        """CPU seconds of one step, mean over a round."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._read()["seconds"]

    def _read(self) -> dict:  # type: ignore[type-arg]
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise RuntimeError(f"{self._tree}: its process ended with exit status {self._process.wait()}")
        return json.loads(line)


@contextmanager
def stepper(tree: Path, *arguments: object) -> Iterator[Stepper]:
    """Start the worker of a tree, and end it."""
    with subprocess.Popen(
        checkouts.command(WORKER, *arguments),
        cwd=checkouts.HERE,
        env=checkouts.environment(tree),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Stepper(process, tree)
        finally:
            process.kill()


@dataclass
class Comparison:
    """One optimizer on one problem, in both trees."""

    before: Times = field(default_factory=lambda: Times([]))
    after: Times = field(default_factory=lambda: Times([]))
    operations: str = ""


def compare(
    before: Path, after: Path, options: Options, case: Sequence[object], advance: Callable[[], object]
) -> Comparison:
    """Time both trees on a case (problem, optimizer, rank); ``advance`` is called after every round."""
    found = Comparison()
    for _ in range(options.pairs):
        with ExitStack() as stack:
            old, new = (
                stack.enter_context(stepper(tree, *case, given))
                for tree, given in ((before, "{}"), (after, options.after))
            )
            found.operations = f"{old.operations} ({old.parts}) → {new.operations} ({new.parts})"
            turns = [(old, found.before), (new, found.after)]
            for _ in range(options.rounds):
                for worker, times in turns:
                    times.rounds.append(worker.seconds())
                turns.reverse()
                advance()
    return found


def check(options: Options) -> None:
    checkouts.check(options.other)
    known(RANKS, problems=options.problems)
    known(OPTIMIZERS, optimizers=options.optimizers)
    at_least(1, pairs=options.pairs)
    at_least(2, rounds=options.rounds)  # for quartiles
    try:
        given = json.loads(options.after)
    except ValueError:
        given = None
    if not isinstance(given, dict):
        raise ValueError(f'after={options.after}: must be a JSON object, like {{"momentum_dtype": "int8"}}')


def main(arguments: Sequence[str] | None = None) -> None:
    options = tyro.cli(Options, prog="python -m benchmarks.speed.before_after", args=arguments)
    with user_mistakes("benchmarks.speed.before_after"):
        check(options)
    before = options.other.resolve()
    columns = ("problem", "optimizer", "rank", "after / before", "before", "after", "operations (parts)")
    table = Table(*columns, box=box.SIMPLE_HEAD, title=f"CPU time of a step; before is {before.name}")
    with Progress(transient=True) as progress:
        for problem in options.problems:
            for optimizer in options.optimizers:
                case = problem, optimizer, RANKS[problem]
                bar = progress.add_task(f"{problem}, {optimizer}", total=options.pairs * options.rounds)
                found = compare(before, checkouts.HERE, options, case, partial(progress.advance, bar))
                progress.remove_task(bar)
                times = (ratio(found.after, found.before), str(found.before), str(found.after))
                table.add_row(*map(str, case), *times, found.operations)
    Console(width=190).print(table)


if __name__ == "__main__":
    main()

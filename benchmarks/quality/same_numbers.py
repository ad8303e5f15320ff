"""Compare the training losses of this tree with those of another checkout: same seed, same batches, same
numbers?

    python -m benchmarks.quality.same_numbers OTHER_TREE [--steps 50] [--dtype float64]

Rounding grows during training. To tell how fast, the other tree also trains with every gradient changed by
half an eps, and its losses are compared with its own. A change that leaves the formulas as they are differs
by no more.
"""

import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.common import checkouts
from benchmarks.common.arguments import at_least, known
from sketchy.experiments.mistakes import user_mistakes

WORKER = "benchmarks.quality.same_numbers_worker"
TASKS = ("charlm", "autoencoder", "digits")
DTYPES = ("float64", "float32")
RANKS = {"SketchyShampoo": 32, "SketchySOAP": 32, "Shampoo": 0}  # 0: the optimizer has no rank


@dataclass(frozen=True)
class Options:
    """Compare the training losses of this tree with those of another checkout."""

    other: Annotated[Path, tyro.conf.Positional]
    """The other checkout: a directory with src/sketchy in it."""
    tasks: tuple[str, ...] = ("charlm", "autoencoder")
    """Which tasks are trained: charlm, autoencoder, digits."""
    optimizers: tuple[str, ...] = ("SketchyShampoo", "SketchySOAP")
    """Which of our optimizers train."""
    steps: int = 50
    """Training steps."""
    rate: float = 0.004
    """Learning rate."""
    dtype: str = "float64"
    """Of the weights: float64 or float32."""


def losses(tree: Path, options: Options, task: str, optimizer: str, eps: float = 0.0) -> list[float]:
    """The training losses of one tree; ``eps``: by how many eps gradients are changed."""
    settings = (task, optimizer, RANKS[optimizer], options.rate, options.steps, options.dtype, eps)
    command, environment = checkouts.command(WORKER, *settings), checkouts.environment(tree)
    run = subprocess.run(command, cwd=checkouts.HERE, env=environment, text=True, capture_output=True)
    if run.returncode:
        raise ValueError(f"{tree}: training failed: {run.stderr.strip().splitlines()[-1]}")
    found = json.loads(run.stdout)
    checkouts.check_source(tree, found["source"])
    return list(found["losses"])


def difference(some: Sequence[float], others: Sequence[float]) -> float:
    """The largest relative difference over all steps."""
    return max(abs(a - b) / abs(b) for a, b in zip(some, others, strict=True))


def check(options: Options) -> None:
    checkouts.check(options.other)
    known(TASKS, tasks=options.tasks)
    known(RANKS, optimizers=options.optimizers)
    known(DTYPES, dtype=(options.dtype,))
    at_least(1, steps=options.steps)


def main(arguments: Sequence[str] | None = None) -> None:
    options = tyro.cli(Options, prog="python -m benchmarks.quality.same_numbers", args=arguments)
    with user_mistakes("benchmarks.quality.same_numbers"):
        check(options)
        before = options.other.resolve()
        title = f"Largest relative difference in the loss over {options.steps} steps, {options.dtype}"
        columns = ("task", "optimizer", "last loss", f"from {before.name}", "from half an eps in gradients")
        table = Table(*columns, box=box.SIMPLE_HEAD, title=title)
        with Progress(transient=True) as progress:
            cases = [(task, optimizer) for task in options.tasks for optimizer in options.optimizers]
            for case in progress.track(cases):
                old, new = losses(before, options, *case), losses(checkouts.HERE, options, *case)
                jolted = losses(before, options, *case, eps=0.5)
                shown = (f"{difference(found, old):.1e}" for found in (new, jolted))
                table.add_row(*case, f"{new[-1]:.6g}", *shown)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()

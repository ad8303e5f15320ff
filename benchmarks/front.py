"""The memory-quality front of a task: loss against optimizer state and against seconds.

    python -m benchmarks.front charlm

Draws docs/front-TASK.png from benchmarks/results/quality-TASK.jsonl and prints the table in Markdown.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from benchmarks.contenders import ENTRIES, Contender
from benchmarks.front_plot import Point, draw
from benchmarks.quality_runs import Results, load, load_budget
from benchmarks.quality_table import FOOTNOTE, markdown, title
from benchmarks.tuning import Row, Tuning, rows

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Options:
    """Draw loss against optimizer bytes and against seconds, and print the table."""

    task: tyro.conf.Positional[str]
    """A task that has results."""
    results: Path | None = None
    """Its runs; benchmarks/results/quality-TASK.jsonl if not given."""
    out: Path | None = None
    """The picture; docs/front-TASK.png if not given."""


def found(results: Results) -> list[Contender]:
    """Everyone who has runs, in the order of the registry."""
    order = {name: place for place, name in enumerate(ENTRIES)}
    return sorted(
        {run.contender for run in results},
        key=lambda c: (order.get(c.optimizer, len(order)), c.optimizer, c.rank or 0),
    )


def points(row: Row) -> tuple[Point, Point]:
    """In the panel of bytes and in that of seconds."""
    loss = statistics.mean(row.losses)
    spread = statistics.stdev(row.losses) if len(row.losses) > 1 else 0.0
    who, ours = row.contender, row.contender.sketched
    return (
        Point(who.optimizer, who.rank, ours, row.bytes / 1e6, loss, spread),
        Point(who.optimizer, who.rank, ours, row.seconds, loss, spread),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    options = tyro.cli(Options, prog="python -m benchmarks.front", args=arguments)
    path = options.results or ROOT / "benchmarks" / "results" / f"quality-{options.task}.jsonl"
    results, budget = load(path), load_budget(path)
    if not results:
        raise SystemExit(f"benchmarks.front: no runs in {path}; python -m benchmarks.quality makes them")
    steps = statistics.mode(run.steps for run in results)
    table = rows(Tuning(results, steps, budget), found(results))
    panels = list(zip(*(points(row) for row in table if row.records), strict=True))
    out = options.out or ROOT / "docs" / f"front-{options.task}.png"
    x_names = ("optimizer state, MB", "seconds on one core")
    content = draw(dict(zip(x_names, panels, strict=True)), f"{options.task}: loss after {steps} steps")
    out.write_bytes(content)
    print(f"{title(options.task, steps, budget)}\n\n{markdown(table)}\n\n{FOOTNOTE}\npicture: {out}")


if __name__ == "__main__":
    main()

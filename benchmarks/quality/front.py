"""The memory-quality front of a task: loss against optimizer state and against seconds.

    python -m benchmarks.quality.front charlm

Draws docs/front-TASK.png from benchmarks/results/quality-TASK.jsonl and prints the table in Markdown.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from benchmarks.common.results import RESULTS
from benchmarks.quality.front_plot import Point, draw
from benchmarks.quality.plan import Row, Tuning, rows
from benchmarks.quality.runs import Budget, Results, load, load_budget
from benchmarks.quality.table import FOOTNOTE, markdown, title
from benchmarks.quality.variants import ENTRIES, Contender
from sketchy.experiments.mistakes import user_mistakes

DOCS = Path(__file__).parents[2] / "docs"
X_NAMES = ("optimizer state, MB", "seconds on one core")


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


@dataclass(frozen=True)
class Front:
    """What the runs of a task say, in words and as a picture."""

    task: str
    steps: int
    budget: Budget
    rows: list[Row]

    @classmethod
    def of(cls, task: str, path: Path) -> "Front":
        results, budget = load(path), load_budget(path)
        if not results:
            raise SystemExit(
                f"benchmarks.quality.front: no runs in {path}; python -m benchmarks.quality makes them"
            )
        steps = statistics.mode(run.steps for run in results)
        return cls(task, steps, budget, rows(Tuning(results, steps, budget), found(results)))

    def markdown(self) -> str:
        return f"{title(self.task, self.steps, self.budget)}\n\n{markdown(self.rows)}"

    def picture(self) -> bytes:
        panels = zip(*(points(row) for row in self.rows if row.records), strict=True)
        return draw(
            dict(zip(X_NAMES, map(list, panels), strict=True)), f"{self.task}: loss after {self.steps} steps"
        )


def main(arguments: Sequence[str] | None = None) -> None:
    options = tyro.cli(Options, prog="python -m benchmarks.quality.front", args=arguments)
    front = Front.of(options.task, options.results or RESULTS / f"quality-{options.task}.jsonl")
    out = options.out or DOCS / f"front-{options.task}.png"
    with user_mistakes("benchmarks.quality.front"):
        out.write_bytes(front.picture())
    print(f"{front.markdown()}\n\n{FOOTNOTE}\npicture: {out}")


if __name__ == "__main__":
    main()

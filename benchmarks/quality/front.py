"""Draw the loss that each optimizer reaches against its memory and its time, and print the table.

    python -m benchmarks.quality.front charlm

The picture is docs/front-TASK.png, from benchmarks/results/quality-TASK.jsonl. The table is Markdown.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from benchmarks.common.results import RESULTS
from benchmarks.quality.compare import title
from benchmarks.quality.front_plot import Point, draw
from benchmarks.quality.runs import Budget, load_budget
from benchmarks.quality.variants import ENTRIES
from sketchy.analysis import markdown
from sketchy.experiments.mistakes import user_mistakes
from sketchy.experiments.quality import Tuned, load, of_usual_length, tuned
from sketchy.experiments.quality_table import FOOTNOTE, failures, table

DOCS = Path(__file__).parents[2] / "docs"
X_NAMES = ("optimizer state, MB", "seconds on one core")


@dataclass(frozen=True)
class Options:
    """Draw loss against optimizer state and against seconds, and print the table."""

    task: tyro.conf.Positional[str]
    """A task that has results."""
    results: Path | None = None
    """The file of its runs; benchmarks/results/quality-TASK.jsonl by default."""
    out: Path | None = None
    """The picture; docs/front-TASK.png by default."""


def in_order(found: Iterable[Tuned]) -> list[Tuned]:
    """In the order of the registry, then by rank."""
    order = {name: place for place, name in enumerate(ENTRIES)}

    def place(each: Tuned) -> tuple[int, str, int]:
        name = each.variant.optimizer
        return order.get(name, len(order)), name, each.variant.rank or 0

    return sorted(found, key=place)


def points(each: Tuned) -> tuple[Point, Point]:
    """In the panel of bytes and in that of seconds."""
    spread = statistics.stdev(each.losses) if len(each.losses) > 1 else 0.0
    who, ours = each.variant, each.variant.sketched
    return (
        Point(who.optimizer, who.rank, ours, each.bytes / 1e6, each.loss, spread),
        Point(who.optimizer, who.rank, ours, each.seconds, each.loss, spread),
    )


@dataclass(frozen=True)
class Front:
    """The results of a task, as a table and as a picture."""

    task: str
    steps: int
    budget: Budget
    found: list[Tuned]

    @classmethod
    def of(cls, task: str, path: Path) -> "Front":
        if not (results := load(path)):
            raise SystemExit(f"benchmarks.quality.front: no runs in {path}; benchmarks.quality makes them")
        steps = next(iter(of_usual_length(results))).steps
        return cls(task, steps, load_budget(path), in_order(tuned(results)))

    def markdown(self) -> str:
        names, lines = table(self.found)
        parts = (
            title(self.task, self.steps, self.budget),
            markdown.table(names, lines),
            failures(self.found),
        )
        return "\n\n".join(filter(None, parts))

    def picture(self) -> bytes:
        return draw(self.panels(), f"{self.task}: loss after {self.steps} steps")

    def panels(self) -> dict[str, list[Point]]:
        """The points of each panel, by the name of its cost."""
        found = zip(*(points(each) for each in self.found if each.records), strict=True)
        return dict(zip(X_NAMES, map(list, found), strict=True))


def main(arguments: Sequence[str] | None = None) -> None:
    options = tyro.cli(Options, prog="python -m benchmarks.quality.front", args=arguments)
    front = Front.of(options.task, options.results or RESULTS / f"quality-{options.task}.jsonl")
    out = options.out or DOCS / f"front-{options.task}.png"
    with user_mistakes("benchmarks.quality.front"):
        out.write_bytes(front.picture())
    print(f"{front.markdown()}\n\n{FOOTNOTE}\npicture: {out}")


if __name__ == "__main__":
    main()

"""Rows of the quality benchmark as text, for the terminal and for the docs."""

import math
import statistics
from collections.abc import Sequence

from benchmarks.common.markdown import table
from benchmarks.quality.plan import Row
from benchmarks.quality.runs import Budget

FOOTNOTE = (
    "* the lowest or the highest rate that was tried; seconds of one core for a whole run, looks at the "
    "validation split aside"
)


def title(task: str, steps: int, budget: Budget) -> str:
    given = f"{budget.rates} rates and up to {budget.more_rates} more for everyone"
    if budget.tuned_rank is not None:
        given += f" (ours: at rank {budget.tuned_rank}, other ranks run at its rate)"
    return f"{task}: validation loss after {steps} steps, {budget.seeds} seed(s), ± std; {given}"


def header(rows: Sequence[Row]) -> list[str]:
    classifies = any(record.accuracy is not None for row in rows for record in row.records)
    names = ["optimizer", "rates", "best rate", "loss", "at AdamW's rate", "steps to AdamW's loss"]
    return [*names, *(["accuracy"] if classifies else []), "state, kB", "seconds", "in step()", "commit"]


def cells(row: Row, header: Sequence[str]) -> list[str]:
    """The row as text, one cell for each name in the header; of one that failed, its message."""
    found = {"optimizer": str(row.contender), "rates": str(row.tried), "loss": row.error}
    if row.records:
        digits = 3 if max(row.losses) < 10 else 1
        accuracies = [record.accuracy for record in row.records if record.accuracy is not None]
        itself = row.contender.optimizer == "adamw"
        reached = row.steps_to_goal
        found |= {
            "best rate": f"{row.rate:g}{'*' if row.at_an_end else ''}",
            "loss": around(row.losses, digits),
            "at AdamW's rate": around([r.loss for r in row.transfer], digits) if row.transfer else "",
            "steps to AdamW's loss": "" if itself else "never" if reached is None else f"{reached:.0f}",
            "accuracy": around(accuracies, 3) if accuracies else "",
            "state, kB": f"{row.bytes / 1e3:,.0f}",
            "seconds": f"{row.seconds:.1f}",
            "in step()": f"{row.share_in_step:.0%}",
            "commit": ", ".join(row.commits),
        }
    return [found.get(name, "") for name in header]


def around(values: Sequence[float], digits: int) -> str:
    """Mean ± standard deviation over the seeds.

    >>> around([1.0, 2.0], 2), around([1.0], 1), around([1.0, float("inf")], 1)
    ('1.50 ± 0.71', '1.0', 'diverged')
    """
    if not all(math.isfinite(value) for value in values):
        return "diverged"
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{spread}"


def markdown(rows: Sequence[Row]) -> str:
    """For docs/results.md."""
    names = header(rows)
    return table(names, (cells(row, names) for row in rows))

"""The table of training quality: a line for each optimizer at its best learning rate."""

import math
import statistics
from collections.abc import Iterable, Sequence

from sketchy.experiments.quality import ADAMW, Tuned
from sketchy.experiments.training import Record

FOOTNOTE = (
    "Each optimizer is shown at the learning rate with the lowest mean loss, among those that ran on three "
    "seeds or more. Minus AdamW is the mean difference over the seeds that both ran. A star marks the lowest "
    "or highest rate that was tried. Steps at z ≥ 3.09 end at the first validation where the mean of n seeds "
    "is below AdamW's loss by at least 3.09 standard deviations / √n. Seconds are CPU time of a whole run "
    "without validation."
)

STEPS_SURELY = "the same, z ≥ 3.09"


def header(found: Sequence[Tuned]) -> list[str]:
    """The columns of a table, the most important ones first."""
    classifies = any(record.accuracy is not None for each in found for record in each.records)
    return [
        "optimizer", "loss", "minus AdamW", *(["accuracy", "lowest loss"] if classifies else []), "state, kB",
        "best rate", "seeds", "steps to AdamW's loss", STEPS_SURELY, "at AdamW's rate",
        *(["accuracy at that rate", "lowest at that rate"] if classifies else []),
        "seconds", "in step()", "rates tried", "commit",
    ]  # fmt: skip


def _accuracies(records: Iterable[Record]) -> list[float]:
    return [record.accuracy for record in records if record.accuracy is not None]


def cells(each: Tuned, header: Sequence[str]) -> list[str]:
    """One line of a table, for a variant that has a best rate."""
    digits = 3 if max(each.losses) < 10 else 1
    reached, surely = each.steps_to_adamws_loss, each.steps_surely_to_adamws_loss
    found = {
        "optimizer": each.variant.name,
        "loss": around(each.losses, digits),
        "minus AdamW": "" if each.minus_adamw is None else f"{each.minus_adamw:+.{digits}f}",
        "accuracy": around(_accuracies(each.records), 3),
        "lowest loss": around([record.lowest for record in each.records], digits),
        "state, kB": f"{each.bytes / 1e3:,.0f}",
        "best rate": f"{each.rate:g}{'*' if each.at_an_end else ''}",
        "seeds": str(len(each.records)),
        "steps to AdamW's loss": "never" if reached is None else f"{reached:.0f}",
        STEPS_SURELY: "" if len(each.records) < 2 else "never" if surely is None else str(surely),
        "at AdamW's rate": around([r.loss for r in each.at_adamws_rate], digits),
        "accuracy at that rate": around(_accuracies(each.at_adamws_rate), 3),
        "lowest at that rate": around([r.lowest for r in each.at_adamws_rate], digits),
        "seconds": f"{each.seconds:.1f}",
        "in step()": f"{each.share_in_step:.0%}",
        "rates tried": str(len(each.tried)),
        "commit": ", ".join(each.commits),
    }
    if each.variant == ADAMW or not each.adamw:
        found["minus AdamW"] = found["steps to AdamW's loss"] = found[STEPS_SURELY] = ""
    return [found[name] for name in header]


def table(found: Sequence[Tuned]) -> tuple[list[str], list[list[str]]]:
    """Header and lines, for the variants that have a best rate."""
    columns = header(found)
    return columns, [cells(each, columns) for each in found if each.records]


def failures(found: Sequence[Tuned]) -> str:
    """A sentence about the variants that have no best rate; empty if there are none."""
    failed = [f"{each.variant.name} ({each.error})" for each in found if not each.records]
    return f"Without a result: {'; '.join(failed)}." if failed else ""


def around(values: Sequence[float], digits: int) -> str:
    """Mean ± standard deviation over the seeds.

    >>> around([1.0, 2.0], 2), around([1.0], 1), around([1.0, float("inf")], 1), around([], 1)
    ('1.50 ± 0.71', '1.0', 'diverged', '')
    """
    if not values:
        return ""
    if not all(math.isfinite(value) for value in values):
        return "diverged"
    spread = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{spread}"

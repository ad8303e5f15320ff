"""The results of a search as rows and tables: what each optimizer spent, and what it found."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sketchy.experiments.summary import quartiles
from sketchy.experiments.workloads.record import Record
from sketchy.experiments.workloads.registry import workload
from sketchy.experiments.workloads.search import Best, Piece, Search, best, common, finished
from sketchy.experiments.workloads.workload import Metric
from sketchy.files import write

TRIAL_ROWS, FINAL_ROWS = "trials.jsonl", "finals.jsonl"


def trial_row(search: Search, piece: Piece, record: Record) -> dict[str, Any]:
    """A line of trials.jsonl."""
    score = record.score(workload(search.workload).metric)
    return {
        "workload": search.workload,
        "scale": search.preset,
        "optimizer": piece.optimizer,
        "trial": piece.number,
        "point": search.point(piece.optimizer, piece.number),
        "validation_loss": score.loss,
        "validation_metric": score.metric,
        "ended": record.ended,
        "steps": record.step,
        "cpu_seconds": record.cpu_seconds,
        "seconds": record.seconds + record.look_seconds,
    }


def final_row(search: Search, piece: Piece, record: Record) -> dict[str, Any]:
    """A line of finals.jsonl."""
    return {
        "workload": search.workload,
        "scale": search.preset,
        "data": search.data,
        "optimizer": piece.optimizer,
        "seed": piece.number,
        "settings": piece.settings.options(),
        "record": record.to_dict(),
    }


def write_rows(path: Path, search: Search, pieces: Sequence[Piece], row: Any) -> None:
    """Write the rows of all pieces that have ended. Other processes may do so, too: the last has all."""
    written = -1
    while (found := list(finished(pieces))) and len(found) > written:
        write(path, "".join(f"{json.dumps(row(search, *each))}\n" for each in found))
        written = len(found)


@dataclass(frozen=True)
class Cells:
    """A table as text."""

    header: list[str]
    lines: list[list[str]]


def spent(search: Search, out: Path) -> Cells:
    """What each optimizer spent, and what its best trial reached."""
    metric, winners = workload(search.workload).metric, _winners(search, out)
    by_optimizer: dict[str, list[Record]] = {name: [] for name in search.optimizers}
    for piece, record in finished(search.pieces(out)):
        by_optimizer[piece.optimizer].append(record)
    lines = []
    for name, own in by_optimizer.items():
        failed = sum(record.ended != "finished" for record in own)
        hours = sum(record.cpu_seconds for record in own) / 3600
        reached = [""] * 3
        if name in winners:
            score = winners[name].record.score(metric)
            reached = [f"{score.loss:.4f}", f"{score.metric:.4f}", _quartiles(own, metric)]
        lines.append(
            [name, str(len(own)), str(failed), f"{sum(r.step for r in own):,}", f"{hours:.2f}", *reached]
        )
    header = [
        "optimizer",
        "trials",
        "failed",
        "steps",
        "CPU h",
        "best loss",
        metric.short or metric.name,
        "losses",
    ]
    return Cells(header, lines)


def points(search: Search, out: Path) -> Cells:
    """The best settings, and where they lie in their ranges, in percent.

    Near 0 or 100, a better value may lie outside of the range.
    """
    lines = []
    for name, winner in _winners(search, out).items():
        cells = [
            f"{_told(winner.point[each])} ({100 * search.share(name, each, winner.trial):.0f})"
            if each in winner.point
            else ""
            for each in search.dimensions
        ]
        lines.append([name, f"{winner.trial} of {winner.trials}", *cells])
    return Cells(["optimizer", "trial", *search.dimensions], lines)


def _winners(search: Search, out: Path) -> dict[str, Best]:
    return {each.optimizer: each for each in best(search, out)} if common(search, out) else {}


def _quartiles(records: Sequence[Record], metric: Metric) -> str:
    """Of the losses of trials that did not fail."""
    losses = [loss for record in records if math.isfinite(loss := record.score(metric).loss)]
    low, _, high = quartiles(losses)
    return f"{low:.3g}-{high:.3g}"


def _told(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.3g}"

"""The results of a search as rows and tables: what each optimizer spent, and what it found."""

import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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


HEADER = ("optimizer", "trials", "failed", "steps", "CPU h", "best loss", "best {}", "quartiles", "trial")


def table(search: Search, out: Path) -> list[list[str]]:
    """The search as text, the header first: what each optimizer spent, and its best trial with its place.

    The place of a value in its range is in percent: near 0 or 100, a better value may lie outside.
    """
    metric = workload(search.workload).metric
    rows = [(piece, record) for piece, record in finished(search.pieces(out))]
    winners = {each.optimizer: each for each in best(search, out)} if common(search, out) else {}
    header = [name.format(metric.name) for name in HEADER] + search.dimensions
    return [header] + [_line(search, name, metric, winners.get(name), rows) for name in search.optimizers]


def _line(
    search: Search, name: str, metric: Metric, winner: Best | None, rows: list[tuple[Piece, Record]]
) -> list[str]:
    own = [record for piece, record in rows if piece.optimizer == name]
    failed = sum(record.ended != "finished" for record in own)
    spent = [str(len(own)), str(failed), f"{sum(r.step for r in own):,}"]
    spent.append(f"{sum(r.cpu_seconds for r in own) / 3600:.2f}")
    if winner is None:
        return [name, *spent, *("" for _ in range(len(HEADER) - 5 + len(search.dimensions)))]
    score = winner.record.score(metric)
    losses = sorted(r.score(metric).loss for r in own if math.isfinite(r.score(metric).loss))
    spread = ""
    if len(losses) > 1:
        low, _, high = statistics.quantiles(losses, n=4, method="inclusive")
        spread = f"{low:.4f} to {high:.4f}"
    places = [
        f"{_told(winner.point[each])} ({100 * search.share(name, each, winner.trial):.0f} %)"
        if each in winner.point
        else ""
        for each in search.dimensions
    ]
    return [name, *spent, f"{score.loss:.4f}", f"{score.metric:.4f}", spread, str(winner.trial), *places]


def _told(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.3g}"

"""The printed table of a report: one line for similar parameters, then notes that explain it."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sketchy.optim.report import ParameterRow, Report

_HEAD = (
    *("parameter", "shape", "path", "rank", "bytes", "lost", "escaped", "error <=", "rounding", "skipped"),
)
_SOMETIMES = {"lost": "lost", "rounding": "momentum_error"}  # columns, by what rows must have


def table(report: "Report") -> str:
    lines = [_HEAD, *(_cells(*group) for group in similar(report.rows))]
    lines.append(("total", "", "", "", f"{report.bytes:,}", "", "", "", "", f"{report.skipped}"))
    empty = {
        column
        for column, value in _SOMETIMES.items()
        if all(getattr(row, value) in (None, ()) for row in report)
    }
    lines = [tuple(c for c, name in zip(line, _HEAD, strict=True) if name not in empty) for line in lines]
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    printed = (
        "  ".join(
            c.rjust(w) if i > 3 else c.ljust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )
    return "\n".join([*printed, *_notes(report), *_legend(report)])


def similar(rows: Sequence["ParameterRow"]) -> list[list["ParameterRow"]]:
    """The rows in groups: in a group, names differ by numbers only, and all but measured values is equal."""
    groups: dict[object, list[ParameterRow]] = {}
    for row in rows:
        key = replace(
            row,
            name=re.sub(r"\d+", "*", row.name),
            escaped_share=None,
            certified_error=None,
            momentum_error=None,
            lost=(),
            skipped=0,
        )
        groups.setdefault(key, []).append(row)
    return list(groups.values())


def _shared_name(names: Sequence[str]) -> str:
    """The name of similar parameters, with * for a number that differs: blocks.*.up.weight (12)."""
    if len(names) == 1:
        return names[0]
    parts = zip(*(re.split(r"(\d+)", name) for name in names), strict=True)
    return f"{''.join(same[0] if len(set(same)) == 1 else '*' for same in parts)} ({len(names)})"


def _cells(*rows: "ParameterRow") -> tuple[str, ...]:
    """The line of similar parameters: sums of bytes and skipped gradients, the largest measured values."""
    row = rows[0]
    ranks = (
        "-" if rank is None else f"{rank}{'=' if exact else ''}"
        for rank, exact in zip(row.ranks, row.exact, strict=True)
    )
    measured = (
        [one for one in values if one is not None]
        for values in (
            [r.escaped_share for r in rows],
            [r.certified_error for r in rows],
            [r.momentum_error for r in rows],
        )
    )
    return (
        _shared_name([r.name for r in rows]),
        "x".join(map(str, row.shape)) or "()",
        row.path,
        " ".join(ranks),
        f"{sum(r.bytes for r in rows):,}",
        " ".join(_largest([r.lost for r in rows])),
        *(f"{max(values):.1%}" if values else "" for values in measured),
        str(sum(r.skipped for r in rows)),
    )


def _largest(shares: Sequence[tuple[float | None, ...]]) -> Iterator[str]:
    """The largest share of each axis."""
    for axis in zip(*shares, strict=True):
        known = [share for share in axis if share is not None]
        yield f"{max(known):.0%}" if known else "-"


def _notes(report: "Report") -> Iterator[str]:
    share = report.bytes / max(1, report.adamw_bytes)
    yield f"AdamW would hold {report.adamw_bytes:,} bytes; this is {share:.2f} times as much"
    if share > 1:
        yield (
            "so this is MORE than AdamW would hold: a lower rank has less, and so has"
            ' momentum_dtype="bfloat16" or "int8"'
        )
    for budget in report.budgets:
        chosen = (
            f"ranks follow the spectra, {budget.seen} gradients so far" if budget.seen else "at the start"
        )
        yield f"budget {budget.budget}: {budget.used:,} of {budget.allowed:,} bytes; {chosen}"
    if lowered := [row for row in report if row.lowered]:
        ranks = sorted({max(rank for rank in row.ranks if rank is not None) for row in lowered})
        yield (
            f"rank=None chose {', '.join(map(str, ranks))} instead of 64 for {len(lowered)} parameters, so"
            " that their state is not larger than AdamW's in float32"
        )
    yield f"scratch memory of a step: at most {report.scratch / 1e6:,.1f} MB"
    if report.bytes_here < report.bytes:
        yield f"state on this rank: {report.bytes_here:,} bytes"
    for reason in sorted({row.gathered for row in report} - {""}):
        rows = [row for row in report if row.gathered == reason]
        size = sum(row.gathered_bytes for row in rows)
        names = ", ".join(row.name for row in rows[:3]) + (", ..." if len(rows) > 3 else "")
        yield f"gathered because {reason}: gradients of {names}, {size:,} bytes a step"


def _legend(report: "Report") -> Iterator[str]:
    """What the columns mean, if they have something in them."""
    if any(len(group) > 1 for group in similar(report.rows)):
        yield "(n): n similar parameters; bytes and skipped are their sums, the others their largest values"
    if any(row.path == "sketch" for row in report):
        yield "rank: columns of the sketch of each axis; =: the full covariance is kept, nothing escapes"
    if any(row.lost for row in report):
        yield "lost: estimated share of directions that each sketch loses; ranks are chosen to make it small"
    if any(row.escaped_share is not None for row in report):
        yield "escaped: share of the gradients' energy that the sketches treat as equal in all directions"
        yield "error <=: certified relative error of the sketches"
    if any(row.whitened for row in report):
        yield "escaped, error <=: of gradients whitened by the other axis, as sketches see them"
    if any(row.momentum_error is not None for row in report):
        yield "rounding: expected relative error of one rounding of the momentum"
    yield "skipped: gradients with NaN or Inf, for which nothing changed"

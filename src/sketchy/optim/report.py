"""The table of an optimizer's parameters: which path each took, what it costs, how good its sketches are."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from sketchy.optim.plan import Axis, Plan


@dataclass(frozen=True)
class Row:
    """One parameter."""

    name: str
    shape: tuple[int, ...]
    path: str
    ranks: tuple[int | None, ...]  # per axis; None where an axis is left alone
    exact: tuple[bool, ...]  # per axis: whether the whole factor is kept
    bytes: int  # of state, once it exists
    escaped_share: float | None  # the largest share of ρ I in tr(B Bᵀ + ρ I) over axes and blocks
    certified_error: float | None  # the largest ‖C - B Bᵀ‖ / ‖B Bᵀ + ρ I‖ over axes and blocks, at most
    skipped: int  # gradients that were not finite


class Report:
    """Rows to iterate over; ``print(report)`` shows a table."""

    def __init__(self, rows: Iterable[Row], scratch: int) -> None:
        self.rows = tuple(rows)
        self.scratch = scratch  # bytes that a step holds for itself, at most (on the CPU)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def bytes(self) -> int:
        return sum(row.bytes for row in self.rows)

    def __str__(self) -> str:
        head = ("parameter", "shape", "path", "rank", "bytes", "escaped", "error <=", "skipped")
        lines = [head, *(_cells(row) for row in self.rows)]
        lines.append(("total", "", "", "", f"{self.bytes:,}", "", "", f"{sum(r.skipped for r in self.rows)}"))
        widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
        right = {4, 5, 6, 7}
        table = [
            "  ".join(
                c.rjust(w) if i in right else c.ljust(w)
                for i, (c, w) in enumerate(zip(line, widths, strict=True))
            )
            for line in lines
        ]
        return "\n".join([*table, f"scratch memory of a step: at most {self.scratch / 1e6:,.1f} MB"])


def _cells(row: Row) -> tuple[str, ...]:
    ranks = (
        "-" if rank is None else f"{rank}{'=' if exact else ''}"
        for rank, exact in zip(row.ranks, row.exact, strict=True)
    )
    shares = ("" if share is None else f"{share:.1%}" for share in (row.escaped_share, row.certified_error))
    return (
        row.name,
        "x".join(map(str, row.shape)) or "()",
        row.path,
        " ".join(ranks),
        f"{row.bytes:,}",
        *shares,
        str(row.skipped),
    )


def report(parameters: Iterable[tuple[str, Tensor, Plan, Mapping[str, Any]]], scratch: int) -> Report:
    """The report over (name, parameter, plan, state)."""
    return Report((_row(*parameter) for parameter in parameters), scratch)


def _row(name: str, p: Tensor, plan: Plan, state: Mapping[str, Any]) -> Row:
    live = [axis for axis in plan.axes if axis is not None and state]
    measured = [_quality(state, axis) for axis in live]
    return Row(
        name=name,
        shape=tuple(p.shape),
        path=plan.path,
        ranks=tuple(None if axis is None else axis.rank for axis in plan.axes),
        exact=tuple(axis is not None and axis.dense for axis in plan.axes),
        bytes=plan.bytes,
        escaped_share=max((share for share, _ in measured), default=None),
        certified_error=max((error for _, error in measured), default=None),
        skipped=int(state["skipped"]) if state else 0,
    )


def _quality(state: Mapping[str, Any], axis: Axis) -> tuple[float, float]:
    """The escaped share and the certified relative error of one axis, the worst of its blocks."""
    lam, rho, bound = (
        state[f"{axis.name}_{field}"] for field in ("eigenvalues", "escaped_mass", "error_bound")
    )
    trace, largest = lam.sum(-1) + axis.dim * rho, lam[..., 0] + rho
    share = axis.dim * rho / trace.clamp(min=1e-300)
    error = bound / largest.clamp(min=1e-300)
    return float(share.max()), float(error.max())

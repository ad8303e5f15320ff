"""The report of an optimizer: path, memory and sketch quality of each parameter."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from sketchy.core.tasks import run
from sketchy.optim.covariances import known_covariances
from sketchy.optim.plan import Plan
from sketchy.optim.sharding import Sharding
from sketchy.optim.slots import State, fits
from sketchy.optim.stack import Stack


@dataclass(frozen=True)
class ParameterRow:
    """One parameter of a `Report`."""

    name: str
    shape: tuple[int, ...]
    path: str
    ranks: tuple[int | None, ...]  # of each axis; None if an axis is not preconditioned
    exact: tuple[bool, ...]  # of each axis: whether its full covariance is kept
    bytes: int  # size of the state (also before the first step)
    bytes_here: int  # of these, the bytes that lie on this rank
    gathered: str  # why the gradient of a sharded weight is gathered; empty if it is not
    gathered_bytes: int  # size of the whole gradient, if each step gathers it
    escaped_share: float | None  # the share of ρ I in tr(B Bᵀ + ρ I), the largest over axes and blocks
    certified_error: float | None  # bound on ‖C - B Bᵀ‖ / ‖B Bᵀ + ρ I‖, the largest over axes and blocks
    whitened: bool  # whether these two are of gradients that the other axis has whitened (option ``whiten``)
    momentum_error: float | None  # expected ‖M̂ - M‖ / ‖M‖ of the last rounding, if momentum is in few bits
    skipped: int  # gradients that were not finite


class Report:
    """The rows of a report. Iterate over them, or ``print(report)`` for a table."""

    def __init__(self, rows: Iterable[ParameterRow], scratch: int) -> None:
        self.rows = tuple(rows)
        self.scratch = scratch  # upper bound on the scratch bytes of a step (on the CPU)

    def __iter__(self) -> Iterator[ParameterRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def bytes(self) -> int:
        return sum(row.bytes for row in self.rows)

    @property
    def bytes_here(self) -> int:
        """The size of the state on this rank."""
        return sum(row.bytes_here for row in self.rows)

    def __str__(self) -> str:
        head = ("parameter", "shape", "path", "rank", "bytes", "escaped", "error <=", "rounding", "skipped")
        lines = [head, *(_cells(row) for row in self.rows)]
        skipped = sum(row.skipped for row in self.rows)
        lines.append(("total", "", "", "", f"{self.bytes:,}", "", "", "", f"{skipped}"))
        if all(row.momentum_error is None for row in self.rows):  # no momentum is stored in few bits
            lines = [(*line[:7], *line[8:]) for line in lines]
        widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
        table = [
            "  ".join(
                c.rjust(w) if i > 3 else c.ljust(w) for i, (c, w) in enumerate(zip(line, widths, strict=True))
            )
            for line in lines
        ]
        notes = [f"scratch memory of a step: at most {self.scratch / 1e6:,.1f} MB"]
        if self.bytes_here < self.bytes:
            notes.append(f"state on this rank: {self.bytes_here:,} bytes")
        for reason in sorted({row.gathered for row in self.rows} - {""}):
            rows = [row for row in self.rows if row.gathered == reason]
            size = sum(row.gathered_bytes for row in rows)
            names = ", ".join(row.name for row in rows[:3]) + (", ..." if len(rows) > 3 else "")
            notes.append(f"gathered because {reason}: gradients of {names}, {size:,} bytes a step")
        if any(row.whitened for row in self.rows):
            notes.append("escaped, error <=: of gradients whitened by the other axis, as sketches see them")
        return "\n".join([*table, *notes])


def _cells(row: ParameterRow) -> tuple[str, ...]:
    ranks = (
        "-" if rank is None else f"{rank}{'=' if exact else ''}"
        for rank, exact in zip(row.ranks, row.exact, strict=True)
    )
    shares = (
        "" if share is None else f"{share:.1%}"
        for share in (row.escaped_share, row.certified_error, row.momentum_error)
    )
    return (
        row.name,
        "x".join(map(str, row.shape)) or "()",
        row.path,
        " ".join(ranks),
        f"{row.bytes:,}",
        *shares,
        str(row.skipped),
    )


def report(
    parameters: Iterable[tuple[str, Tensor, Plan, State, Mapping[str, Any], Sharding | None]], scratch: int
) -> Report:
    """The report over (name, parameter, plan, state, options, sharding)."""
    return Report((_row(*parameter) for parameter in parameters), scratch)


def _row(
    name: str, p: Tensor, plan: Plan, state: State, options: Mapping[str, Any], shards: Sharding | None
) -> ParameterRow:
    known = list(known_covariances(p, plan, state, options)) if state else []
    stepped = fits(state, plan.slots)  # not with options of another state, which the next step would refuse
    # the rounding errors of sharded momenta are not known on one rank
    stack = Stack([p], [state], plan, dict(options), False) if stepped and shards is None else None
    return ParameterRow(
        name=name,
        shape=tuple(p.shape),
        path=plan.path,
        ranks=tuple(None if axis is None else axis.rank for axis in plan.axes),
        exact=tuple(axis is not None and axis.exact for axis in plan.axes),
        bytes=plan.bytes,
        bytes_here=plan.bytes if shards is None else shards.bytes_here,
        gathered="" if shards is None else shards.gathers,
        gathered_bytes=p.numel() * p.element_size() if shards is not None and shards.gathers else 0,
        escaped_share=max((float(k.escaped_share().max()) for k in known), default=None),
        certified_error=max((float(k.certified_error().max()) for k in known), default=None),
        whitened=plan.statistics.whitened,
        momentum_error=plan.momentum.error(stack, run(plan.statistics.read(stack))) if stack else None,
        skipped=int(state["skipped"]) if state else 0,
    )

"""The report of an optimizer: path, memory and sketch quality of each parameter."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torch import Tensor

from sketchy.core.tasks import run
from sketchy.optim.budget import Budget
from sketchy.optim.covariances import known_covariances
from sketchy.optim.menus import lost_share
from sketchy.optim.plan import DEFAULT_RANK, Plan
from sketchy.optim.report_table import table
from sketchy.optim.sharding import Sharding
from sketchy.optim.slots import State, fits
from sketchy.optim.stack import Stack

_PATHS = {"sketch": "sketched", "adam": "on Adam's path", "none": "without entries"}


def adamw_bytes(count: int, itemsize: int) -> int:
    """The size of the state that torch's AdamW keeps for a weight: two moments and a counter."""
    return 2 * count * itemsize + 4


@dataclass(frozen=True)
class ParameterRow:
    """One parameter of a `Report`."""

    name: str
    shape: tuple[int, ...]
    path: str
    ranks: tuple[int | None, ...]  # of each axis; None if an axis is not preconditioned
    exact: tuple[bool, ...]  # of each axis: whether its full covariance is kept
    lowered: bool  # whether the default rank is below 64, so that the state is not larger than AdamW's
    bytes: int  # size of the state (also before the first step)
    adamw_bytes: int  # size of AdamW's state
    bytes_here: int  # of these, the bytes that lie on this rank
    gathered: str  # why the gradient of a sharded weight is gathered; empty if it is not
    gathered_bytes: int  # size of the whole gradient, if each step gathers it
    escaped_share: float | None  # the share of ρ I in tr(B Bᵀ + ρ I), the largest over axes and blocks
    certified_error: float | None  # bound on ‖C - B Bᵀ‖ / ‖B Bᵀ + ρ I‖, the largest over axes and blocks
    lost: tuple[float | None, ...]  # under a budget, of each axis: estimated share of directions lost
    whitened: bool  # whether these two are of gradients that the other axis has whitened (option ``whiten``)
    momentum_error: float | None  # expected ‖M̂ - M‖ / ‖M‖ of the last rounding, if momentum is in few bits
    skipped: int  # gradients that were not finite


@dataclass(frozen=True)
class BudgetRow:
    """One budget of a `Report`."""

    budget: str | float  # as the option gives it
    allowed: int  # bytes
    used: int
    seen: int  # gradients so far


class Report:
    """The rows of a report. Iterate over them, or ``print(report)`` for a table with a legend.

    Frozen parameters have no row. The table has one line for similar parameters, such as those of all layers.
    """

    def __init__(
        self, rows: Iterable[ParameterRow], scratch: int, optimizer: str, budgets: Iterable[BudgetRow] = ()
    ) -> None:
        self.rows = tuple(rows)
        self.budgets = tuple(budgets)
        self.scratch = scratch  # upper bound on the scratch bytes of a step (on the CPU)
        self.optimizer = optimizer  # its name

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

    @property
    def adamw_bytes(self) -> int:
        """The size of AdamW's state for the same parameters."""
        return sum(row.adamw_bytes for row in self.rows)

    @property
    def skipped(self) -> int:
        return sum(row.skipped for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain values, for JSON."""
        names = ("optimizer", "bytes", "bytes_here", "adamw_bytes", "scratch", "skipped")
        own = {name: getattr(self, name) for name in names}
        budgets = [asdict(budget) for budget in self.budgets]
        return own | {"budgets": budgets, "parameters": [asdict(row) for row in self.rows]}

    def summary(self) -> str:
        """The report in one line, for a log."""
        paths = Counter(row.path for row in self.rows)
        counts = ", ".join(f"{paths[path]} {what}" for path, what in _PATHS.items() if paths[path])
        worst = (
            f", {what} {max(values):.1%}"
            for what, values in (
                ("escaped up to", [r.escaped_share for r in self.rows if r.escaped_share is not None]),
                ("error <=", [r.certified_error for r in self.rows if r.certified_error is not None]),
            )
            if values
        )
        size = f"{self.bytes:,} bytes of state ({self.bytes / max(1, self.adamw_bytes):.2f} of AdamW's)"
        return (
            f"{self.optimizer}: {size}, {counts or 'no parameters'}{''.join(worst)}, {self.skipped} skipped"
        )

    def __str__(self) -> str:
        return table(self)


def report(
    parameters: Iterable[tuple[str, Tensor, Plan, State, Mapping[str, Any], Sharding | None]],
    scratch: int,
    optimizer: str,
    budgets: Iterable[Budget] = (),
) -> Report:
    """The report over (name, parameter, plan, state, options, sharding)."""
    own = (BudgetRow(each.text, each.allowed, each.used, each.seen) for each in budgets)
    return Report((_row(*parameter) for parameter in parameters), scratch, optimizer, own)


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
        lowered=options.get("rank", 0) is None
        and options.get("budget") is None
        and any(a.rank < min(a.dim, DEFAULT_RANK) for a in plan.statistics.live),
        bytes=plan.bytes,
        adamw_bytes=adamw_bytes(p.numel(), p.element_size()),
        bytes_here=plan.bytes if shards is None else shards.bytes_here,
        gathered="" if shards is None else shards.gathers,
        gathered_bytes=p.numel() * p.element_size() if shards is not None and shards.gathers else 0,
        escaped_share=max((float(k.escaped_share().max()) for k in known), default=None),
        certified_error=max((float(k.certified_error().max()) for k in known), default=None),
        lost=_lost(plan, state, options) if known and options.get("budget") is not None else (),
        whitened=plan.statistics.whitened,
        momentum_error=plan.momentum.error(stack, run(plan.statistics.read(stack))) if stack else None,
        skipped=int(state["skipped"]) if state else 0,
    )


def _lost(plan: Plan, state: State, options: Mapping[str, Any]) -> tuple[float | None, ...]:
    """The estimated share of directions that each axis loses at its rank."""
    return tuple(
        None if axis is None else float(lost_share(plan, axis, state, options, [axis.rank]))
        for axis in plan.axes
    )

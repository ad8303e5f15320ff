"""Tables of the measured step times, for the terminal and for the docs, and our targets."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rich import box
from rich.table import Table

from benchmarks.common.markdown import table
from benchmarks.registry.problems import PROBLEMS

Row = dict[str, Any]
PASS = "forward and backward"
FLOOR = " floor"  # behind an optimizer's name
COLUMNS = (
    "optimizer", "CPU ms a step", "wall ms", "dearest step", "times floor", "times AdamW",
    "of a training step", "state, MB", "operations (their parts)", "Python ms", "settings",
)  # fmt: skip
WORDS = ("optimizer", "settings")
ASKED = ("what", "asked", "measured", "met")


@dataclass(frozen=True)
class Ratio:
    """The median over rounds that both took part in, with quartiles."""

    low: float
    middle: float
    high: float

    def __str__(self) -> str:
        spread = f" ({self.low:.2f} to {self.high:.2f})" if self.low < self.high else ""
        return f"{self.middle:.2f}{spread}"


class Results:
    """The rows of one problem, by optimizer and rank."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows = {(row["optimizer"], row["rank"]): row for row in rows}

    def cpu(self, optimizer: str, rank: int | None = None) -> dict[int, float]:
        """CPU milliseconds by round; nothing for who failed or did not run."""
        row = self.rows.get((optimizer, rank), {"error": "", "samples": []})
        return {} if row["error"] is not None else {s["round"]: s["cpu"] for s in row["samples"]}

    def ratio(self, over: dict[int, float], under: dict[int, float]) -> Ratio | None:
        """Round by round, so that a slow moment of the machine hits both."""
        ratios = [over[i] / under[i] for i in over.keys() & under.keys()]
        return Ratio(*quartiles(ratios)) if ratios else None

    def floor(self, optimizer: str, rank: int | None) -> Ratio | None:
        return self.ratio(self.cpu(optimizer, rank), self.cpu(optimizer + FLOOR, rank))

    def slowdown(self, optimizer: str, rank: int | None, against: str = "adamw") -> Ratio | None:
        """Of a whole training step, against the same with another optimizer."""
        passes, ours, theirs = self.cpu(PASS), self.cpu(optimizer, rank), self.cpu(against)
        common = passes.keys() & ours.keys() & theirs.keys()
        ratios = [(passes[i] + ours[i]) / (passes[i] + theirs[i]) for i in common]
        return Ratio(*quartiles(ratios)) if ratios else None

    def share(self, optimizer: str, rank: int | None) -> float | None:
        """Of a whole training step."""
        passes, ours = self.cpu(PASS), self.cpu(optimizer, rank)
        shares = [ours[i] / (passes[i] + ours[i]) for i in passes.keys() & ours.keys()]
        return statistics.median(shares) if shares else None

    def counted(self, what: str, optimizer: str, rank: int | None) -> int | None:
        """``operations`` of a step, or their ``parts``, which older rows don't have."""
        row = self.rows.get((optimizer, rank))
        return row["profile"].get(what) if row and row["profile"] else None


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def number(value: float) -> str:
    """Three digits.

    >>> number(0.1234), number(12.34), number(1234.0)
    ('0.123', '12.3', '1,234')
    """
    return f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3}f}"


def cells(results: Results, row: Row) -> list[str]:
    """A row's cells; of one that failed, its message in the place of its time."""
    name, rank = row["optimizer"], row["rank"]
    label = name if rank is None else f"{name}, rank {rank}"
    if row["error"] is not None:
        return [label, row["error"], *[""] * (len(COLUMNS) - 3), row["settings"]]
    low, middle, high = quartiles([s["cpu"] for s in row["samples"]])
    wall = statistics.median(s["wall"] for s in row["samples"])
    worst = statistics.median(s["worst"] for s in row["samples"])
    floor = results.floor(name, rank)
    stepping = name != PASS and not name.endswith(FLOOR)
    adamw = results.ratio(results.cpu(name, rank), results.cpu("adamw")) if stepping else None
    share = results.share(name, rank) if stepping else None
    profile = row["profile"]
    return [
        label,
        f"{number(middle)} ({number(low)} to {number(high)})",
        number(wall),
        number(worst) if row["period"] > 1 else "",
        "" if floor is None else f"{floor.middle:.2f}",
        "" if adamw is None else f"{adamw.middle:.2f}",
        "" if share is None else f"{100 * share:.1f} %",
        "" if row["state_bytes"] is None else number(row["state_bytes"] / 1e6),
        "" if profile is None else f"{profile['operations']} ({profile.get('parts', 'not counted')})",
        "" if profile is None else number(profile["python_ms"]),
        row["settings"],
    ]


def shown(title: str, rows: Sequence[Row]) -> Table:
    found = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left")
    for column in COLUMNS:
        justify: Literal["left", "right"] = "left" if column in WORDS else "right"
        found.add_column(column, justify=justify, no_wrap=column == "optimizer")
    results = Results(rows)
    for row in rows:
        found.add_row(*cells(results, row))
    return found


def about(row: Row) -> str:
    """Where and of what a row was measured."""
    return f"{row['processor']}, one core, torch {row['torch']}, {row['commit']}, {row['date']}"


def markdown(rows: Sequence[Row]) -> str:
    """A section with a table for each problem, and what was asked of all."""
    problems = list(dict.fromkeys(row["problem"] for row in rows))
    titles = [PROBLEMS[problem].title if problem in PROBLEMS else problem for problem in problems]
    parts = [
        f"### {title[0].upper()}{title[1:]}\n\n{problem_markdown(rows, problem)}\n"
        for problem, title in zip(problems, titles, strict=True)
    ]
    return "\n".join([*parts, f"### What was asked\n\n{asked_markdown(rows)}\n"])


def problem_markdown(rows: Sequence[Row], problem: str) -> str:
    own = [row for row in rows if row["problem"] == problem]
    results = Results(own)
    return f"{table(COLUMNS, (cells(results, row) for row in own), left=WORDS)}\n\n{about(own[0])}"


def asked_markdown(rows: Sequence[Row]) -> str:
    verdicts = [(v.what, v.asked, str(v.measured), v.word) for v in checks(rows)]
    return table(ASKED, verdicts, left=ASKED)


@dataclass(frozen=True)
class Verdict:
    """A ratio that was asked for, and the measured one; some stand beside one to explain it."""

    what: str
    most: float | None
    measured: Ratio

    @property
    def asked(self) -> str:
        return "" if self.most is None else f"≤ {self.most:.3g}"

    @property
    def word(self) -> str:
        return "" if self.most is None else "yes" if self.measured.middle <= self.most else "NO"

    def __str__(self) -> str:
        verdict = f": asked {self.asked} / measured {self.measured} / {self.word}"
        return self.what + (f": {self.measured}" if self.most is None else verdict)


def checks(rows: Sequence[Row]) -> list[Verdict]:
    """What was asked and has been measured."""
    by_problem = {p: Results(r for r in rows if r["problem"] == p) for p in {r["problem"] for r in rows}}
    nothing = Results(())
    block, matrix, deep, flat = (
        by_problem.get(name, nothing) for name in ("block", "matrix", "transformer", "transformer2")
    )
    ours, soap = block.cpu("sketchy_shampoo", 64), block.cpu("sketchy_soap", 64)
    asked: list[tuple[str, float | None, Ratio | None]] = [
        ("block, rank 64: SketchyShampoo / its floor", 1.5, block.floor("sketchy_shampoo", 64)),
        ("block, rank 64: SketchyShampoo / AdamW foreach", 10, block.ratio(ours, block.cpu("adamw"))),
        ("block, rank 64: SketchyShampoo / pytorch_optimizer's SOAP", 1 / 8,
         block.ratio(ours, block.cpu("po_soap"))),
        ("block, rank 64: SketchyShampoo / Distributed Shampoo every 10", 1 / 3,
         block.ratio(ours, block.cpu("distributed_shampoo"))),
        ("block, rank 64: SketchySOAP / SketchyShampoo", 1.4, block.ratio(soap, ours)),
        ("1024 x 1024, rank 256: SketchyShampoo / its floor", 1.4, matrix.floor("sketchy_shampoo", 256)),
    ]  # fmt: skip
    for name in ("sketchy_shampoo", "sketchy_soap"):
        for what, most in (("operations", 1.2), ("parts", None)):
            counts = deep.counted(what, name, 64), flat.counted(what, name, 64)
            quotient = Ratio(*3 * (counts[0] / counts[1],)) if counts[0] and counts[1] else None
            called = what if what == "operations" else "the same with the parts of each"
            asked.append((f"{called}, {name}, rank 64: 12 layers / 2 layers", most, quotient))
        for problem in ("block", "layer512"):
            slowdown = by_problem.get(problem, nothing).slowdown(name, 64)
            asked.append((f"{problem}: training step at 4096 tokens, {name} / AdamW", 1.12, slowdown))
    return [Verdict(what, most, measured) for what, most, measured in asked if measured is not None]

"""Tables of the measured step times, for the terminal and for the docs, and our targets."""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.table import Table

from benchmarks.registry.problems import PROBLEMS
from sketchy.analysis.markdown import table
from sketchy.experiments import names
from sketchy.experiments.summary import ResultRow, quartiles

PASS = "forward and backward"
FLOOR = " floor"  # behind an optimizer's name
COLUMNS = (  # the most important ones first
    "optimizer", "CPU ms a step", "times AdamW", "of a training step", "state, MB", "slowest step, ms",
    "settings", "times floor", "wall ms", "operations (parts)", "Python ms",
)  # fmt: skip
USERS = COLUMNS[:7]
WORDS = ("optimizer", "settings")
TARGETS = ("what", "target", "measured", "met")


@dataclass(frozen=True)
class Ratio:
    """The median over the rounds of both, with quartiles."""

    low: float
    middle: float
    high: float

    def __str__(self) -> str:
        spread = f" ({self.low:.2f} to {self.high:.2f})" if self.low < self.high else ""
        return f"{self.middle:.2f}{spread}"


class Results:
    """The rows of one problem, by optimizer and rank."""

    def __init__(self, rows: Iterable[ResultRow]) -> None:
        self.rows = {(row["optimizer"], row["rank"]): row for row in rows}

    def cpu(self, optimizer: str, rank: int | None = None) -> dict[int, float]:
        """CPU milliseconds by round; empty if it failed or did not run."""
        row = self.rows.get((optimizer, rank), {"error": "", "samples": []})
        return {} if row["error"] is not None else {s["round"]: s["cpu"] for s in row["samples"]}

    def ratio(self, over: dict[int, float], under: dict[int, float]) -> Ratio | None:
        """Compared round by round, because the machine is slower at some times than at others."""
        ratios = [over[i] / under[i] for i in over.keys() & under.keys()]
        return Ratio(*quartiles(ratios)) if ratios else None

    def floor(self, optimizer: str, rank: int | None) -> Ratio | None:
        return self.ratio(self.cpu(optimizer, rank), self.cpu(optimizer + FLOOR, rank))

    def slowdown(self, optimizer: str, rank: int | None, against: str = "adamw") -> Ratio | None:
        """The time of a whole training step, over the same with another optimizer."""
        passes, ours, theirs = self.cpu(PASS), self.cpu(optimizer, rank), self.cpu(against)
        common = passes.keys() & ours.keys() & theirs.keys()
        ratios = [(passes[i] + ours[i]) / (passes[i] + theirs[i]) for i in common]
        return Ratio(*quartiles(ratios)) if ratios else None

    def share(self, optimizer: str, rank: int | None) -> float | None:
        """The share of a whole training step."""
        passes, ours = self.cpu(PASS), self.cpu(optimizer, rank)
        shares = [ours[i] / (passes[i] + ours[i]) for i in passes.keys() & ours.keys()]
        return statistics.median(shares) if shares else None

    def counted(self, what: str, optimizer: str, rank: int | None) -> int | None:
        """The ``operations`` of a step, or their ``parts``; None for old rows without these."""
        row = self.rows.get((optimizer, rank))
        return row["profile"].get(what) if row and row["profile"] else None


def number(value: float) -> str:
    """With three digits.

    >>> number(0.1234), number(12.34), number(1234.0)
    ('0.123', '12.3', '1,234')
    """
    return f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3}f}"


def steps(row: ResultRow) -> bool:
    """Whether a row is an optimizer: others are what a step is compared with."""
    return row["optimizer"] != PASS and not row["optimizer"].endswith(FLOOR)


def label(row: ResultRow) -> str:
    return names.shown(row["optimizer"], row["rank"])


def cells(results: Results, row: ResultRow) -> dict[str, str]:
    """The cells of a row, by column; empty ones are left out."""
    name, rank, samples = row["optimizer"], row["rank"], row["samples"]
    low, middle, high = quartiles([s["cpu"] for s in samples])
    found = {
        "optimizer": label(row),
        "CPU ms a step": f"{number(middle)} ({number(low)} to {number(high)})",
        "wall ms": number(statistics.median(s["wall"] for s in samples)),
        "settings": row["settings"],
    }
    if row["period"] > 1:
        found["slowest step, ms"] = number(statistics.median(s["worst"] for s in samples))
    if (floor := results.floor(name, rank)) is not None:
        found["times floor"] = f"{floor.middle:.2f}"
    if row["state_bytes"] is not None:
        found["state, MB"] = number(row["state_bytes"] / 1e6)
    if (profile := row["profile"]) is not None:
        found["operations (parts)"] = f"{profile['operations']} ({profile.get('parts', 'not counted')})"
        found["Python ms"] = number(profile["python_ms"])
    if steps(row):
        if (adamw := results.ratio(results.cpu(name, rank), results.cpu("adamw"))) is not None:
            found["times AdamW"] = f"{adamw.middle:.2f}"
        if (share := results.share(name, rank)) is not None:
            found["of a training step"] = f"{100 * share:.1f} %"
    return found


def lines(rows: Sequence[ResultRow], columns: Sequence[str] = COLUMNS) -> Iterator[list[str]]:
    """The lines of a table, without optimizers that have no times; the short table has optimizers only."""
    results = Results(rows)
    for row in rows:
        if row["error"] is None and (columns != USERS or steps(row)):
            found = cells(results, row)
            yield [found.get(column, "") for column in columns]


def failures(rows: Sequence[ResultRow]) -> str:
    """A sentence about the optimizers that have no times; empty if there are none."""
    failed = {label(row): row["error"] for row in rows if row["error"] is not None}
    absent = [name for name, error in failed.items() if error.startswith(("ModuleNotFound", "ImportError"))]
    others = [f"{name} ({error})" for name, error in failed.items() if name not in absent]
    parts = [f"Not installed: {', '.join(absent)}."] * bool(absent)
    return " ".join(parts + [f"Without a result: {'; '.join(others)}."] * bool(others))


def shown(title: str, rows: Sequence[ResultRow]) -> Table:
    found = Table(title=title, caption=failures(rows), box=box.SIMPLE_HEAD, title_justify="left")
    for column in COLUMNS:
        justify: Literal["left", "right"] = "left" if column in WORDS else "right"
        found.add_column(column, justify=justify, no_wrap=column == "optimizer")
    for line in lines(rows):
        found.add_row(*line)
    return found


def about(row: ResultRow) -> str:
    """The machine, the versions and the date of a row."""
    return f"{row['processor']}, one core, torch {row['torch']}, {row['commit']}, {row['date']}"


def markdown(rows: Sequence[ResultRow]) -> str:
    """A section with a table for each problem, and one with the targets."""
    problems = list(dict.fromkeys(row["problem"] for row in rows))
    titles = [PROBLEMS[problem].title if problem in PROBLEMS else problem for problem in problems]
    parts = [
        f"### {title[0].upper()}{title[1:]}\n\n{problem_markdown(rows, problem)}\n"
        for problem, title in zip(problems, titles, strict=True)
    ]
    return "\n".join([*parts, f"### Targets\n\n{targets_markdown(rows)}\n"])


def problem_markdown(rows: Sequence[ResultRow], problem: str, columns: Sequence[str] = COLUMNS) -> str:
    own = [row for row in rows if row["problem"] == problem]
    parts = (table(columns, lines(own, columns), left=WORDS), failures(own), about(own[0]))
    return "\n\n".join(filter(None, parts))


def users_markdown(rows: Sequence[ResultRow], problem: str) -> str:
    """The short table: optimizers only, and the columns that matter for choosing one."""
    return problem_markdown(rows, problem, USERS)


def targets_markdown(rows: Sequence[ResultRow]) -> str:
    verdicts = [(v.what, v.target, str(v.measured), v.word) for v in checks(rows)]
    return table(TARGETS, verdicts, left=TARGETS)


@dataclass(frozen=True)
class Verdict:
    """A measured ratio and its target; some have no target and explain another one."""

    what: str
    most: float | None
    measured: Ratio

    @property
    def target(self) -> str:
        return "" if self.most is None else f"≤ {self.most:.3g}"

    @property
    def word(self) -> str:
        return "" if self.most is None else "yes" if self.measured.middle <= self.most else "NO"

    def __str__(self) -> str:
        verdict = f": target {self.target} / measured {self.measured} / {self.word}"
        return self.what + (f": {self.measured}" if self.most is None else verdict)


def checks(rows: Sequence[ResultRow]) -> list[Verdict]:
    """Our targets, as far as they have been measured."""
    by_problem = {p: Results(r for r in rows if r["problem"] == p) for p in {r["problem"] for r in rows}}
    nothing = Results(())
    block, matrix, deep, flat = (
        by_problem.get(name, nothing) for name in ("block", "matrix", "transformer", "transformer2")
    )
    ours, soap = block.cpu("sketchy_shampoo", 64), block.cpu("sketchy_soap", 64)
    found: list[tuple[str, float | None, Ratio | None]] = [
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
            found.append((f"{called}, {names.shown(name)}, rank 64: 12 layers / 2 layers", most, quotient))
        for problem in ("block", "layer512"):
            slowdown = by_problem.get(problem, nothing).slowdown(name, 64)
            found.append(
                (f"{problem}: training step at 4096 tokens, {names.shown(name)} / AdamW", 1.12, slowdown)
            )
    return [Verdict(what, most, measured) for what, most, measured in found if measured is not None]

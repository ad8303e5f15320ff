"""The kinds of result files that `sketchy report` knows, and what it shows of each."""

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sketchy.experiments import names, resume
from sketchy.experiments.page import Plot, Table, band, bars, lines, points
from sketchy.experiments.resume import OPTIONS
from sketchy.experiments.summary import ResultRow, exponent, quartiles
from sketchy.experiments.workloads import report as workloads
from sketchy.files import told

if TYPE_CHECKING:
    from sketchy.analysis.spectra import Spectrum


@dataclass(frozen=True)
class Unread:
    """A file beside the rows that can't be read. The section is shown without it."""

    path: Path
    why: str


Blocks = tuple[str, list[Table | Plot | Unread]]  # the title of a section, and its contents


@dataclass(frozen=True)
class Kind:
    """A kind of file: all rows have these keys, and ``build`` makes a section of them."""

    keys: frozenset[str]
    build: Callable[[Path, list[ResultRow]], Blocks]

    def recognises(self, rows: Sequence[ResultRow]) -> bool:
        return all(self.keys <= row.keys() for row in rows)


# ---- online learning


def _online(path: Path, found: list[ResultRow]) -> Blocks:
    from sketchy.experiments import sweep, table

    rows = [table.SettingResult(**row) for row in found]
    by_eta = {
        row.learner: _best_by([(r.eta, r.average_loss) for r in rows if r.learner == row.learner])
        for row in table.ranking(rows)
    }
    sweeps = lines(
        by_eta, title="Every setting: the best over delta", x="eta", y="average loss", log_x=True, log_y=True
    )
    options = path.with_name(OPTIONS)
    unread: list[Table | Plot | Unread] = []
    try:
        plan = sweep.claimed(path.parent) if options.exists() else None
    except ValueError as error:
        plan, unread = None, [Unread(options, str(error))]
    if plan is None:
        cells = [[r.learner, f"{r.average_loss:.4f}", f"{r.eta:.3g}"] for r in table.ranking(rows)]
        return f"Online learning: {path.parent.name}", [
            Table(("learner", "average loss", "eta"), cells),
            sweeps,
            *unread,
        ]
    header, *cells = table.cells(plan, rows)
    order = [1, *(i for i in range(len(header)) if i != 1)]  # the learner first
    ranked = Table(
        [header[i] for i in order],
        [[line[i] for i in order] for line in cells],
        ". ".join(filter(None, (table.title(plan), table.note(cells)))),
    )
    shown: list[Table | Plot | Unread] = [ranked]
    results = []
    for name in plan.learners:
        try:
            results += sweep.results(replace(plan, learners=(name,)), path.parent)
        except ValueError as error:
            shown.append(Unread(sweep.checkpoint(path.parent, name), str(error)))
    curves = table.best_curves(plan, results)
    if curves:
        percent = {name: ([100 * x for x in xs], ys) for name, (xs, ys) in curves.items()}
        x, y = "share of the data seen (%)", "average loss so far"
        shown.append(lines(percent, title="The best setting of each learner", x=x, y=y))
    return f"Online learning: {plan.data}", [*shown, sweeps]


def _best_by(pairs: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    best: dict[float, float] = {}
    for x, y in pairs:
        best[x] = min(y, best.get(x, math.inf))
    xs = sorted(best)
    return xs, [best[x] for x in xs]


def _counterexample(path: Path, rows: list[ResultRow]) -> Blocks:
    curves = {
        f"{name} {what}": ([r["rounds"] for r in own], [r[what] for r in own])
        for name, own in _groups(rows, "learner").items()
        for what in ("bound", "regret")
    }
    horizons = sorted({row["rounds"] for row in rows})
    values = {name: dict(zip(xs, ys, strict=True)) for name, (xs, ys) in curves.items()}
    cells = [[f"{T:,}", *(_number(own.get(T)) for own in values.values())] for T in horizons]
    exponents = ["exponent", *(f"{exponent(xs, ys):.3f}" for xs, ys in curves.values())]
    plot = lines(
        curves,
        title="Growth with T",
        x="rounds T",
        y="bound, regret",
        log_x=True,
        log_y=True,
        owner=lambda name: name.rpartition(" ")[0],
    )
    return "Observation 2: bounds and regrets", [Table(("T", *curves), [*cells, exponents]), plot]


# ---- sketches, spectra, memory


def _sketch(path: Path, rows: list[ResultRow]) -> Blocks:
    errors_shown = {"error": "true error", "certified": "certified", "lemma_1": "Lemma 1"}
    cells = []
    for row in rows:
        errors = [f"{row[key]:.5f}" for key in errors_shown]
        label = f"{row['solver']}, rank {row['rank']}"
        cells.append([label, f"{row['numbers']:,}", *errors, f"{row['microseconds']:.0f}"])
    curves = {
        f"{solver}: {name}": ([r["rank"] for r in own], [r[key] for r in own])
        for solver, own in _groups(rows, "solver").items()
        for key, name in errors_shown.items()
    }
    table = Table(
        ("solver", "numbers", *errors_shown.values(), "µs/vector"), cells, "Errors are ‖C - BBᵀ‖ / ‖C‖."
    )
    title = "Error of the sketch"
    plot = lines(curves, title=title, x="rank", y="error", log_x=True, log_y=True, owner=_before_colon)
    return "Sketches of digits", [table, plot]


def _spectra(path: Path, rows: list[ResultRow]) -> Blocks:
    from sketchy.analysis.spectra import Spectrum

    records = [Spectrum(**{f.name: row[f.name] for f in fields(Spectrum)}) for row in rows]
    longest = max(record.dim for record in records)
    wide = [record for record in records if record.dim == longest]
    kinds = {"": records}
    if len(wide) < len(records):
        first = wide[0]
        alone = [r for r in wide if (r.parameter, r.axis) == (first.parameter, first.axis)]
        kinds |= {f"of side {longest}": wide, f"of side {longest}, {first.parameter}": alone}
    shown: list[Table | Plot | Unread] = []
    last: list[list[str]] = []
    for kind, some in kinds.items():
        for value, name in (("share", "top-k mass"), ("intrinsic_dimension", "intrinsic dimension")):
            plot, ends = _spectral(some, value, name, kind)
            shown.append(plot)
            last += ends
    header = ("at the last recording", "step", "median", "quartiles", "mean", "covariances")
    return f"Spectra: {path.parent.name}", [Table(header, last), *_control(path), *shown]


def _spectral(records: "list[Spectrum]", value: str, name: str, kind: str) -> tuple[Plot, list[list[str]]]:
    """Median and quartiles over training, a colour for each axis; and the last ones as cells."""
    from sketchy.experiments import spectra

    bands = spectra.bands(records, value)  # type: ignore[arg-type]
    traces, curves, last = [], {}, []
    for axis_name in dict.fromkeys(b.axis for b in bands):
        own = [b for b in bands if b.axis == axis_name]
        steps, letter = [b.step for b in own], spectra.LETTERS.get(axis_name, axis_name)
        low, high = [b.first_quartile for b in own], [b.third_quartile for b in own]
        traces.append(band(f"{letter}: quartiles", steps, low, high))
        curves[f"{letter}: median"] = (steps, [b.median for b in own])
        end = own[-1]
        quartiles = f"{_number(end.first_quartile)} to {_number(end.third_quartile)}"
        what = " ".join(filter(None, (f"{name} of {letter}", kind)))
        cells = [what, f"{end.step:,}", _number(end.median), quartiles, _number(end.mean)]
        last.append([*cells, str(end.covariances)])
    title = ", ".join(filter(None, (kind, spectra.describe(records, value))))  # type: ignore[arg-type]
    drawn = lines(curves, title=title, x="step", y=name, log_y=False, owner=_before_colon)
    y = drawn.y | {"rangemode": "tozero"}
    owners = [*drawn.owners, *drawn.owners]  # bands and lines come in the same order
    return replace(drawn, traces=[*traces, *drawn.traces], y=y, owners=owners), last


def _control(path: Path) -> list[Table | Plot | Unread]:
    """What Gaussian gradients give after as many steps, if the run has written it."""
    beside = path.with_name("gaussian.jsonl")
    try:
        found = resume.rows(beside, "columns", "dim", "draws", "dimension")
        cells = [
            [str(r["columns"]), f"{r['dim']:,}", f"{r['draws']:,}", _number(r["dimension"])] for r in found
        ]
    except Exception as error:  # a file may hold anything
        return [Unread(beside, told(error))]
    caption = "The control: intrinsic dimension if gradients were Gaussian matrices of so many columns."
    return (
        [Table(("Gaussian columns", "side", "steps", "intrinsic dimension"), cells, caption)] if cells else []
    )


def _memory(path: Path, rows: list[ResultRow]) -> Blocks:
    from sketchy.analysis.memory import human

    found = rows[0]
    cells, sizes, owners = [], {}, {}
    for row in found["optimizers"]:
        name = ", ".join(filter(None, (row["optimizer"], row["setting"])))
        parts = [human(row[part]) for part in ("momentum", "second_moment", "other", "bytes")]
        cells.append([name, *parts, f"{row['floats_per_weight']:.3g}"])
        sizes[name], owners[name] = row["bytes"] / 2**20, row["optimizer"]
    header = ("optimizer", "momentum", "second moments", "other", "total", "floats per weight")
    shown: list[Table | Plot | Unread] = [Table(header, cells)]
    if "budget" in found:
        fits = [
            [fit["optimizer"], str(fit["rank"]), human(fit["bytes"])] for fit in found["budget"]["optimizers"]
        ]
        caption = f"The largest rank that fits {human(found['budget']['bytes'])}."
        shown.append(Table(("optimizer", "rank", "total"), fits, caption))
    some = {name: size for name, size in sizes.items() if size > 0}
    shown.append(bars(some, title="Optimizer state", x="MiB", owner=owners.__getitem__))
    return f"Memory: {found['weights']:,} weights in {found['tensors']:,} tensors", shown


# ---- training and its cost


def _demo(path: Path, rows: list[ResultRow]) -> Blocks:
    header = ("optimizer", "rate", "loss", "accuracy", "state, kB", "ms/step")
    cells = []
    for row in rows:
        quality = (f"{row['loss']:.3f} ± {row['loss_spread']:.3f}", f"{row['accuracy']:.1%}")
        cost = (f"{row['bytes'] / 1e3:,.1f}", f"{row['milliseconds']:.1f}")
        cells.append([row["optimizer"], f"{row['rate']:g}", *quality, *cost])
    curves = {row["optimizer"]: tuple(zip(*row["curve"], strict=True)) for row in rows}
    plot = lines(curves, title="Validation loss", x="step", y="loss")  # type: ignore[arg-type]
    return "Demo: a small network on digits", [Table(header, cells), plot]


def _quality(path: Path, rows: list[ResultRow]) -> Blocks:
    from sketchy.experiments import quality, quality_table

    results = quality.of_usual_length(quality.parse(rows))
    first = next(iter(results.values()))
    found = sorted(quality.tuned(results), key=lambda each: each.loss)
    curves, sweeps = {}, {}
    front: dict[str, dict[str, tuple[float, float]]] = {}
    for each in found:
        if each.records:
            label = each.variant.name
            looks = list(zip(*(record.curve for record in each.records), strict=False))
            losses = [statistics.mean(look.loss for look in some) for some in looks]
            curves[label] = ([some[0].step for some in looks], losses)
            sweeps[label] = (list(each.tried), list(each.tried.values()))
            front.setdefault(names.shown(each.variant.optimizer), {})[label] = (each.bytes / 1e6, each.loss)
    caption = f"{quality_table.FOOTNOTE} {quality_table.failures(found)}"
    return f"Training quality: {first.task}, {first.steps:,} steps", [
        Table(*quality_table.table(found), caption),
        points(front, title="Loss against optimizer state", x="optimizer state, MB", y="validation loss"),
        lines(curves, title="At these rates, mean of seeds", x="step", y="validation loss"),
        lines(sweeps, title="Every rate, mean of seeds", x="learning rate", y="validation loss", log_x=True),
    ]


def _step_time(path: Path, rows: list[ResultRow]) -> Blocks:
    def steps(row: ResultRow) -> bool:
        """Whether a row is an optimizer: others are what a step is compared with."""
        return not row["optimizer"].endswith(" floor") and row["optimizer"] != "forward and backward"

    shown: list[Table | Plot | Unread] = []
    for problem, own in _groups(rows, "problem").items():
        adamw = next((_cpu(row) for row in own if row["optimizer"] == "adamw"), {})
        cells, times, failed = [], {}, []
        for row in own:
            label, cpu = _label(row), _cpu(row)
            if row["error"] is not None or not cpu:
                failed.append(f"{label} ({row['error'] or 'no rounds'})")
                continue
            low, middle, high = quartiles(list(cpu.values()))
            ratios = [cpu[i] / adamw[i] for i in cpu.keys() & adamw.keys()]  # round by round
            ratio = f"{statistics.median(ratios):.2f}" if ratios and steps(row) else ""
            state = "" if row["state_bytes"] is None else f"{row['state_bytes'] / 1e6:,.1f}"
            spread = f"{_number(low)} to {_number(high)}"
            cells.append([label, _number(middle), ratio, state, spread, row["settings"]])
            times[label] = middle
        caption = f"{_machine(own[0])}." + (f" Without a result: {'; '.join(failed)}." if failed else "")
        header = (problem, "CPU ms a step", "times AdamW", "state, MB", "quartiles", "settings")
        shown += [
            Table(header, cells, caption, notes=True),
            bars(times, title=f"{problem}: one step", x="CPU ms"),
        ]
    return "Step time", shown


def _scaling(path: Path, rows: list[ResultRow]) -> Blocks:
    cells, plots = [], []
    for variable, own in _groups([row for row in rows if row["error"] is None], "variable").items():
        curves = {}
        for name, some in _groups(own, "optimizer").items():
            sizes, times = [r["size"] for r in some], [statistics.median(_cpu(r).values()) for r in some]
            curves[names.shown(name)] = (sizes, times)
            slope = f"{exponent(sizes, times):.2f}" if len(sizes) > 1 else ""
            cells.append(
                [
                    f"{names.shown(name)} in {variable}",
                    " · ".join(map(str, sizes)),
                    " · ".join(map(_number, times)),
                    slope,
                ]
            )
        title, y = f"Growth with {variable}", "CPU ms a step"
        plots.append(lines(curves, title=title, x=variable, y=y, log_x=True, log_y=True))
    table = Table(
        ("optimizer", "sizes", "CPU ms a step", "exponent"),
        cells,
        f"Exponent: 1 is linear. {_machine(rows[0])}",
    )
    return "Scaling of a step", [table, *plots]


def _workload(build: Callable[[list[ResultRow]], tuple[str, list[Table | Plot]]]) -> Callable[..., Blocks]:
    """A section of one of the paper's workloads."""

    def blocks(path: Path, rows: list[ResultRow]) -> Blocks:
        title, shown = build(rows)
        return title, list(shown)

    return blocks


def _machine(row: ResultRow) -> str:
    return f"{row['processor']}, torch {row['torch']}, commit {row['commit']}"


def _cpu(row: ResultRow) -> dict[int, float]:
    return {sample["round"]: sample["cpu"] for sample in row["samples"]}


def _label(row: ResultRow) -> str:
    return names.shown(row["optimizer"], row["rank"])


def _before_colon(name: str) -> str:
    return name.partition(":")[0]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def _groups(rows: Iterable[ResultRow], key: str) -> dict[Any, list[ResultRow]]:
    groups: dict[Any, list[ResultRow]] = {}
    for row in rows:
        groups.setdefault(row[key], []).append(row)
    return groups


def _kind(keys: str, build: Callable[[Path, list[ResultRow]], Blocks]) -> Kind:
    return Kind(frozenset(keys.split()), build)


KINDS = (
    _kind("learner eta delta average_loss error_rate sketch_size rows seconds", _online),
    _kind("learner rounds bound regret", _counterexample),
    _kind("solver rank numbers error certified lemma_1 microseconds", _sketch),
    _kind("step parameter axis dim share share_low intrinsic_dimension escaped_mass", _spectra),
    _kind("weights tensors groups optimizers", _memory),
    _kind("optimizer rate loss loss_spread accuracy bytes milliseconds curve", _demo),
    _kind("optimizer rank rate loss record", _quality),
    _kind("problem optimizer rank settings samples state_bytes error processor", _step_time),
    _kind("variable size optimizer samples error processor", _scaling),
    _kind("workload scale optimizer trial point ended", _workload(workloads.trials)),
    _kind("workload scale data optimizer seed record", _workload(workloads.finals)),
    _kind("workload preset optimizer seed step validation_loss", _workload(workloads.single)),
)

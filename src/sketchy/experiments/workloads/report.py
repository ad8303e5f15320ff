"""What `sketchy report` shows of the paper's workloads: searches, finals with error bars, single runs."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sketchy.experiments.page import Plot, Table, band, lines
from sketchy.experiments.summary import ResultRow, quartiles
from sketchy.experiments.workloads.record import Look, Record
from sketchy.experiments.workloads.registry import workload
from sketchy.experiments.workloads.workload import Metric, Workload

SHOWN = {
    "adamw": "AdamW",
    "shampoo": "Shampoo",
    "s-shampoo": "S-Shampoo (paper's settings)",
    "sketchy-shampoo": "SketchyShampoo",
    "sketchy-soap": "SketchySOAP",
    "muon": "Muon",
}
# Validation accuracy, with its standard error. The paper has the other curves as pictures only.
PUBLISHED = {"resnet50": {"shampoo": "77.69 (0.03)", "s-shampoo": "77.18 (0.04)", "adamw": "76.76 (0.03)"}}
YARDSTICKS = {
    "resnet50": "AlgoPerf's target: an error of 34.40 % on ImageNet v2.",
    "conformer": "The paper prints no numbers; AlgoPerf's target: a word error rate of 5.30 % on test-clean.",
    "gnn": "The paper prints no numbers; AlgoPerf's target: a test average precision of 0.2687.",
}

Blocks = tuple[str, list[Table | Plot]]


@dataclass(frozen=True)
class Mean:
    """The mean of several seeds, with half the width of its 95 % interval: 1.96 s / √n."""

    value: float
    half: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Mean":
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        return cls(statistics.mean(values), 1.96 * spread / math.sqrt(len(values)))

    def __str__(self) -> str:
        return f"{self.value:.4f} ± {self.half:.4f}"


def finals(rows: Sequence[ResultRow]) -> Blocks:
    """Curves on the test rows, mean ± 1.96 standard errors over seeds, and the final table."""
    first = rows[0]
    found, differs = workload(first["workload"]), about(first)
    by_optimizer = by_optimizer_of(rows)
    caption = f"Means of seeds ± 1.96 standard errors. {YARDSTICKS.get(found.name, '')} {differs}"
    error = error_name(found.metric)
    shown: list[Table | Plot] = [Table(*_final_table(found, by_optimizer), caption)]
    for name, of in (
        (f"test {error}", lambda look: as_error(found.metric, look.test_metric)),
        (f"test loss ({found.loss_name})", lambda look: look.test_loss),
        (f"validation {error}", lambda look: as_error(found.metric, look.validation_metric)),
        ("training loss", lambda look: look.train_loss),
    ):
        shown.append(_bands(by_optimizer, of, title=f"{name}. {differs}", y=name.partition(" (")[0]))
    return f"Finals: {found.name}, {first['scale']} scale, {first['data']}", shown


def by_optimizer_of(rows: Sequence[ResultRow]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for row in rows:
        found.setdefault(row["optimizer"], []).append(Record.from_dict(row["record"]))
    return found


def _final_table(
    found: Workload[Any], by_optimizer: Mapping[str, list[Record]]
) -> tuple[list[str], list[list[str]]]:
    """At the end of the runs, and at the look with the lowest test loss: after it a network overfits."""
    metric, published = found.metric, PUBLISHED.get(found.name, {})
    error = error_name(metric)
    header = ["optimizer", "seeds", f"test {error}", f"validation {metric.short or metric.name}", "test loss"]
    header += ["lowest test loss", "at step", "training loss", "state, MB", "CPU ms a step", "paper"]
    lines = []
    for name, records in by_optimizer.items():
        ended = [record for record in records if record.ended == "finished"]
        cells = [SHOWN.get(name, name), f"{len(ended)} of {len(records)}"]
        if ended:
            last = [record.looks[-1] for record in ended]
            low = [min(record.looks[1:], key=lambda look: look.test_loss or 0.0) for record in ended]
            cells += [
                str(Mean.of([as_error(metric, look.test_metric) for look in last])),
                str(Mean.of([look.validation_metric for look in last])),
                str(Mean.of([look.test_loss or 0.0 for look in last])),
                str(Mean.of([look.test_loss or 0.0 for look in low])),
                f"{statistics.mean(look.step for look in low):,.0f}",
                f"{statistics.mean(look.train_loss or 0.0 for look in last):.4f}",
                f"{ended[0].optimizer_bytes / 1e6:.2f}",
                f"{1e3 * statistics.mean(record.cpu_seconds / record.step for record in ended):.0f}",
            ]
        else:
            cells += [""] * 8
        lines.append([*cells, published.get(name, "")])
    return header, lines


def _bands(
    by_optimizer: Mapping[str, list[Record]],
    of: Callable[[Look], float | None],
    *,
    title: str,
    y: str,
) -> Plot:
    """Mean and 1.96 standard errors over seeds at each look that all of them have."""
    curves, traces = {}, []
    for name, records in by_optimizer.items():
        steps, means = at_looks(records, of)
        shown = SHOWN.get(name, name)
        curves[shown] = (steps, [mean.value for mean in means])
        low, high = [m.value - m.half for m in means], [m.value + m.half for m in means]
        traces.append(band(f"{shown}: ± 1.96 standard errors", steps, low, high))
    drawn = lines(curves, title=title, x="step", y=y, log_y=False)
    return replace(drawn, traces=[*traces, *drawn.traces], owners=[*drawn.owners, *drawn.owners])


def at_looks(records: Sequence[Record], of: Callable[[Look], float | None]) -> tuple[list[int], list[Mean]]:
    """The mean over seeds at each look that all of them have, after the first one."""
    steps, means = [], []
    for looks in zip(*(record.looks for record in records), strict=False):
        values = [value for look in looks if (value := of(look)) is not None and math.isfinite(value)]
        if len(values) == len(records) and looks[0].step > 0:
            steps.append(looks[0].step)
            means.append(Mean.of(values))
    return steps, means


def trials(rows: Sequence[ResultRow]) -> Blocks:
    """What each optimizer spent, what it found, and how its trials are spread."""
    first = rows[0]
    found = workload(first["workload"])
    metric = found.metric
    cells, curves = [], {}
    for name in dict.fromkeys(row["optimizer"] for row in rows):
        own = [row for row in rows if row["optimizer"] == name]
        losses = sorted(row["validation_loss"] for row in own if row["ended"] == "finished")
        hours = sum(row["cpu_seconds"] for row in own) / 3600
        line = [SHOWN.get(name, name), str(len(own)), str(len(own) - len(losses)), f"{hours:.2f}"]
        if losses:
            best = min(own, key=lambda row: row["validation_loss"])
            low, middle, high = quartiles(losses)
            point = ", ".join(f"{key} {_told(value)}" for key, value in best["point"].items())
            line += [f"{losses[0]:.4f}", f"{low:.4f}, {middle:.4f}, {high:.4f}", point]
            shares = [100 * (i + 1) / len(own) for i in range(len(losses))]
            curves[SHOWN.get(name, name)] = (shares, losses)
        cells.append(line + [""] * (7 - len(line)))
    header = ["optimizer", "trials", "failed", "CPU h", "best loss", "quartiles of the loss", "at"]
    caption = f"Validation rows. {found.loss_name}; the metric is {metric.name}. {about(first)}"
    title = "All trials: the share of them that reach a loss"
    plot = lines(curves, title=title, x="share of the trials (%)", y="validation loss")
    name = f"Search: {found.name}, {first['scale']} scale"
    return name, [Table(header, cells, caption, notes=True), plot]


def single(rows: Sequence[ResultRow]) -> Blocks:
    """One run of `sketchy train`."""
    first, last = rows[0], rows[-1]
    found = workload(first["workload"])
    error = error_name(found.metric)
    curves = {}
    for name in ("train_loss", "validation_loss", "test_loss"):
        own = [(row["step"], row[name]) for row in rows if row[name] is not None]
        if own:
            curves[name.replace("_", " ")] = tuple(zip(*own, strict=True))
    header = ["step", "training loss", "validation loss", f"validation {error}", "test loss", f"test {error}"]
    cells = [
        f"{last['step']:,}",
        *(
            "" if value is None else f"{value:.4f}"
            for value in (
                last["train_loss"],
                last["validation_loss"],
                as_error(found.metric, last["validation_metric"]),
                last["test_loss"],
                None if last["test_metric"] is None else as_error(found.metric, last["test_metric"]),
            )
        ),
    ]
    plot = lines(curves, title=f"Losses. {about(first | {'scale': first['preset']})}", x="step", y="loss")  # type: ignore[arg-type]
    optimizer = SHOWN.get(first["optimizer"], first["optimizer"])
    title = f"Runs: {found.name}, {first['preset']} scale, {optimizer}, seed {first['seed']}"
    return title, [Table(header, [cells]), plot]


def about(row: Mapping[str, Any]) -> str:
    """What differs in scale from the paper's run."""
    preset = workload(row["workload"]).presets[row["scale"]]
    own = row.get("data", preset.data)
    changes = [] if own == preset.data else [f"data: {own}"]
    searched = {
        "lr",
        "weight_decay",
        *preset.tuning.ranges,
        *(n for r in preset.tuning.own.values() for n in r),
    }
    for name, value in row.get("settings", {}).items():
        if name not in searched and value not in (None, getattr(preset.scale, name, value)):
            changes.append(f"{name}={value}")
    differs = f"Differs from the paper: {preset.differs}." if preset.differs else "At the paper's scale."
    return f"{differs} But here {', '.join(changes)}." if changes else differs


def error_name(metric: Metric) -> str:
    """What tables and pictures show: lower is better."""
    name = metric.short or metric.name
    return f"1 - {name}" if metric.error else name


def as_error(metric: Metric, value: float | None) -> float:
    if value is None:
        return math.nan
    return 1 - value if metric.error else value


def _told(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.3g}"

"""A picture of the measured step times and of the optimizer state."""

import io
import statistics
from collections.abc import Sequence

from matplotlib.figure import Figure

from benchmarks.speed.step_table import label, number, steps
from sketchy.experiments.plot import COLOURS
from sketchy.experiments.summary import ResultRow

PEER = "#999999"
RANK = 64  # of ours


def picture(rows: Sequence[ResultRow], problem: str) -> bytes:
    """Bars of CPU time and of state, the fastest optimizer on top; ours are coloured."""
    chosen = [
        row
        for row in rows
        if row["problem"] == problem and steps(row) and row["rank"] in (None, RANK) and row["error"] is None
    ]
    times = {label(row): statistics.median(s["cpu"] for s in row["samples"]) for row in chosen}
    states = {label(row): row["state_bytes"] / 1e6 for row in chosen}
    order = sorted(times, key=times.__getitem__, reverse=True)
    ours = {label(row) for row in chosen if row["optimizer"].startswith("sketchy_")}
    colours = [COLOURS[0] if name in ours else PEER for name in order]
    figure = Figure(figsize=(6.4, 1.2 + 0.5 * len(order)), dpi=150, layout="constrained")
    panels = figure.subplots(2)
    for axes, title, values in zip(panels, ("CPU ms a step", "state, MB"), (times, states), strict=True):
        bars = axes.barh(order, [values[name] for name in order], color=colours)
        axes.bar_label(bars, [number(values[name]) for name in order], padding=3, fontsize=8)
        axes.set(xscale="log", title=title)
        axes.margins(x=0.12, y=0.01)
        axes.spines[["top", "right"]].set_visible(False)
    content = io.BytesIO()
    figure.savefig(content, format="png", metadata={"Software": None})
    return content.getvalue()

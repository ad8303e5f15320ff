"""A picture of loss against learning rate, with a panel for each task."""

import io
import math
import statistics
from collections.abc import Mapping

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from sketchy.experiments.plot import COLOURS

WIDEST = 2  # panels side by side: pictures are also read on phones

Curves = Mapping[str, tuple[Mapping[float, float], float | None]]  # loss by rate, and the best rate


def rate_sweeps(panels: Mapping[str, Curves]) -> bytes:
    """A PNG. The best rate of each optimizer is a filled dot; a rate that diverged is a cross at the top."""
    columns = min(WIDEST, len(panels))
    rows = math.ceil(len(panels) / columns)
    figure = Figure(figsize=(3.5 * columns, 0.9 + 3 * rows), dpi=150, layout="constrained")
    names = sorted({name for curves in panels.values() for name in curves})
    for place, (task, curves) in enumerate(panels.items(), 1):
        axes = figure.add_subplot(rows, columns, place)
        finite = [loss for curve, _ in curves.values() for loss in curve.values() if math.isfinite(loss)]
        top = min(max(finite), 2.5 * statistics.median(finite))  # or one high loss would flatten the rest
        for name, (curve, best) in curves.items():
            colour = COLOURS[names.index(name) % len(COLOURS)]
            rates = sorted(curve)
            losses = [min(curve[rate], top) for rate in rates]
            axes.plot(rates, losses, "o-", ms=5, mfc="white", color=colour, label=name)
            if best is not None:
                axes.plot([best], [min(curve[best], top)], "o", ms=7, color=colour)
            lost = [rate for rate in rates if curve[rate] > top]
            axes.plot(lost, [top] * len(lost), "x", ms=8, color=colour)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_locator(NullLocator())
        if top > 2 * min(finite):
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_locator(NullLocator())
        axes.set(title=task, xlabel="learning rate", ylabel="validation loss")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    handles = {
        label: handle
        for axes in figure.axes
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles, loc="outside lower center", ncols=WIDEST, frameon=False)
    content = io.BytesIO()
    figure.savefig(content, format="png", metadata={"Software": None})
    return content.getvalue()

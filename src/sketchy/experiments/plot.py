"""Pictures of runs, as PNG bytes."""

import io
import textwrap
from collections.abc import Mapping, Sequence, Set
from typing import Any

from matplotlib.figure import Figure  # not pyplot: it keeps figures in memory and looks for a display
from matplotlib.ticker import LogLocator, NullLocator

# also distinct for colour-blind readers
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")
LOG_FROM = 4.0  # the axis is logarithmic if the values span more than this factor

Curve = tuple[Sequence[float], Sequence[float]]


def average_losses(curves: Mapping[str, Curve], *, title: str) -> bytes:
    """Average loss so far against the share of the data seen; the first curve is drawn on top."""
    figure, axes = _figure(title)
    shown = []
    for depth, (name, (shares, losses)) in enumerate(curves.items()):
        percent, label = [100 * share for share in shares], f"{name}  {losses[-1]:.4g}"
        axes.plot(percent, losses, label=label, zorder=3 - depth / len(curves), **_style(name, curves))
        shown += [loss for loss in losses if 0 < loss < float("inf")]
    if shown and max(shown) > LOG_FROM * min(shown):
        axes.set_yscale("log")
        if max(shown) < 30 * min(shown):  # less than two powers of ten: label the values between
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_locator(NullLocator())
    axes.set_xlim(0, 100)
    axes.set_xlabel("share of the data seen (%)")
    axes.set_ylabel("average loss so far")
    axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return _png(figure)


def powers(curves: Mapping[str, Curve], *, title: str, x: str, y: str) -> bytes:
    """Curves on two log axes, where a power law is a straight line."""
    figure, axes = _figure(title)
    for name, (xs, ys) in curves.items():
        axes.loglog(xs, ys, marker="o", markersize=4, label=name, **_style(name, curves))
    ticks = sorted({value for xs, _ in curves.values() for value in xs})
    axes.set_xticks(ticks, labels=[f"{tick:,g}" for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.legend(frameon=False)
    return _png(figure)


def training(curves: Mapping[str, Curve], *, title: str, y: str) -> bytes:
    """Loss, on a log axis, against training steps."""
    figure, axes = _figure(title)
    for name, (steps, losses) in curves.items():
        axes.plot(steps, losses, label=f"{name}: {losses[-1]:.3f}", **_style(name, curves))
    axes.set_yscale("log")
    axes.set_xlim(left=0)
    axes.set_xlabel("step")
    axes.set_ylabel(y)
    axes.legend(frameon=False)
    return _png(figure)


def bands(panels: Mapping[str, Mapping[str, tuple[Curve, Sequence[float]]]], *, title: str, x: str) -> bytes:
    """Panels side by side, of curves with the half widths of their bands. A name has one colour."""
    figure = Figure(figsize=(10, 4.2), dpi=150, layout="constrained")
    figure.suptitle(textwrap.fill(title, 120), fontsize=10, ha="left", x=0.01)
    styles: Mapping[str, Curve] = {name: ((), ()) for curves in panels.values() for name in curves}
    for axes, (y, curves) in zip(
        figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True
    ):
        for name, ((xs, ys), halves) in curves.items():
            style = _style(name, styles)
            low, high = ([v + sign * h for v, h in zip(ys, halves, strict=True)] for sign in (-1, 1))
            axes.plot(xs, ys, label=name, **style)
            axes.fill_between(xs, low, high, color=style["color"], alpha=0.2, linewidth=0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
    axes.legend(frameon=False, fontsize=8)
    return _png(figure)


def bars(values: Mapping[str, float], *, title: str, x: str, notes: Sequence[str], strong: Set[str]) -> bytes:
    """Bars on a log axis, the largest on top, each with a note at its end; ``strong`` ones are coloured."""
    figure, axes = _figure(title, line=48)  # names take the left part of the picture
    noted = sorted(zip(values.items(), notes, strict=True), key=lambda bar: bar[0][1])
    for y, ((name, value), note) in enumerate(noted):
        axes.barh(y, value, color=COLOURS[0] if name in strong else COLOURS[-1])
        axes.annotate(
            note,
            (value, y),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            bbox={"boxstyle": "square,pad=0.1", "color": "white"},  # over the dashed line
        )
    axes.set_yticks(range(len(noted)), labels=[name for (name, _), _ in noted], fontsize=8)
    axes.set_xscale("log")
    smallest, largest = min(values.values()), max(values.values())
    axes.set_xlim(smallest / 2, largest * 2 * (2 * largest / smallest) ** 0.2)  # room for the notes
    axes.axvline(1, color="black", linewidth=0.8, linestyle="--")
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(textwrap.fill(x, 48))
    return _png(figure)


def _style(name: str, curves: Mapping[str, Curve]) -> dict[str, str]:
    """A style by name, so that a learner has the same colour on every data set."""
    lap, colour = divmod(sorted(curves).index(name), len(COLOURS))
    return {"color": COLOURS[colour], "linestyle": ("-", "--", ":")[lap % 3]}


def _figure(title: str, *, line: int = 80) -> tuple[Figure, Any]:
    figure = Figure(figsize=(7, 4.6), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(textwrap.fill(title, line), fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    return figure, axes


def _png(figure: Figure) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, format="png", metadata={"Software": None})
    return content.getvalue()

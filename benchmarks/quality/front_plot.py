"""Draw loss against cost, with a panel for each cost. The ranks of one optimizer are joined by a line.

Panels lie below each other, and letters are large: pictures are also read on phones.
"""

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator
from matplotlib.transforms import Bbox

from sketchy.experiments.names import shown
from sketchy.experiments.plot import COLOURS

PEER = "#333333"
REFERENCE = "adamw"
HEADROOM = 1.0  # the axis ends this share of (AdamW's loss - the best loss) above AdamW's loss
LOG_FROM = 1.8  # the axis is logarithmic if the highest loss is more than this times the lowest
DIRECTIONS = [
    (math.cos(a * math.pi / 8), math.sin(a * math.pi / 8)) for a in (0, 8, 4, 12, 2, 6, 14, 10, 1, 7)
]
WIDTH, HEIGHT = 6.4, 5.3  # inches, of a panel
LETTERS = 9  # of a label, in typographic points
WIDE = 100.0  # if the highest cost is more than this times the lowest, the axis has fewer numbers
LINE_STEP = 4  # pixels
DISTANCES = (7, 12, 18, 26, 36, 48, 64, 84, 108)  # of a label from its point, in typographic points


@dataclass(frozen=True)
class Point:
    """An optimizer at a rank, in one panel."""

    optimizer: str
    rank: int | None
    ours: bool
    cost: float
    loss: float
    spread: float  # standard deviation over seeds


@dataclass(frozen=True)
class Name:
    """The label of a point."""

    text: str
    point: tuple[float, float]
    bar: float  # half the length of its error bar
    colour: str


def draw(panels: Mapping[str, Sequence[Point]], title: str, height: float = HEIGHT) -> bytes:
    """The picture as PNG."""
    content = io.BytesIO()
    figure(panels, title, height).savefig(content, format="png", metadata={"Software": None})
    return content.getvalue()


def figure(panels: Mapping[str, Sequence[Point]], title: str, height: float = HEIGHT) -> Figure:
    """A loss far above the reference is drawn at the upper edge as an arrow, with its number."""
    page = Figure(figsize=(WIDTH, height * len(panels)), dpi=150, layout="constrained")
    FigureCanvasAgg(page)  # needed for the size of a text
    page.suptitle(title, x=0.01, ha="left", fontsize=11)
    everyone = [point for points in panels.values() for point in points]
    top = ceiling(everyone)
    ours = sorted({point.optimizer for point in everyone if point.ours})
    drawn = []
    for place, (cost, points) in enumerate(panels.items(), 1):
        axes = page.add_subplot(len(panels), 1, place)
        names = _panel(axes, points, top, {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(ours)})
        axes.set(xlabel=cost, ylabel="validation loss")
        drawn.append((axes, names))
    lines = drawn[0][0].get_legend_handles_labels()  # the same in all panels
    if lines[0]:
        page.legend(*lines, loc="outside lower center", ncols=2, frameon=False, fontsize=LETTERS)
    page.canvas.draw()
    for axes, names in drawn:
        _place(axes, names)
    return page


def ceiling(points: Sequence[Point]) -> float:
    """The highest loss that the axis shows: one optimizer that doesn't train would flatten the rest."""
    losses = sorted(point.loss for point in points)
    reference = next((point.loss for point in points if point.optimizer == REFERENCE), losses[-1])
    limit = reference + HEADROOM * (reference - losses[0])
    return max(loss for loss in losses if loss <= max(limit, losses[0]))


def _panel(axes: Any, points: Sequence[Point], top: float, colours: Mapping[str, str]) -> list[Name]:
    """Draw everything but the labels, which are returned: they are placed when all else is drawn."""
    axes.set_xscale("log")
    lowest = min(point.loss for point in points)
    if top > LOG_FROM * lowest:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_locator(NullLocator())
    costs = [point.cost for point in points]
    wide = max(costs) > WIDE * min(costs)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if wide else (1, 2, 3, 5)))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_locator(NullLocator())
    names = []
    for optimizer, colour in colours.items():
        mine = sorted((p for p in points if p.optimizer == optimizer), key=lambda p: p.rank or 0)
        label = f"{shown(optimizer)}, by rank" if len(mine) > 1 else None
        line = {"color": colour, "lw": 1.2, "label": label, "zorder": 3}
        axes.plot([p.cost for p in mine], [min(p.loss, top) for p in mine], "-", **line)
    for point in points:
        colour, off = colours.get(point.optimizer, PEER), point.loss > top
        marker = "^" if off else "o" if point.ours else "s"
        spread = None if off or not point.spread else point.spread
        style = {"color": colour, "ms": 5, "capsize": 2, "lw": 1, "zorder": 4}
        axes.errorbar([point.cost], [min(point.loss, top)], yerr=spread, fmt=marker, **style)
        name = _named(point, points)
        text = f"{name}: {point.loss:.3g}" if off else name
        names.append(Name(text, (point.cost, min(point.loss, top)), spread or 0.0, colour))
    for reference in (p for p in points if p.optimizer == REFERENCE and p.loss <= top):
        axes.axhline(reference.loss, color=PEER, lw=0.8, ls=":", zorder=1)
    axes.margins(x=0.15, y=0.17)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    return names


def _named(point: Point, points: Sequence[Point]) -> str:
    """The rank alone, if a line joins it to other ranks: then the legend has the name."""
    if sum(other.optimizer == point.optimizer for other in points) > 1:
        return str(point.rank)
    return shown(point.optimizer, point.rank).replace(" (", "\n(").replace(", rank", "\nrank")


def _place(axes: Any, names: Sequence[Name]) -> None:
    """Put each label at the nearest free place around its point."""
    renderer, pixel = axes.figure.canvas.get_renderer(), axes.figure.dpi / 72
    bars = [[(x, y - name.bar), (x, y + name.bar)] for name in names for x, y in (name.point,)]
    taken = [Bbox(axes.transData.transform(bar)).padded(4 * pixel) for bar in bars]
    taken += [Bbox([place, place]).padded(pixel) for place in _line_pixels(axes)]
    inside = axes.get_window_extent(renderer)
    for name in sorted(names, key=lambda name: -len(name.text)):
        for x, y in _offsets():
            label = axes.annotate(
                name.text,
                name.point,
                (x, y),
                textcoords="offset points",
                fontsize=LETTERS,
                color=name.colour,
                ha="left" if x > 1 else "right" if x < -1 else "center",
                va="bottom" if y > 1 else "top" if y < -1 else "center",
            )
            box = label.get_window_extent(renderer)
            if (
                not any(box.overlaps(other) for other in taken)
                and inside.containsx(box.x0)
                and (inside.containsx(box.x1) and box.y0 > inside.y0)
            ):
                break
            label.remove()
        else:
            label = axes.annotate(name.text, name.point, fontsize=LETTERS, color=name.colour)  # no free place
            box = label.get_window_extent(renderer)
        taken.append(box)
        if math.hypot(*label.xyann) > DISTANCES[1]:
            axes.annotate(
                "", name.point, label.xyann, textcoords="offset points",
                arrowprops={"arrowstyle": "-", "lw": 0.5, "color": name.colour, "shrinkA": 0, "shrinkB": 3},
            )  # fmt: skip


def _offsets() -> Iterator[tuple[float, float]]:
    for distance in DISTANCES:
        for x, y in DIRECTIONS:
            yield distance * x, distance * y


def _line_pixels(axes: Any) -> Iterator[tuple[float, float]]:
    """Places along the lines of the panel, a few pixels apart."""
    for line in axes.get_lines():
        if line.get_linestyle() == "None":
            continue
        corners = line.get_transform().transform(line.get_xydata())
        for (x0, y0), (x1, y1) in pairwise(corners):
            count = 1 + int(math.hypot(x1 - x0, y1 - y0) / LINE_STEP)
            for i in range(count + 1):
                yield x0 + (x1 - x0) * i / count, y0 + (y1 - y0) * i / count

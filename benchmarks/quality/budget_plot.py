"""A picture of ranks over training: a panel for each weight, a line for each axis."""

import io
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

from sketchy.experiments.plot import COLOURS

_SHOWN = {"left": "rows", "right": "columns"}


@dataclass(frozen=True)
class Line:
    """The ranks of one axis of a weight."""

    weight: str
    axis: str
    steps: list[int]
    ranks: list[int]

    def add(self, step: int, rank: int) -> None:
        self.steps.append(step)
        self.ranks.append(rank)


def draw(lines: Sequence[Line], equal: int, title: str) -> bytes:
    """A PNG. A dotted line is the equal rank of the same bytes."""
    weights = list(dict.fromkeys(line.weight for line in lines))
    width = 2 if len(weights) > 4 else 1
    height = -(-len(weights) // width)
    page = Figure(figsize=(8, 1 + 1.6 * height), layout="constrained")
    panels = page.subplots(height, width, sharex=True, sharey=True, squeeze=False).flat
    page.suptitle(title, fontsize=11)
    most = max(max(line.ranks) for line in lines)
    for axes, weight in zip(panels, weights, strict=False):
        for line in (line for line in lines if line.weight == weight):
            colour = COLOURS[line.axis == "right"]
            label = _SHOWN.get(line.axis, line.axis)
            axes.step(line.steps, line.ranks, where="post", color=colour, label=label, lw=1.8)
        axes.axhline(equal, color="black", lw=0.8, ls=":", label="equal ranks")
        axes.set_title(weight, fontsize=9)
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_locator(FixedLocator([4, 8, 16, 32, 64, 128]))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(ScalarFormatter())
        axes.set_ylim(3, 1.5 * most)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    for axes in list(panels)[len(weights) :]:
        axes.set_visible(False)
    first = page.axes[0]
    first.legend(fontsize=8, frameon=False, ncols=3, loc="upper right")
    page.supxlabel("step", fontsize=9)
    page.supylabel("rank", fontsize=9)
    content = io.BytesIO()
    page.savefig(content, format="png", dpi=110)
    return content.getvalue()

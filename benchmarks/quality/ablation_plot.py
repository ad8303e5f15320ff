"""A picture of what changes are worth: a panel for each task, a row for each change."""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sketchy.experiments.plot import COLOURS


@dataclass(frozen=True)
class Dot:
    """The mean difference of a change, and its standard error."""

    change: str
    mean: float
    error: float


def draw(panels: Mapping[str, Sequence[Dot]], changes: Sequence[str], title: str) -> bytes:
    """A PNG. The first change is on top; right of the line is worse than with all changes on."""
    content = io.BytesIO()
    figure(panels, changes, title).savefig(content, format="png", metadata={"Software": None})
    return content.getvalue()


def figure(panels: Mapping[str, Sequence[Dot]], changes: Sequence[str], title: str) -> Figure:
    page = Figure(figsize=(2.2 + 2.6 * len(panels), 1.3 + 0.32 * len(changes)), dpi=130, layout="constrained")
    page.suptitle(title, x=0.01, ha="left", fontsize=10)
    every = page.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, (task, dots) in zip(every, panels.items(), strict=True):
        places = [changes.index(dot.change) for dot in dots]
        means, errors = [dot.mean for dot in dots], [dot.error for dot in dots]
        axes.errorbar(means, places, xerr=errors, fmt="o", ms=5, capsize=2, color=COLOURS[0])
        axes.axvline(0, color="black", lw=0.8, ls=":")
        axes.set_title(task, fontsize=10)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.margins(x=0.1)
        axes.set_ylim(len(changes) - 0.5, -0.5)
        axes.set_yticks(range(len(changes)), labels=changes)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    return page

"""Build one HTML page of tables and interactive plots. It works offline and needs no other files."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from sketchy.experiments import looks

FEW = 6  # an axis with so many values or fewer has its ticks there
LOG_FROM = 4.0  # an axis is logarithmic if the largest value is more than this times the smallest

Curve = tuple[Sequence[float], Sequence[float]]


@dataclass(frozen=True)
class Table:
    """A table. The first column is aligned left, and so is the last one if it has ``notes``."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    notes: bool = False


@dataclass(frozen=True)
class Plot:
    """Traces and axes for plotly.js; the page adds colours by owner, height and fonts."""

    title: str
    traces: list[dict[str, Any]]
    x: dict[str, Any]
    y: dict[str, Any]
    bars: int = 0  # number of horizontal bars, which determines the height
    owners: Sequence[str] = ()  # of the traces, or of the bars: see `looks`


@dataclass(frozen=True)
class Section:
    """The contents of one file."""

    title: str
    source: str
    blocks: Sequence[Table | Plot]

    @property
    def plots(self) -> list[Plot]:
        return [block for block in self.blocks if isinstance(block, Plot)]

    def html(self, name: str, heading: str, numbers: Mapping[str, int]) -> str:
        """``heading``: its one heading, as HTML. ``numbers``: those of the owners on the whole page."""
        blocks = "".join(
            _table(block) if isinstance(block, Table) else _plot(block, numbers) for block in self.blocks
        )
        source = f"<p class=source><code>{escape(self.source)}</code></p>"
        return f'<section id="{name}">{heading}{source}{blocks}</section>\n'


@dataclass(frozen=True)
class Group:
    """Sections of one kind, which follow each other under one heading."""

    title: str
    sections: Sequence[Section]
    first: int  # number of the first section on the page

    @classmethod
    def all_of(cls, sections: Iterable[Section]) -> "list[Group]":
        kinds: dict[str, list[Section]] = {}
        for section in sections:
            kinds.setdefault(section.title.partition(":")[0], []).append(section)
        groups: list[Group] = []
        for title, own in kinds.items():
            groups.append(cls(title, own, sum(len(group.sections) for group in groups)))
        return groups

    @property
    def names(self) -> list[str]:
        """Of the sections, all different: what follows the colon, and where this is not enough the file."""
        if len(self.sections) == 1:
            return [self.sections[0].title]
        found = [section.title.partition(": ")[2] for section in self.sections]
        for part in (lambda path: path.stem, str):
            found = [
                " · ".join(filter(None, (name, part(Path(section.source))))) if twice else name
                for name, section, twice in zip(found, self.sections, _repeated(found), strict=True)
            ]
        return found

    def links(self) -> str:
        links = [
            f'<a href="#section-{self.first + i}">{escape(name)}</a>' for i, name in enumerate(self.names)
        ]
        if len(links) == 1:
            return f"<li>{links[0]}</li>"
        inner = "".join(f"<li>{link}</li>" for link in links)
        return f"<li>{escape(self.title)}<ul>{inner}</ul></li>"

    def html(self, numbers: Mapping[str, int]) -> str:
        several = len(self.sections) > 1
        tag, before = ("h3", f"<h2>{escape(self.title)}</h2>\n") if several else ("h2", "")
        return before + "".join(
            section.html(f"section-{self.first + i}", f"<{tag}>{escape(name)}</{tag}>", numbers)
            for i, (section, name) in enumerate(zip(self.sections, self.names, strict=True))
        )


def _repeated(names: Sequence[str]) -> list[bool]:
    return [not name or Counter(names)[name] > 1 for name in names]


@dataclass(frozen=True)
class Page:
    """All sections, and the files that are not shown."""

    sections: Sequence[Section]
    not_understood: Mapping[str, str] = field(default_factory=dict)  # the reason, by file

    def html(self, command: str, *, version: str = "", date: str = "") -> str:
        """The whole page, with the command that made it. Equal contents give an equal page."""
        from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

        here = files("sketchy.experiments")
        style, script = ((here / f"page.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
        links = "".join(map(Group.links, Group.all_of(self.sections)))
        made = ", ".join(filter(None, (f"sketchy {version}".strip(), date)))
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f'<link rel="icon" href="data:,"><title>sketchy report</title>\n<style>{style}</style></head>\n'
            f"<body><header><h1>sketchy report</h1>"
            f"<p class=source>{escape(made)}: <code>{escape(command)}</code></p>"
            f"<nav><ul>{links}</ul></nav></header>\n<main>{self.body()}</main>\n{self._others()}"
            f"<script>{get_plotlyjs()}</script>\n<script>{script}</script>\n</body></html>\n"
        )

    def body(self) -> str:
        """All sections, by kind."""
        numbers = looks.numbers(plot.owners for section in self.sections for plot in section.plots)
        return "".join(group.html(numbers) for group in Group.all_of(self.sections))

    def _others(self) -> str:
        if not self.not_understood:
            return ""
        lines = "".join(
            f"<li><code>{escape(file)}</code>: {escape(why)}</li>"
            for file, why in self.not_understood.items()
        )
        return f'<section id="not-understood"><h2>Files that are not shown</h2><ul>{lines}</ul></section>\n'


def lines(
    curves: Mapping[str, Curve],
    *,
    title: str,
    x: str,
    y: str,
    log_x: bool = False,
    log_y: bool | None = None,
    owner: Callable[[str], str] = looks.owner,
) -> Plot:
    """A line for each name; those of one owner have one colour. If ``log_y`` is None, the values decide."""
    look = {"type": "scatter", "mode": "lines+markers", "marker": {"size": 5}}
    traces = [
        {**look, "name": escape(name, quote=False), "x": list(xs), "y": list(ys)}
        for name, (xs, ys) in curves.items()
    ]
    places, heights = ([value for curve in curves.values() for value in curve[i]] for i in (0, 1))
    across = axis(x, log=log_x) | (at_values(places) if log_x else {})
    up = axis(y, log=apart(heights) if log_y is None else log_y)
    return Plot(title, traces, across, up, owners=[owner(name) for name in curves])


def points(places: Mapping[str, Mapping[str, tuple[float, float]]], *, title: str, x: str, y: str) -> Plot:
    """Named points on a logarithmic x axis. Those of one group are joined from left to right."""
    traces: list[dict[str, Any]] = []
    heights: list[float] = []
    for group, named in places.items():
        order = sorted(named, key=named.__getitem__)
        xs, ys = zip(*(named[name] for name in order), strict=True)
        text = {
            "text": [escape(name, quote=False) for name in order],
            "hovertemplate": "%{text}<br>%{x}, %{y}",
        }
        look = {"type": "scatter", "mode": "lines+markers", "marker": {"size": 9}}
        traces.append({**look, "name": escape(group, quote=False), **text, "x": xs, "y": ys})
        heights += ys
    owners = [looks.owner(group) for group in places]
    return Plot(title, traces, axis(x, log=True), axis(y, log=apart(heights)), owners=owners)


def bars(
    values: Mapping[str, float], *, title: str, x: str, owner: Callable[[str], str] = looks.owner
) -> Plot:
    """Horizontal bars on a logarithmic axis, the largest on top."""
    ordered = sorted(values, key=values.__getitem__)
    trace = {
        "type": "bar",
        "orientation": "h",
        "showlegend": False,
        "y": [escape(name, quote=False).replace(", ", "<br>", 1) for name in ordered],
        "x": [values[name] for name in ordered],
    }
    owners = [owner(name) for name in ordered]
    return Plot(title, [trace], axis(x, log=True), {"automargin": True}, bars=len(ordered), owners=owners)


def band(name: str, xs: Sequence[float], low: Sequence[float], high: Sequence[float]) -> dict[str, Any]:
    """The area between two curves."""
    outline = {"x": [*xs, *reversed(xs)], "y": [*high, *reversed(low)], "name": escape(name, quote=False)}
    fill = {"fill": "toself", "line": {"width": 0}, "mode": "lines"}
    return {"type": "scatter", "hoverinfo": "skip", **outline, **fill}


def axis(title: str, *, log: bool = False) -> dict[str, Any]:
    return {
        "title": {"text": escape(title, quote=False)},
        "type": "log" if log else "linear",
        "automargin": True,
        "exponentformat": "power",  # and not 1µ and 10k
        "separatethousands": True,
    }


def at_values(values: Iterable[float]) -> dict[str, Any]:
    """Ticks of an axis at its values, such as ranks, if they are few."""
    few = sorted({value for value in values if math.isfinite(value)})
    if len(few) > FEW:
        return {}
    return {"tickmode": "array", "tickvals": few, "ticktext": [f"{value:,.10g}" for value in few]}


def apart(values: Iterable[float]) -> bool:
    """Whether values need a logarithmic axis: all are positive, and they are far apart."""
    shown = [value for value in values if math.isfinite(value)]
    return bool(shown) and min(shown) > 0 and max(shown) > LOG_FROM * min(shown)


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in table.header)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows
    )
    caption = f"<p class=caption>{escape(table.caption)}</p>" if table.caption else ""
    content = f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody>"
    kind = " class=notes" if table.notes else ""
    return f"<div class=scroll tabindex=0><table{kind}>{content}</table></div>{caption}"


def _plot(plot: Plot, numbers: Mapping[str, int]) -> str:
    traces = plot.traces
    if plot.bars:
        colours = [looks.colour(numbers[owner]) for owner in plot.owners]
        traces = [trace | {"marker": {"color": colours}} for trace in traces]
    elif plot.owners:
        traces = looks.dressed(traces, plot.owners, numbers)
    figure = {"data": traces, "x": plot.x, "y": plot.y, "bars": plot.bars}
    content = json.dumps(_finite(figure), allow_nan=False).replace(
        "<", "\\u003c"
    )  # no tag can end the script
    return (
        f"<figure><figcaption>{escape(plot.title)}</figcaption><div class=plot></div><ul class=legend></ul>"
        f'<script type="application/json">{content}</script></figure>'
    )


def _finite(value: Any) -> Any:
    """None for infinite values, which JSON does not have: these points are left out."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

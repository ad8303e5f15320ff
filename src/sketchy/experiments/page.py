"""Build one HTML page of tables and interactive plots. It works offline and needs no other files."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from typing import Any

# for colour-blind readers, too, on white and on black
COLOURS = ("#2585c7", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#888888")
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
    """Traces and axes for plotly.js; the page adds colours, height and fonts."""

    title: str
    traces: list[dict[str, Any]]
    x: dict[str, Any]
    y: dict[str, Any]
    bars: int = 0  # number of horizontal bars, which determines the height


@dataclass(frozen=True)
class Section:
    """The contents of one file."""

    title: str
    source: str
    blocks: Sequence[Table | Plot]

    def html(self, name: str) -> str:
        blocks = "".join(_table(block) if isinstance(block, Table) else _plot(block) for block in self.blocks)
        heading = f"<h2>{escape(self.title)}</h2><p class=source><code>{escape(self.source)}</code></p>"
        return f'<section id="{name}">{heading}{blocks}</section>\n'


@dataclass(frozen=True)
class Page:
    """All sections, and the files that are not shown."""

    sections: Sequence[Section]
    not_understood: Mapping[str, str] = field(default_factory=dict)  # the reason, by file

    def html(self, footer: str) -> str:
        """The whole page. Equal contents give an equal page."""
        from plotly.offline import get_plotlyjs  # type: ignore[import-untyped]

        here = files("sketchy.experiments")
        style, script = ((here / f"page.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
        names = [f"section-{number}" for number in range(len(self.sections))]
        links = "".join(
            f'<li><a href="#{name}">{escape(section.title)}</a></li>'
            for name, section in zip(names, self.sections, strict=True)
        )
        body = "".join(map(Section.html, self.sections, names))
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f'<link rel="icon" href="data:,"><title>sketchy report</title>\n<style>{style}</style></head>\n'
            f"<body><header><h1>sketchy report</h1><nav><ul>{links}</ul></nav></header>\n"
            f"<main>{body}</main>\n{self._others()}<footer>{escape(footer)}</footer>\n"
            f"<script>{get_plotlyjs()}</script>\n<script>{script}</script>\n</body></html>\n"
        )

    def _others(self) -> str:
        if not self.not_understood:
            return ""
        lines = "".join(
            f"<li><code>{escape(file)}</code>: {escape(why)}</li>"
            for file, why in self.not_understood.items()
        )
        return f'<section id="not-understood"><h2>Files that are not shown</h2><ul>{lines}</ul></section>\n'


def lines(
    curves: Mapping[str, Curve], *, title: str, x: str, y: str, log_x: bool = False, log_y: bool | None = None
) -> Plot:
    """A line for each name. If ``log_y`` is None, the values decide."""
    traces = [
        {"type": "scatter", "mode": "lines+markers", "marker": {"size": 4}, "name": escape(name, quote=False)}
        | _colour(number)
        | {"x": list(xs), "y": list(ys)}
        for number, (name, (xs, ys)) in enumerate(curves.items())
    ]
    values = [value for _, ys in curves.values() for value in ys]
    return Plot(title, traces, axis(x, log=log_x), axis(y, log=apart(values) if log_y is None else log_y))


def points(places: Mapping[str, Mapping[str, tuple[float, float]]], *, title: str, x: str, y: str) -> Plot:
    """Named points on a logarithmic x axis. Those of one group are joined from left to right."""
    traces: list[dict[str, Any]] = []
    heights: list[float] = []
    for number, (group, named) in enumerate(places.items()):
        order = sorted(named, key=named.__getitem__)
        xs, ys = zip(*(named[name] for name in order), strict=True)
        symbol = ("circle", "diamond", "square")[number // len(COLOURS) % 3]
        text = {
            "text": [escape(name, quote=False) for name in order],
            "hovertemplate": "%{text}<br>%{x}, %{y}",
        }
        look = {"type": "scatter", "mode": "lines+markers", "marker": {"size": 9, "symbol": symbol}}
        traces.append(
            {**look, "name": escape(group, quote=False), **text, **_colour(number), "x": xs, "y": ys}
        )
        heights += ys
    return Plot(title, traces, axis(x, log=True), axis(y, log=apart(heights)))


def bars(values: Mapping[str, float], *, title: str, x: str, strong: Iterable[str]) -> Plot:
    """Horizontal bars on a logarithmic axis, the largest on top; ``strong`` ones are coloured."""
    ordered = sorted(values, key=values.__getitem__)
    ours = set(strong)
    trace = {
        "type": "bar",
        "orientation": "h",
        "showlegend": False,
        "y": [escape(name, quote=False).replace(", ", "<br>", 1) for name in ordered],
        "x": [values[name] for name in ordered],
        "marker": {"color": [COLOURS[0] if name in ours else COLOURS[-1] for name in ordered]},
    }
    return Plot(title, [trace], axis(x, log=True), {"automargin": True}, bars=len(ordered))


def band(
    name: str, number: int, xs: Sequence[float], low: Sequence[float], high: Sequence[float]
) -> dict[str, Any]:
    """The area between two curves, in the colour of the line with the same number."""
    colour = COLOURS[number % len(COLOURS)]
    outline = {"x": [*xs, *reversed(xs)], "y": [*high, *reversed(low)], "name": escape(name, quote=False)}
    fill = {"fill": "toself", "fillcolor": f"{colour}33", "line": {"width": 0}, "mode": "lines"}
    return {"type": "scatter", "hoverinfo": "skip", **outline, **fill}


def axis(title: str, *, log: bool = False) -> dict[str, Any]:
    return {
        "title": {"text": escape(title, quote=False)},
        "type": "log" if log else "linear",
        "automargin": True,
    }


def apart(values: Iterable[float]) -> bool:
    """Whether values need a logarithmic axis: all are positive, and they are far apart."""
    shown = [value for value in values if math.isfinite(value)]
    return bool(shown) and min(shown) > 0 and max(shown) > LOG_FROM * min(shown)


def _colour(number: int) -> dict[str, Any]:
    lap, colour = divmod(number, len(COLOURS))
    return {"line": {"color": COLOURS[colour], "dash": ("solid", "dash", "dot")[lap % 3]}}


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in table.header)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows
    )
    caption = f"<p class=caption>{escape(table.caption)}</p>" if table.caption else ""
    content = f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody>"
    kind = " class=notes" if table.notes else ""
    return f"<div class=scroll tabindex=0><table{kind}>{content}</table></div>{caption}"


def _plot(plot: Plot) -> str:
    figure = {"data": plot.traces, "x": plot.x, "y": plot.y, "bars": plot.bars}
    content = json.dumps(_finite(figure), allow_nan=False).replace(
        "<", "\\u003c"
    )  # no tag can end the script
    return (
        f"<figure><figcaption>{escape(plot.title)}</figcaption><div class=plot></div>"
        f'<script type="application/json">{content}</script></figure>'
    )


def _finite(value: Any) -> Any:
    """None for infinite values, which JSON does not have: these points are left out."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

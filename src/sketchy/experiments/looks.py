"""How lines, points and bars of the report look: a learner or optimizer has one colour on the whole page."""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# for colour-blind readers, too, on white and on black
COLOURS = ("#2585c7", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6bb1", "#888888")
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "x", "star")  # when all colours are taken
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")  # lines of one owner

# The same on all pages. Learners and optimizers never meet in one plot.
FIXED = {
    **{"SketchySOAP": 0, "AdamW": 1, "SketchyShampoo": 2, "Muon": 3, "Shampoo": 4, "SOAP": 5},
    **{"s-adagrad": 0, "adagrad": 1, "ada-fd": 2, "fd-son": 3, "rfd-son": 4, "ogd": 5},
}


def owner(name: str) -> str:
    """The learner or optimizer that a name stands for, at any rank.

    >>> owner("SketchySOAP, 8 bits, rank 32"), owner("SOAP, dense (ours)"), owner("ogd")
    ('SketchySOAP, 8 bits', 'SOAP', 'ogd')
    """
    return re.sub(r", rank \d+$|, dense \(ours\)$", "", name)


def numbers(plots: Iterable[Iterable[str]]) -> dict[str, int]:
    """A number for each owner in any plot: those of one plot differ, and low ones are taken first.

    >>> numbers([["mine", "AdamW"], ["yours", "mine"], ["yours"]])
    {'AdamW': 1, 'mine': 0, 'yours': 1}
    """
    meets: dict[str, set[str]] = {}
    for owners in map(list, plots):
        for each in owners:
            meets.setdefault(each, set()).update(owners)
    found = {each: FIXED[each] for each in meets if each in FIXED}
    for each in meets:
        if each not in found:
            taken = {found.get(other) for other in meets[each]}
            found[each] = next(number for number in itertools.count() if number not in taken)
    return found


def dressed(
    traces: Sequence[dict[str, Any]], owners: Sequence[str], found: Mapping[str, int]
) -> list[dict[str, Any]]:
    """The traces with their looks. Lines of one owner have one colour, and other dashes by rank."""
    lines = [i for i, trace in enumerate(traces) if "fill" not in trace]
    by_rank = sorted(lines, key=lambda i: _rank(str(traces[i].get("name", ""))))
    variants = {i: [j for j in by_rank if owners[j] == owners[i]].index(i) for i in lines}
    return [
        trace | _look(trace, found[each], variants.get(i, 0))
        for i, (trace, each) in enumerate(zip(traces, owners, strict=True))
    ]


def colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]


def _look(trace: Mapping[str, Any], number: int, variant: int) -> dict[str, Any]:
    if "fill" in trace:
        return {"fillcolor": f"{colour(number)}33"}
    lap = number // len(COLOURS)
    dash, symbol = DASHES[(lap + variant) % len(DASHES)], SYMBOLS[lap % len(SYMBOLS)]
    return {
        "line": {"color": colour(number), "dash": dash},
        "marker": {**trace.get("marker", {}), "symbol": symbol},
    }


def _rank(name: str) -> int:
    found = re.search(r"rank (\d+)$", name)
    return int(found[1]) if found else 0

"""The size of an optimizer's state, computed from the shapes of the weights.

For our optimizers it is read from the plans that also make the real state. For other optimizers it is a
formula (`peers.py`).
"""

import inspect
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sketchy.analysis import peers
from sketchy.analysis.state import GROUPS, Held, Rule, Weight
from sketchy.optim import SMALL, Shampoo, SketchyShampoo, SketchySOAP
from sketchy.optim.engine import Engine
from sketchy.optim.options import check
from sketchy.optim.parts.contracts import Part
from sketchy.optim.slots import Meaning

RANKS = (4, 16, 64, 256)
SHAMPOO_BLOCK = 1024  # block size, as in the paper
LEAST_RANK = 2


@dataclass(frozen=True)
class Holder:
    """An optimizer and the size of its state for one weight."""

    name: str
    setting: str
    second_moment: str  # size of the second moment of an m x n matrix, as a formula for the table
    held: Rule
    rank: int | None = None
    ours: type[Engine] | None = None  # the optimizer, if it is one of ours
    options: Mapping[str, Any] = field(default_factory=dict)  # of ours
    few_bits: bool = False  # whether it is ours in few bits, beside its row with other options

    @classmethod
    def of(cls, optimizer: type[Engine], setting: str, second_moment: str, **options: Any) -> "Holder":
        """One of our optimizers."""
        rule, rank = planned(optimizer, **options), options.get("rank")
        return cls(optimizer.__name__, setting, second_moment, rule, rank, optimizer, options)


# ---- ours: plans


def planned(optimizer: type[Engine], **options: Any) -> Rule:
    """The state of one of our optimizers, from the same plan that makes the real state."""
    group = grouped(optimizer, **options)

    def held(w: Weight) -> Held:
        plan = optimizer.plan_of(w.shape, w.dtype, **{**group, "path": w.path})
        if plan.path == "none":
            return Held(other=plan.bytes)
        momentum = _bytes(plan.momentum)
        second_moment = _bytes(plan.statistics) + _bytes(plan.preconditioner)
        return Held(momentum, second_moment, plan.bytes - momentum - second_moment)

    return held


def grouped(optimizer: type[Engine], **options: Any) -> dict[str, Any]:
    """All options of a parameter group. (To make an optimizer would import more of torch: a second.)"""
    given = inspect.signature(optimizer).bind((), **options)
    given.apply_defaults()
    return check(given.arguments, "")


def _bytes(part: Part) -> int:
    """The size of a part's slots, without counters."""
    return sum(slot.bytes for slot in part.slots.values() if slot.meaning is not Meaning.COUNTER)


def holders(ranks: Sequence[int] = RANKS, **options: Any) -> list[Holder]:
    """Other optimizers, then ours at several ranks, one of them in few bits. ``options`` are for ours."""
    found = [
        Holder("SGD", "momentum", "0", peers.sgd),
        Holder("Adafactor", "no momentum", "m + n", peers.adafactor),
        Holder("Adafactor", "momentum", "m + n", peers.adafactor_momentum),
        Holder("AdamW", "", "mn", peers.adamw),
        Holder("AdamW", "8 bits", "mn / 4", peers.adamw_8bit),
        Holder("Muon", "", "0", peers.muon),
        Holder("GaLore", f"rank {peers.GALORE_RANK}", "r(m + n)", peers.galore),
        Holder.of(Shampoo, f"blocks of {SHAMPOO_BLOCK}", "m² + n²", block_size=SHAMPOO_BLOCK, **options),
        Holder("SOAP", f"sides to {peers.SOAP_LONGEST:,}", "2m² + 2n² + mn", peers.soap),
        Holder("GGT", f"window {peers.GGT_WINDOW}", "r mn", peers.ggt),
    ]
    kinds: tuple[tuple[type[Engine], str], ...] = (
        (SketchyShampoo, "k(m + n)"),
        (SketchySOAP, "k(m + n) + k²"),
    )
    for optimizer, formula in kinds:
        for rank in ranks:
            found.append(Holder.of(optimizer, f"rank {rank}", formula, rank=rank, **options))
    if ranks and all(options.get(name) is None for name in SMALL):
        rank = ranks[len(ranks) // 2]
        small = Holder.of(SketchySOAP, f"rank {rank}, int4", kinds[1][1], rank=rank, **options | SMALL)
        found.append(replace(small, few_bits=True))
    return found


# ---- sums


def by_group(weights: Iterable[Weight], held: Rule) -> dict[str, Held]:
    """The state of the weights, summed by group. Groups without weights are left out."""
    sums: dict[str, Held] = {}
    for weight, times in Counter(weights).items():
        sums[weight.group] = sums.get(weight.group, Held()) + held(weight) * times
    return {group: sums[group] for group in GROUPS if group in sums}


def total(weights: Iterable[Weight], held: Rule) -> Held:
    return sum(by_group(weights, held).values(), Held())


# ---- budgets


@dataclass(frozen=True)
class Fit:
    """Ranks that fit a budget: one rank for all weights, and a rank for each weight."""

    optimizer: str
    rank: int | None  # the largest rank for all weights; None if no weight is sketched
    bytes: int  # size of the state with that rank
    ranks: Mapping[Weight, int]  # a rank for each sketched weight, in proportion to its size
    ranks_bytes: int  # size of the state with these ranks


def fit(optimizer: type[Engine], weights: Sequence[Weight], budget: int, **options: Any) -> Fit:
    """The largest rank for all weights that fits a budget of bytes, and a rank for each weight.

    The rank of an m x n weight is r = s mn / (m + n), for the largest share s that fits. Its sketches have
    r (m + n) = s mn numbers, so their size is in proportion to the size of the weight. Weights of equal shape
    have equal ranks, so they still step together.
    """
    counts = Counter(weights)
    sides = {w: w.sides for w in counts if w.group == GROUPS[0] and w.count}

    def needed(ranks: Mapping[Weight, int]) -> int:
        rules = {rank: planned(optimizer, rank=rank, **options) for rank in {LEAST_RANK, *ranks.values()}}
        held = (rules[ranks.get(w, LEAST_RANK)](w) * times for w, times in counts.items())
        return sum(h.total for h in held)

    def alike(rank: int) -> int:
        return needed(dict.fromkeys(sides, rank))

    least = alike(LEAST_RANK)
    if least > budget:
        momentum = total(weights, planned(optimizer, rank=LEAST_RANK, **options)).momentum
        raise ValueError(
            f"{optimizer.__name__} needs at least {human(least)} for these weights, at rank {LEAST_RANK};"
            f" {human(momentum)} of it is momentum"
        )
    if not sides:
        return Fit(optimizer.__name__, None, least, {}, least)
    longest = max(map(max, sides.values()))
    candidates = range(LEAST_RANK, max(LEAST_RANK, longest) + 1)
    rank = candidates[bisect_right(candidates, budget, key=alike) - 1]

    def shared(share: float) -> dict[Weight, int]:
        return {
            w: max(LEAST_RANK, min(int(share * w.count / sum(axes)), max(axes))) for w, axes in sides.items()
        }

    fits, fails = 0.0, 2 * max(max(axes) * sum(axes) / w.count for w, axes in sides.items())  # full ranks
    if needed(shared(fails)) <= budget:
        fits = fails
    else:
        for _ in range(40):
            middle = (fits + fails) / 2
            fits, fails = (middle, fails) if needed(shared(middle)) <= budget else (fits, middle)
    ranks = shared(fits)
    return Fit(optimizer.__name__, rank, alike(rank), ranks, needed(ranks))


# ---- units

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def human(size: float) -> str:
    """A size in bytes with a suitable unit, with three digits or more."""
    unit = min(int(math.log2(max(size, 1)) // 10), len(_UNITS) - 1)
    value = size / 1024**unit
    return f"{value:.{0 if unit == 0 or value >= 100 else 1 if value >= 10 else 2}f} {_UNITS[unit]}"

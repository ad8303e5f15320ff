"""Plans: a rank for each axis of each weight, from measured spectra, under a budget of bytes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from sketchy.analysis.memory import grouped, human
from sketchy.analysis.spectra import Spectrum, read
from sketchy.analysis.state import Weight
from sketchy.optim.engine import Engine
from sketchy.optim.menus import Lost, Menu, before_training, chosen, expected
from sketchy.optim.plan import AxisRanks, Plan, sizes_of

Spectra = Mapping[tuple[str, str], list[Spectrum]]  # by weight and axis: one for each block


@dataclass(frozen=True)
class RankPlan:
    """Ranks for an optimizer."""

    optimizer: str
    bytes: int  # size of the whole state with these ranks
    ranks: Mapping[str, AxisRanks]  # of each sketched weight, by its name
    measured: int  # how many of them have a measured spectrum; the others are taken as usual ones


def last_spectra(path: Path) -> Spectra:
    """The newest spectra in a file of `SpectrumMonitor`."""
    records = read(path)
    if not records or any(record.lost is None for record in records):
        why = "is of an older version, without the field 'lost'" if records else "has no records"
        raise ValueError(f"{path}: {why}; record it again with SpectrumMonitor or `sketchy spectra`")
    newest: dict[str, int] = {}
    for record in records:
        newest[record.parameter] = max(newest.get(record.parameter, 0), record.step)
    found: dict[tuple[str, str], list[Spectrum]] = {}
    for record in records:
        if record.step == newest[record.parameter]:
            found.setdefault((record.parameter, record.axis), []).append(record)
    return found


def rank_plan(
    optimizer: type[Engine], weights: Mapping[str, Weight], budget: int, spectra: Spectra, **options: Any
) -> RankPlan:
    """The ranks that lose least under a budget for the whole state, as the option ``budget`` chooses them."""
    group = grouped(optimizer, **options)
    plans = {
        name: optimizer.plan_of(w.shape, w.dtype, **{**group, "path": w.path}) for name, w in weights.items()
    }
    sketched = {name: plan for name, plan in plans.items() if plan.path == "sketch"}
    known = {name for name, _ in spectra} & sketched.keys()
    if sketched and not known:
        theirs = sorted({name for name, _ in spectra})
        raise ValueError(
            f"the spectra are of {theirs[0]} and {len(theirs) - 1} other weights, and not of"
            f" {min(sketched)}: give the model that was trained, by --model or --file"
        )

    def menu(name: str, plan: Plan) -> Menu:
        def sizes(ranks: Sequence[AxisRanks]) -> list[int]:
            w = weights[name]
            return [whole for whole, _ in sizes_of(w.shape, w.dtype, optimizer.design, group, tuple(ranks))]

        usual = before_training(plan, group)
        return Menu.of([_lost(plan, name, i, spectra, each) for i, each in enumerate(usual)], sizes)

    menus = [menu(name, plan) for name, plan in sketched.items()]
    others = sum(plan.bytes for name, plan in plans.items() if name not in sketched)
    least = others + sum(min(menu.choices.costs) for menu in menus)
    if least > budget:
        raise ValueError(f"{optimizer.__name__} needs at least {human(least)} for these weights")
    ranks = chosen(menus, budget - others)
    used = others + sum(menu.cost(each) for menu, each in zip(menus, ranks, strict=True))
    return RankPlan(optimizer.__name__, used, dict(zip(sketched, ranks, strict=True)), len(known))


def _lost(plan: Plan, name: str, index: int, spectra: Spectra, usual: Lost) -> Lost:
    """What an axis loses at each rank: as measured, or with a usual spectrum if it was not."""
    axis = plan.axes[index]
    records = spectra.get((name, axis.name)) if axis is not None else None
    if axis is None or records is None:
        return usual
    if records[0].dim != axis.dim or len(records) != plan.layout.count:
        raise ValueError(
            f"the spectra of {name} are of {len(records)} blocks of {records[0].dim} ({axis.name}), and this"
            f" weight has {plan.layout.count} of {axis.dim}: they are of another model or block_size"
        )
    shares = [record.lost or {} for record in records]
    return expected(
        plan, axis, {rank: fmean(share.get(str(rank), 0.0) for share in shares) for rank in usual}
    )

"""Menus: the ranks that a weight may have, what they cost, and what they lose (`core.allocation`)."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

from sketchy.core.allocation import Choices, allocated, kinds, ladder, losses, power_law, spectrum
from sketchy.optim.parts.sketches import Axis
from sketchy.optim.plan import AxisRanks, Plan
from sketchy.optim.slots import State, is_sharded

KINDS = 4  # different ranks of weights with one shape: they step together, in stacks that should be large
Lost = Mapping[int, float]  # what an axis loses, by its rank


@dataclass(frozen=True)
class Menu:
    """The ranks that one weight may have."""

    ranks: Sequence[AxisRanks]
    choices: Choices

    @property
    def least(self) -> int:
        """The number of the smallest ranks."""
        return min(range(len(self.ranks)), key=self.choices.costs.__getitem__)

    @classmethod
    def of(
        cls,
        lost: Sequence[Lost],
        sizes: Callable[[Sequence[AxisRanks]], Sequence[int]],
        now: AxisRanks | None = None,
    ) -> "Menu":
        """All ranks of its axes, and those that it has ``now``. ``sizes``: what ranks cost."""
        ranks = list(product(*lost))
        ranks += [] if now is None or now in ranks else [now]
        sums = [sum(axis[rank] for axis, rank in zip(lost, each, strict=True)) for each in ranks]
        return cls(ranks, Choices(sizes(ranks), sums))

    def only(self, numbers: Sequence[int]) -> "Menu":
        costs, lost = self.choices.costs, self.choices.losses
        some = Choices([costs[i] for i in numbers], [lost[i] for i in numbers])
        return Menu([self.ranks[i] for i in numbers], some)

    def lost(self, ranks: AxisRanks) -> float:
        return self.choices.losses[self.ranks.index(ranks)]

    def cost(self, ranks: AxisRanks) -> int:
        return self.choices.costs[self.ranks.index(ranks)]


def rungs(plan: Plan, options: Mapping[str, Any]) -> list[tuple[int, ...]]:
    """The ranks that each axis may have."""
    least, most = options["min_rank"], options["max_rank"]
    axes = zip(plan.axes, plan.ranks, strict=True)
    return [(rank,) if axis is None else ladder(axis.dim, least, most) for axis, rank in axes]


def before_training(plan: Plan, options: Mapping[str, Any]) -> list[Lost]:
    """What each axis would lose with a spectrum that is usual."""
    return [
        dict.fromkeys(ranks, 0.0)
        if axis is None
        else dict(zip(ranks, (worth(plan) * usual(axis.dim, ranks)).tolist(), strict=True))
        for axis, ranks in zip(plan.axes, rungs(plan, options), strict=True)
    ]


def measured(some: Sequence[tuple[Plan, State, Mapping[str, Any]]]) -> list[list[Lost]]:
    """What each axis of several weights loses, by the spectra in their states. One copy from the device."""
    found: list[Tensor] = []
    offered = []
    for plan, state, options in some:
        for axis, ranks in zip(plan.axes, rungs(plan, options), strict=True):
            own = ranks if axis is None else tuple(dict.fromkeys((*ranks, axis.rank)))
            found.append(torch.zeros(1) if axis is None else lost_share(plan, axis, state, options, own))
            offered.append(own)
    values = iter(torch.cat([x.to(found[-1].device) for x in found]).tolist() if found else [])
    each = iter([{rank: next(values) for rank in ranks} for ranks in offered])
    return [[expected(plan, axis, next(each)) for axis in plan.axes] for plan, *_ in some]


def expected(plan: Plan, axis: Axis | None, shares: Lost) -> Lost:
    """What an axis is expected to lose at each rank: half as measured, half as usual.

    Measured spectra are those of the last few gradients. Taken alone, ranks followed their chances.
    """
    if axis is None:
        return shares
    both = zip(shares.items(), usual(axis.dim, tuple(shares)).tolist(), strict=True)
    return {rank: worth(plan) * (share + other) / 2 for (rank, share), other in both}


def usual(dim: int, ranks: Sequence[int]) -> Tensor:
    """The share of directions that each rank loses with a usual spectrum."""
    return losses(power_law(dim), ranks)


def lost_share(
    plan: Plan, axis: Axis, state: State, options: Mapping[str, Any], ranks: Sequence[int]
) -> Tensor:
    """The estimated share of directions that an axis loses at each of these ranks, a mean over blocks."""
    _, *values = axis.stored(state).tensors.values()
    (lam, mass, bound), lost = map(_whole, values), None
    if options.get("solver") == "exact":  # its error bound does not know the trace
        energy = plan.gradient_energy(state, options)
        lost = None if energy is None else energy - lam.sum(-1)
    return losses(spectrum((lam, mass, bound), axis.dim, lost), ranks).mean(0)


def worth(plan: Plan) -> float:
    """What all directions of a weight are worth: the length of a step whose entries are all alike."""
    return float(math.prod(plan.layout.shape)) ** 0.5


def _whole(x: Any) -> Tensor:
    """A tensor that all ranks have; the blocks of sharded stacked weights lie on several."""
    return x.full_tensor() if is_sharded(x) else x


def chosen(menus: Sequence[Menu], budget: int) -> list[AxisRanks]:
    """The ranks that lose least under a budget, of few kinds (`allocated`)."""
    rate = allocated([menu.choices for menu in menus], budget).rate
    few = _of_few_kinds(menus, rate)
    found = allocated([menu.choices for menu in few], budget).options
    return [menu.ranks[i] for menu, i in zip(few, found, strict=True)]


def _of_few_kinds(menus: Sequence[Menu], rate: float) -> list[Menu]:
    """Menus with at most `KINDS` of their ranks, the same for all weights with equal ranks and costs."""
    alike: dict[Any, list[int]] = defaultdict(list)
    for i, menu in enumerate(menus):
        alike[tuple(menu.ranks), tuple(menu.choices.costs)].append(i)
    few = list(menus)
    for numbers in alike.values():
        if len(numbers) > KINDS:
            found = kinds([menus[i].choices for i in numbers], rate, KINDS - 1)
            some = list(dict.fromkeys([*found, menus[numbers[0]].least]))
            for i in numbers:
                few[i] = menus[i].only(some)
    return few

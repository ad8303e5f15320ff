"""Ranks under a budget: where they start, and how they follow the spectra while training (option ``budget``).

Ranks are those of the state: the lengths of its eigenvalues. So a checkpoint needs nothing more. Groups with
the same budget share it. Between steps, at a few moments, the loss that each rank means is estimated for each
sketch (`optim.menus`), the ranks that lose least under the budget are found, and the sketches are cut or
grown. What shrinks goes first, so the state never has more bytes than the budget.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor

from sketchy.core.arguments import parse_bytes
from sketchy.optim.convert import converted
from sketchy.optim.menus import Lost, Menu, before_training, chosen, measured
from sketchy.optim.plan import AxisRanks, Design, Plan, PlanOf, sizes_of
from sketchy.optim.routing import names_of
from sketchy.optim.sharding import decided_by_first
from sketchy.optim.slots import State
from sketchy.optim.stack import Group

_FIRST = (50, 150)  # gradients before the first two reallocations; then ten times as many, and so on
_WORTHWHILE = 0.02  # ranks stay as they are if others would not lose less by this share


def is_due(seen: int, every: int | None) -> bool:
    """Whether ranks are reallocated after so many gradients: 50, 150, 500, 1500, ... or every so many.

    >>> [n for n in range(2000) if is_due(n, None)], [n for n in range(100) if is_due(n, 30)]
    ([50, 150, 500, 1500], [30, 60, 90])
    """
    if seen < 1 or every is not None:
        return seen > 0 and every is not None and seen % every == 0
    while seen > _FIRST[1] and seen % 10 == 0:
        seen //= 10
    return seen in _FIRST


@dataclass(frozen=True, eq=False)
class Member:
    """A weight that shares a budget."""

    p: Tensor
    name: str | None
    group: Group
    plan: Plan
    state: State  # empty before its first step

    @property
    def sketched(self) -> bool:
        return self.plan.path == "sketch" and bool(self.plan.axes)

    @property
    def free(self) -> bool:
        """Whether its first ranks are still to be chosen."""
        return self.sketched and not self.state and self.group["rank"] is None


@dataclass(frozen=True)
class Reallocation:
    """The ranks of the weights that share a budget, as chosen anew."""

    ranks: Mapping[Member, AxisRanks]

    def summary(self) -> str:
        """How many columns were cut and added."""
        pairs = [(m.plan.ranks, ranks) for m, ranks in self.ranks.items()]
        steps = [new - old for olds, news in pairs for old, new in zip(olds, news, strict=True)]
        cut, added = -sum(s for s in steps if s < 0), sum(s for s in steps if s > 0)
        return f"ranks of {sum(a != b for a, b in pairs)} weights changed; columns: {cut} cut, {added} added"


@dataclass
class Budget:
    """A budget, and the weights that share it."""

    text: str | float  # as the option gives it
    design: Design
    members: list[Member] = field(default_factory=list)

    @property
    def in_bytes(self) -> bool:
        """Whether the budget is for the whole state; otherwise for the sketches, in floats of 4 bytes."""
        return isinstance(self.text, str)

    @property
    def allowed(self) -> int:
        if isinstance(self.text, str):
            return parse_bytes("budget", self.text)
        return int(4 * self.text * sum(m.p.numel() for m in self.members if m.sketched))

    @property
    def used(self) -> int:
        """Bytes of the budget that its weights take, or will take after their first step."""
        return sum(map(self.size, self.members))

    @property
    def seen(self) -> int:
        """The most gradients that one of its sketched weights has seen."""
        return max((int(m.state["turn"]) for m in self.members if "turn" in m.state), default=0)

    def size(self, member: Member, ranks: AxisRanks | None = None) -> int:
        """What a weight takes of the budget, with its ranks or with others."""
        if ranks is None:
            return member.plan.bytes if self.in_bytes else member.plan.sketch_bytes
        return self._sizes(member, [ranks])[0]

    def _sizes(self, member: Member, menu: Sequence[AxisRanks]) -> list[int]:
        shape, dtype = tuple(member.p.shape), member.p.dtype
        found = sizes_of(shape, dtype, self.design, member.group, tuple(menu))
        return [size[not self.in_bytes] for size in found]

    def _menu(self, member: Member, lost: Sequence[Lost], now: AxisRanks | None = None) -> Menu:
        return Menu.of(lost, partial(self._sizes, member), now)

    def _left(self, others: Iterable[Member]) -> int:
        """What others leave of the budget."""
        return self.allowed - sum(map(self.size, others))

    def start(self) -> dict[Tensor, AxisRanks]:
        """The first ranks of weights that have none yet: those for usual spectra."""
        free = [m for m in self.members if m.free]
        menus = [self._menu(m, before_training(m.plan, m.group)) for m in free]
        least = [menu.ranks[menu.least] for menu in menus]
        left = self._left(m for m in self.members if not m.free)
        needed = sum(map(self.size, free, least))
        if needed > left and not any(m.state for m in self.members):  # otherwise the others make room
            raise ValueError(self._too_small(self.allowed - left + needed))
        ranks = least if needed > left else chosen(menus, left)
        return {m.p: each for m, each in zip(free, ranks, strict=True)}

    def _too_small(self, needed: int) -> str:
        given = any(m.sketched and m.group["rank"] is not None for m in self.members)
        which = "the given rank" if given else "even the smallest ranks (min_rank)"
        hint = "" if not self.in_bytes else ". Momentum takes less with momentum_dtype='int4'"
        what = "the state" if self.in_bytes else "the sketches"
        return (
            f"budget={self.text!r}: is {self.allowed:,} bytes, and with {which} {what} would have"
            f" {needed:,}{hint}"
        )

    def reallocation(self, split: Any = None) -> Reallocation:
        """The ranks that lose least, by the spectra in the state. The first rank decides for all."""
        open_ = [m for m in self.members if m.sketched and m.state]
        left = self._left(m for m in self.members if m not in open_)
        lost = measured([(m.plan, m.state, m.group) for m in open_])
        menus = [self._menu(m, each, m.plan.ranks) for m, each in zip(open_, lost, strict=True)]
        now = [m.plan.ranks for m in open_]
        ranks = chosen(menus, left)
        before, after = (sum(map(Menu.lost, menus, each)) for each in (now, ranks))
        if self.used <= self.allowed and before - after < _WORTHWHILE * before:
            ranks = now
        ranks = decided_by_first(ranks, [m.p for m in self.members], split)
        return Reallocation(dict(zip(open_, ranks, strict=True)))


def budgets(
    groups: Sequence[Group], state: Mapping[Tensor, State], design: Design, plan_of: PlanOf
) -> list[Budget]:
    """The budgets of all groups, with their weights."""
    found: dict[Any, Budget] = {}
    names = names_of(groups)
    for group in groups:
        if (text := group.get("budget")) is None:
            continue
        own = found.setdefault(text, Budget(text, design))
        for p in group["params"]:
            held, name = state.get(p, {}), names.get(p)
            if p.requires_grad or held:
                own.members.append(Member(p, name, group, plan_of(group, p, name), held))
    for budget in found.values():
        if deep := next((m for m in budget.members if len(m.plan.axes) > 2), None):
            raise ValueError(
                f"budget={budget.text!r}: {deep.name or 'a weight'} has {len(deep.plan.axes)} axes with a"
                " sketch, and a budget is for weights with one or two; leave merge_dims away"
            )
    return list(found.values())


def due_now(groups: Sequence[Group], state: Mapping[Tensor, State]) -> set[Any]:
    """The budgets whose ranks are to be chosen anew after this step. It reads counters on the host."""
    seen: dict[Any, int] = {}
    for group in groups:
        if (text := group.get("budget")) is not None:
            turns = (int(state[p]["turn"]) for p in group["params"] if "turn" in state.get(p, ()))
            seen[text] = max(seen.get(text, 0), *turns, 0)
    return {
        group["budget"]
        for group in groups
        if group.get("budget") in seen and is_due(seen[group["budget"]], group["budget_every"])
    }


def reallocate_(budget: Budget, plan_of: PlanOf, split: Any = None) -> Reallocation:
    """Cut and grow the sketches to the ranks that lose least. Those that take less than before go first."""
    found = budget.reallocation(split)
    changed = {m: ranks for m, ranks in found.ranks.items() if ranks != m.plan.ranks}
    for member, ranks in sorted(changed.items(), key=lambda one: budget.size(*one) - budget.size(one[0])):
        after = plan_of({**member.group, "budget": None, "rank": ranks}, member.p, member.name)
        new = converted(member.p, member.state, member.plan, after, member.group, split)
        member.state.clear()
        member.state.update(new)
    return found

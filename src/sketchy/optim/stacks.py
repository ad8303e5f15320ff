"""Which parameters go through a step together: by group and plan, in stacks of bounded size."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from sketchy.optim import state as states
from sketchy.optim.plan import Plan, scratch, together
from sketchy.optim.routing import name_in, names_of
from sketchy.optim.state import Stack

Group = dict[str, Any]
PlanOf = Callable[[Group, Tensor, str | None], Plan]  # of a parameter of a group, with its name if it has one


def stacks(
    groups: Sequence[Group], state: dict[Tensor, dict[str, Any]], plan_of: PlanOf
) -> list[tuple[Group, Stack, bool]]:
    """All stacks of a step, each with whether its sketches are due. Parameters without a state get one."""
    names = names_of(groups)
    found: dict[Any, list[Tensor]] = defaultdict(list)
    turns: dict[Any, int] = {}  # sketched shapes take turns, so that no step has all the refreshes
    for g, group in enumerate(groups):
        for i, p in enumerate(group["params"]):
            plan = plan_of(group, p, names.get(p))
            turn = turns.setdefault(p.shape, len(turns)) if plan.axes else 0
            if p.grad is None or p.numel() == 0:
                continue
            if not state[p]:
                state[p].update(states.create(p, plan))
            elif not states.fits(state[p], plan):
                raise ValueError(
                    f"{name_in(group, i)} has a state of another shape or of other options: rank,"
                    " graft, blocks, paths, and whether beta1 is 0 stay as they were at its first step."
                    " Clear optimizer.state[parameter] to start it afresh"
                )
            every, due = group.get("update_every", 1), True
            if every > 1 and plan.axes:
                done = int(state[p]["turn"])
                due = done == 0 or (done + turn) % every == 0
            found[g, id(plan), p.device, p.dtype, p.grad.dtype, due].append(p)
    result = []
    for (g, *_, due), params in found.items():
        group = groups[g]
        plan = plan_of(group, params[0], names.get(params[0]))
        most = together(plan, group)
        for some in (params[i : i + most] for i in range(0, len(params), most)):
            result.append((group, Stack(some, [state[p] for p in some], plan), due))
    return result


def scratch_bound(groups: Sequence[Group], plan_of: PlanOf) -> int:
    """A bound on the bytes that a step holds for itself: those of its largest stack."""
    names, counts = names_of(groups), Counter[Any]()
    bound = 0
    for g, group in enumerate(groups):
        for p in group["params"]:
            plan = plan_of(group, p, names.get(p))
            counts[g, id(plan)] += 1
            bound = max(bound, scratch(plan, min(counts[g, id(plan)], together(plan, group)), group))
    return bound

"""Which parameters go through a step together: by group and plan, in stacks of bounded size."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from sketchy.optim import state as states
from sketchy.optim.plan import Plan, held, scratch, together
from sketchy.optim.routing import name_in, names_of
from sketchy.optim.state import Group, Stack

# Bytes: of a second-level cache and some of the third.
_CACHE = 1 << 22

PlanOf = Callable[[Group, Tensor, str | None], Plan]  # of a parameter of a group, with its name if it has one


def stacks(groups: Sequence[Group], state: dict[Tensor, dict[str, Any]], plan_of: PlanOf) -> list[Stack]:
    """All stacks of a step. Parameters without a state get one."""
    names = names_of(groups)
    found: dict[Any, list[Tensor]] = defaultdict(list)
    turns: dict[Any, int] = {}  # sketched shapes take turns, so that no step has all the refreshes
    for g, group in enumerate(groups):
        for i, p in enumerate(group["params"]):
            plan = plan_of(group, p, names.get(p))
            turn = turns.setdefault(p.shape, len(turns)) if plan.axes else 0
            if p.grad is None:
                continue
            if not state[p]:
                state[p].update(states.create(p, plan))
            elif not states.fits(state[p], plan):
                raise ValueError(
                    f"{name_in(groups, g, i)} has a state of another shape or of other options: rank,"
                    " graft, blocks, paths, and whether beta1 is 0 stay as they were at its first step."
                    " Clear optimizer.state[parameter] to start it afresh"
                )
            if p.numel() == 0:
                continue
            every, due = group.get("update_every", 1), True
            if every > 1 and plan.axes:
                done = int(state[p]["turn"])
                due = done == 0 or (done + turn) % every == 0
            found[g, id(plan), p.device, p.dtype, p.grad.dtype, due].append(p)
    result = []
    for (g, *_, due), params in found.items():
        group = groups[g]
        plan = plan_of(group, params[0], names.get(params[0]))
        most = together(plan, params[0].device, group)
        for some in (params[i : i + most] for i in range(0, len(params), most)):
            result.append(Stack(some, [state[p] for p in some], plan, group, due))
    return result


def waves(stacks: Sequence[Stack]) -> list[list[Stack]]:
    """Which stacks have their sketches updated in one batch: many small ones, or a single large one.

    On the CPU, as many as stay in cache from reading the gradients to the products with them. Elsewhere, as
    many as hold no more memory than the one that holds most.
    """
    result: list[list[Stack]] = []
    costs = [held(stack.plan, len(stack.params)) for stack in stacks]
    total, last = 0, None
    for stack, cost in zip(stacks, costs, strict=True):
        device = stack.params[0].device
        limit = _CACHE if device.type == "cpu" else max(costs)
        if device == last and total + cost <= limit:
            result[-1].append(stack)
            total += cost
        else:
            result.append([stack])
            total, last = cost, device
    return result


def scratch_bound(groups: Sequence[Group], plan_of: PlanOf) -> int:
    """A bound on the bytes that a step holds for itself: for its largest stack, and what others hold."""
    names, counts = names_of(groups), Counter[Any]()
    bound = waiting = made = 0
    for g, group in enumerate(groups):
        for p in group["params"]:
            plan = plan_of(group, p, names.get(p))
            counts[g, id(plan)] += 1
            most = together(plan, p.device, group)
            made += counts[g, id(plan)] % most == 1 or most == 1
            bound = max(bound, scratch(plan, min(counts[g, id(plan)], most), group))
            waiting += held(plan, 1)
    return bound + (min(_CACHE, waiting) if made > 1 else 0)

"""Which parameters go through a step together: stacks of one group and plan, and waves of stacks."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from sketchy.optim.plan import Plan, held, scratch, together
from sketchy.optim.routing import name_in, names_of
from sketchy.optim.slots import State, fits
from sketchy.optim.stack import Group, Stack

# Bytes of a second-level cache, and some of the third.
_CACHE = 1 << 22

PlanOf = Callable[[Group, Tensor, str | None], Plan]  # of a parameter of a group, with its name if it has one


def stacks(groups: Sequence[Group], state: dict[Tensor, State], plan_of: PlanOf) -> list[Stack]:
    """All stacks of a step. Parameters without a state get one."""
    names = names_of(groups)
    found: dict[Any, list[Tensor]] = defaultdict(list)
    plans: dict[int, Plan] = {}
    offsets: dict[Any, int] = {}  # with update_every, shapes are refreshed in turn, not all at one step
    for g, group in enumerate(groups):
        for i, p in enumerate(group["params"]):
            plan = plan_of(group, p, names.get(p))
            offset = offsets.setdefault(p.shape, len(offsets)) if plan.axes else 0
            if p.grad is None:
                continue
            if not state[p]:
                state[p].update(plan.create(p.device))
            elif not fits(state[p], plan.slots):
                raise ValueError(
                    f"{name_in(groups, g, i)} has a state of another shape or of other options: rank,"
                    " graft, blocks, paths, and whether beta1 is 0 stay as they were at its first step."
                    " Clear optimizer.state[parameter] to start it afresh"
                )
            if p.numel() == 0:
                continue
            plans[id(plan)] = plan
            due = not plan.axes or _is_due(state[p], group["update_every"], offset)
            found[g, id(plan), p.device, p.dtype, p.grad.dtype, due].append(p)
    result = []
    for (g, key, device, *_, due), params in found.items():
        plan, group = plans[key], groups[g]
        most = together(plan, device, group)
        for some in (params[i : i + most] for i in range(0, len(params), most)):
            result.append(Stack(some, [state[p] for p in some], plan, group, due))
    return result


def _is_due(state: State, every: int, offset: int) -> bool:
    """Whether sketches see this gradient: the first one, and then every k-th."""
    if every == 1:
        return True
    seen = int(state["turn"])
    return seen == 0 or (seen + offset) % every == 0


def waves(stacks: Sequence[Stack]) -> list[list[Stack]]:
    """Which stacks step side by side, their small matrices in one batch: many small ones, or a large one.

    On the CPU, as many as stay in cache from reading the gradients to the products with them. Elsewhere, as
    many as hold no more memory than the stack that holds most.
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

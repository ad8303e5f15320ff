"""Which parameters step together. Parameters with one group and plan form stacks; stacks form waves."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sketchy.core import spread as spreads
from sketchy.core.spread import Spread
from sketchy.core.tuned import sizes
from sketchy.optim.options import on_path
from sketchy.optim.plan import Plan, PlanOf, held, scratch, stack_limit
from sketchy.optim.routing import name_in, names_of
from sketchy.optim.sharding import Place, local, local_state, sharding
from sketchy.optim.slots import State, fits, is_sharded
from sketchy.optim.stack import Group, Settings, Stack


def stacks_(
    groups: Sequence[Group], state: dict[Tensor, State], plan_of: PlanOf, split: Any = None
) -> list[Stack]:
    """All stacks of a step. Parameters without a state get one. ``split``: see `optim.split`."""
    names = names_of(groups)
    listed: list[tuple[int, Tensor, Plan, int]] = []
    offsets: dict[Any, int] = {}  # with update_every, different shapes are updated at different steps
    for g, group in enumerate(groups):
        for i, p in enumerate(group["params"]):
            plan = plan_of(group, p, names.get(p))
            offset = offsets.setdefault(p.shape, len(offsets)) if plan.axes else 0
            if p.grad is None:
                continue
            if state.get(p) and not fits(state[p], plan.slots):
                raise ValueError(
                    f"{name_in(groups, g, i)} has a state for another shape or other options. After the first"
                    " step, rank, graft, block_size, path and other options that shape the state must not"
                    " change, nor beta1 from or to 0. To start with a new state, clear"
                    " optimizer.state[parameter]"
                )
            listed.append((g, p, plan, offset))
    found: dict[Any, list[tuple[Tensor, State]]] = defaultdict(list)
    plans: dict[int, Plan] = {}
    places: dict[Any, Place | None] = {None: None}
    for g, p, plan, offset in listed:  # nothing was refused: only now states are made
        shards = sharding(p, plan, groups[g], split)
        if not state[p]:
            state[p].update(plan.create(p.device) if shards is None else shards.create())
        if p.numel() == 0:
            continue
        assert p.grad is not None
        plans[id(plan)] = plan
        due = not plan.axes or _is_due(state[p], groups[g]["update_every"], offset)
        rarer = groups[g].get("roots_every", 1)
        roots = _is_due(state[p], rarer, offset) if plan.axes and rarer > 1 else due
        key = None if shards is None else shards.key
        if shards is not None and key not in places:
            places[key] = shards.place
        found[g, id(plan), p.device, p.dtype, p.grad.dtype, key, due, roots].append(
            (p if shards is None else shards.p, state[p])
        )
    result = []
    for (g, number, device, *_, key, due, roots), pairs in found.items():
        plan, group, place = plans[number], groups[g], places[key]
        most = stack_limit(plan, device, group)
        for i in range(0, len(pairs), most):
            params, states = zip(*pairs[i : i + most], strict=True)
            result.append(_stack(params, states, plan, on_path(group, plan.path), due, roots, place))
    return result


def _stack(
    params: Sequence[Tensor],
    states: Sequence[State],
    plan: Plan,
    group: Settings,
    due: bool,
    roots: bool,
    place: Place | None,
) -> Stack:
    if place is None:
        return Stack(params, states, plan, group, due, roots=roots)
    here = [local(p) for p in params]
    return Stack(
        here,
        [local_state(state) for state in states],
        plan,
        group,
        due,
        lambda: [place.gradient(p) for p in params],
        place,
        roots,
    )


def _is_due(state: State, every: int, offset: int) -> bool:
    """Whether this gradient updates the sketches (or roots): the first one does, and then every k-th."""
    if every == 1:
        return True
    seen = int(state["turn"])
    return seen == 0 or (seen + offset) % every == 0


def waves(stacks: Sequence[Stack]) -> list[list[Stack]]:
    """Group stacks into waves. The stacks of a wave step together, with their small matrices in one batch.

    A wave is many small stacks, or one large stack. On the CPU, a wave fits into the cache between reading
    the gradients and the products with them. On other devices, waves are large, so that a step starts few
    operations: a model of up to 200 million weights is one wave. Waves of sharded stacks are larger than on
    the CPU, too. They are the same on all ranks.
    """
    result: list[list[Stack]] = []
    costs = [held(stack.plan, len(stack.params)) // stack.parts for stack in stacks]
    total, last = 0, None
    for stack, cost in zip(stacks, costs, strict=True):
        device = stack.params[0].device
        limit = _wave_bytes(device, sharded=stack.parts > 1)
        if device == last and total + cost <= limit:
            result[-1].append(stack)
            total += cost
        else:
            result.append([stack])
            total, last = cost, device
    return result


def _wave_bytes(device: torch.device, *, sharded: bool) -> int:
    """The largest wave of several stacks, in the bytes of `held`."""
    if device.type != "cpu":
        return sizes.WAVE_BYTES_ELSEWHERE
    return sizes.SHARDED_WAVE_BYTES if sharded else sizes.WAVE_BYTES


def fetch(wave: Sequence[Stack]) -> None:
    """Start to gather the bases that are kept in parts, while the wave before is still at work."""
    alike: dict[Any, list[tuple[Stack, str, Tensor, Spread]]] = defaultdict(list)
    for stack in wave:
        for name, spread in ({} if stack.place is None else stack.place.apart).items():
            if len(spread.groups) == 1:
                stored = stack.stored(name)
                key = spread.groups[0].group_name, stored.dtype, stored.device
                alike[key].append((stack, name, stored, spread))
    for some in alike.values():
        waiting = spreads.fetch([(stored, spread) for _, _, stored, spread in some])
        for (stack, name, *_), wait in zip(some, waiting, strict=True):
            stack.fetched[name] = wait


def scratch_bound(groups: Sequence[Group], plan_of: PlanOf, split: Any = None) -> int:
    """A bound on the scratch bytes of a step: for its largest stack, plus what the others of a wave use.

    On accelerators, the directions of a wave wait for each other as well.
    """
    names, counts = names_of(groups), Counter[Any]()
    bound = waiting = made = limit = 0
    for g, group in enumerate(groups):
        for p in group["params"]:
            plan = plan_of(group, p, names.get(p))
            counts[g, id(plan)] += 1
            most = stack_limit(plan, p.device, group)
            made += counts[g, id(plan)] % most == 1 or most == 1
            bound = max(bound, scratch(plan, min(counts[g, id(plan)], most), group))
            together = 1 if p.device.type == "cpu" else 2
            waiting += together * held(plan, 1)
            sharded = is_sharded(p) or split is not None
            limit = max(limit, together * _wave_bytes(p.device, sharded=sharded))
    return bound + (min(limit, waiting) if made > 1 else 0)

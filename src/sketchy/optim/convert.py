"""A state for another plan of the same weight: other ranks, or momenta and moments stored in another way."""

from typing import Any

from torch import Tensor

from sketchy.core.tasks import run
from sketchy.optim import options
from sketchy.optim.plan import Plan
from sketchy.optim.sharding import Sharding, local, local_state, sharding
from sketchy.optim.slots import State
from sketchy.optim.stack import Group, Stack


def converted(p: Tensor, state: State, before: Plan, after: Plan, group: Group, split: Any) -> State:
    """The state of a weight, converted from the plan ``before`` to the plan ``after``.

    Slots that both plans have keep their tensors. Where weights are sharded, all ranks must call this alike.
    """
    if after.path == "none":
        return state
    group = dict(options.on_path(group, after.path))
    ours, theirs = sharding(p, after, group, split), sharding(p, before, group, split)
    kept = {name: state[name] for name, slot in after.slots.items() if before.slots.get(name) == slot}
    new = after.create(p.device, kept) if ours is None else ours.create(kept)
    source = _stack(p, state, before, group, theirs)
    old = run(before.statistics.read(source))
    target = _stack(p, new, after, group, ours, due=True)
    run(after.statistics.resize(target, old))
    run(target.keep())
    target = _stack(p, new, after, group, ours)
    sketches = run(after.statistics.read(target))
    if before.momentum.slots != after.momentum.slots:
        run(after.momentum.write(target, before.momentum.read(source, old), sketches))
    if before.preconditioner.slots != after.preconditioner.slots:
        run(after.preconditioner.carry(before.preconditioner, source, target, old, sketches))
    run(target.keep())
    return new


def _stack(
    p: Tensor, state: State, plan: Plan, group: Group, shards: Sharding | None, *, due: bool = False
) -> Stack:
    place = None if shards is None else shards.place
    here = p if shards is None else local(shards.p)
    return Stack([here], [local_state(state)], plan, group, due, place=place)

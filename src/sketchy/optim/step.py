"""One step of one stack of weights: a line of code for each arrow in `docs/architecture.md`."""

import math
from typing import Any

import torch
from torch import Tensor

from sketchy.core.moments import cut_, like, shortened
from sketchy.core.polar import polar_
from sketchy.core.tasks import Numbers, Request, Task, read, within
from sketchy.optim.stack import Stack


def step(stack: Stack) -> Task[None]:
    """Gradients → statistics → preconditioner → graft → momentum → direction → weights → state."""
    plan = stack.plan
    G = yield from stack.gradients()  # bad ones are zero
    steps = (yield Request(read, (stack.steps,))) if stack.group["start_step"] > 1 else None
    old = yield from plan.statistics.read(stack)
    new = yield from plan.statistics.update(stack, G, old)  # Alg. 3, line 5
    learned = yield from plan.preconditioner.update(stack, G, old, new)
    length = yield from plan.graft.update(stack, G)
    x, ahead = yield from plan.momentum.update(stack, G, old, new)
    del G, old, new  # their memory is free for the direction
    x, ahead = stack.layout.split(x), stack.layout.each(ahead)
    direction, scale = yield from _direction_(stack, steps, x, ahead, learned, length)  # Alg. 3, line 6
    yield from stack.descend_(direction, scale)
    del direction
    yield from stack.keep()


def _direction_(
    stack: Stack, steps: Numbers, x: Tensor, ahead: Tensor, learned: Any, length: Tensor | None
) -> Task[tuple[Tensor, Tensor]]:
    """Precondition the momentum ahead * x (S, *block), and give it the length that the graft rule sets.

    Return (direction, scale); the step is scale * direction. x is overwritten. ``length``: the length of the
    graft's step if the gradient decides it, else None. Before ``start_step`` the step is the graft's own.
    """
    plan, first, spreads = stack.plan, stack.group["start_step"], stack.spreads
    length = (yield from plan.graft.length(stack, x, ahead)) if length is None else length
    early, energy, limit = None, None, plan.graft.limit(stack)
    if first > 1 and plan.waits and not within(steps, first - 0.5, math.inf):
        early = yield from plan.graft.step(stack, x * like(ahead, x), length)
        early = early if limit is None else cut_(early)
        short = yield from shortened(torch.ones_like(ahead), early, limit, spreads)
        if within(steps, -math.inf, first - 0.5):
            return early, short
        early = early * like(short, early)
    direction, scale = yield from plan.preconditioner.apply_(stack, x, ahead, learned)
    if plan.path == "sketch" and stack.group.get("polar"):
        direction, scale = yield from polar_(direction, scale, stack.group["polar"], spreads)
    if plan.row_norms is not None:
        direction, scale, energy = yield from plan.row_norms.apply_(stack, direction, scale)
    scale = yield from plan.graft.rescale(stack, direction, scale, length, energy)
    scale = yield from shortened(scale, direction, limit and limit * stack.group["graft_scale"], spreads)
    if early is not None:
        started = like(stack.steps >= first, direction) > 0
        direction = torch.where(started, like(scale, direction) * direction, early)
        scale = torch.ones_like(scale)
    return direction, scale

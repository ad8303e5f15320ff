"""Momentum and Adam's path: the parts of a step that go entry by entry, on state where it lies."""

import torch
from torch import Tensor

from sketchy.core import momentum
from sketchy.core.moments import correction, divide_by_root, observe_root_
from sketchy.optim.state import Stack


def look_ahead(stack: Stack, G: Tensor, step: Tensor, good: Tensor | None) -> tuple[Tensor, Tensor]:
    """What momentum says gradients (K, *shape) are, in memory of its own, and the factor (K,) it lacks."""
    group = stack.group
    beta1, nesterov, average = group["betas"][0], group["nesterov"], group["moving_average_momentum"]
    if beta1 == 0:
        return G.clone(), torch.ones_like(step, dtype=torch.float64)
    own = stack.own("momentum")
    return momentum.advance_(own, G, beta1, step, moving_average=average, nesterov=nesterov, good=good)


def adam(stack: Stack, G: Tensor, step: Tensor, good: Tensor | None) -> tuple[Tensor, Tensor]:
    """Adam's step for gradients (K, *shape), and the factor (K,) it lacks. G is lost unless K is 1."""
    own, beta2 = stack.own("root_moment"), stack.group["betas"][1]
    root = observe_root_(stack.stacked("root_moment"), G, beta2, good)
    stack.put_back("root_moment", root)
    del root  # two tensors of this size are enough
    x, ahead = look_ahead(stack, G, step, good)
    root = own[0].unsqueeze(0) if len(own) == 1 else torch.stack(own, out=G)
    return divide_by_root(x, root, correction(beta2, step), stack.group["eps"], out=x), ahead

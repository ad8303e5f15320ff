"""p ← p - c (x + w p) in one pass over memory, by torch's kernel for plain SGD."""

import torch
from torch import Tensor


def descend_in_one_pass_(p: Tensor, x: Tensor, c: float, w: float) -> bool:
    """Update p, in half the time of two operations. If that is not possible, do nothing and return False.

    The kernel runs on the CPU and needs contiguous tensors of one dtype, and a moderate c.
    """
    if p.device.type != "cpu" or p.dtype != x.dtype or not (p.is_contiguous() and x.is_contiguous()):
        return False
    if not 1e-20 < c < 1e20:
        return False
    torch._fused_sgd_(
        [p],
        [x],
        [],
        lr=c,
        weight_decay=w,
        momentum=0.0,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=False,
    )
    # the kernel does not do this; without it, autograd would not notice that p has changed
    torch.autograd.graph.increment_version(p)
    return True

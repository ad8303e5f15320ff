"""Panels: pieces of a large stack that fit in a cache, for chains of elementwise operations.

A chain that works on one panel after the other stays in the cache and needs little scratch memory.
Accelerators and compilers get the whole stack: accelerators have the bandwidth, and compilers fuse the chain.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from sketchy.core.tuned import sizes

Panel = tuple[slice, tuple[slice, ...]]


def panels(x: Tensor) -> Iterator[Panel]:
    """Cut a stack x (S, m, ...) into panels. A panel is some whole matrices, or some rows of one matrix.

    Yields (index of the panel's matrices in the stack, index of the panel in x).
    """
    whole = slice(None)
    # check for compilers first: they may not know the size of x
    if (
        torch.compiler.is_compiling()
        or x.device.type != "cpu"
        or x.dim() < 2
        or x.nbytes <= sizes.PANEL_BYTES
    ):
        yield whole, (whole,)
        return
    wanted = max(sizes.PANEL_BYTES, x.nbytes // sizes.MOST_PANELS)
    size = x.nbytes // len(x)
    if size <= wanted:
        count = wanted // size
        for first in range(0, len(x), count):
            stack = slice(first, first + count)
            yield stack, (stack,)
        return
    height = max(1, x.shape[1] * wanted // size)
    for i in range(len(x)):
        stack = slice(i, i + 1)
        for first in range(0, x.shape[1], height):
            yield stack, (stack, slice(first, first + height))

"""Large stacks a cache-full at a time, so that a chain of elementwise operations needs little memory.

Accelerators and compilers get the stack whole: they fuse, or have the bandwidth.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

# Three panels fit in a second-level cache of 2 MB.
_BYTES = 1 << 19
# Each panel costs the launch of its operations.
_MOST = 8

Panel = tuple[slice, tuple[slice, ...]]


def panels(x: Tensor) -> Iterator[Panel]:
    """Indices that cut a stack x (S, m, ...) into pieces, some whole matrices or rows of one.

    For each piece, the index of its matrices in the stack, and the index of the piece.
    """
    whole = slice(None)
    # compilers first: they may not know how large x is
    if torch.compiler.is_compiling() or x.device.type != "cpu" or x.dim() < 2 or x.nbytes <= _BYTES:
        yield whole, (whole,)
        return
    wanted = max(_BYTES, x.nbytes // _MOST)
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

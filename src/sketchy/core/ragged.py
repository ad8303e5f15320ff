"""Stacks of unlike matrices whose small factors are alike: those are done in one batch, and parted again."""

from collections.abc import Sequence

import torch
from torch import Tensor


def joined(parts: Sequence[Tensor]) -> Tensor:
    """One stack of several (S_i, ...), which must be shaped alike but for S_i; a single one as it is."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


def parted(stack: Tensor, stacks: Sequence[Tensor]) -> Sequence[Tensor]:
    """Undo `joined`: as many of a stack for each of ``stacks`` as it has matrices."""
    return (stack,) if len(stacks) == 1 else torch.split_with_sizes(stack, [x.shape[0] for x in stacks])


def constants(values: Sequence[float], stacks: Sequence[Tensor]) -> Tensor:
    """A number for each of ``stacks``, to go with what was joined: float64, made where they are."""
    shapes = [(len(each),) for each in stacks] if len(stacks) > 1 else [()]
    device = stacks[0].device
    return joined(
        [
            torch.full(shape, value, dtype=torch.float64, device=device)
            for shape, value in zip(shapes, values, strict=True)
        ]
    )

"""Cut weights into blocks and join them again: which axes are merged, and where they are cut.

weight (*shape) → merged (d_1, ..., d_N) → blocks (count, b_1, ..., b_N), padded with zeros at the end of each
axis. A zero row adds nothing to a covariance and gets a zero step, so padding changes no result. Averages are
exceptions, since they also count padded entries: the one that replaces the eigenvalue of directions never
seen, SketchySOAP's second moment outside its bases, whitening's mean eigenvalue, and the mean of row norms.
"""

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """How a weight of one shape is cut into blocks."""

    shape: tuple[int, ...]  # of the weight
    merged: tuple[int, ...]  # d_1, ..., d_N: its shape after merging neighbouring axes
    block: tuple[int, ...]  # b_1, ..., b_N: the shape of one block
    cuts: tuple[int, ...]  # the number of blocks along each axis
    stacked: bool = False  # whether the first axis of the weight counts its blocks

    @cached_property
    def count(self) -> int:
        """The number of blocks in one weight."""
        return math.prod(self.cuts)

    def split(self, x: Tensor) -> Tensor:
        """(K, *shape) → (K * count, *block). The result may be a view of x: do not write to it."""
        x = x.reshape(len(x), *self.merged)
        if self.count == 1:
            return x
        padding = [c * b - d for d, b, c in zip(self.merged, self.block, self.cuts, strict=True)]
        if any(padding):  # `pad` copies even where there is nothing to pad
            x = torch.nn.functional.pad(x, [side for end in reversed(padding) for side in (0, end)])
        axes = range(len(self.merged))
        pairs = zip(self.cuts, self.block, strict=True)
        x = x.reshape(len(x), *(size for pair in pairs for size in pair))
        x = x.permute(0, *(1 + 2 * i for i in axes), *(2 + 2 * i for i in axes))
        return x.reshape(len(x) * self.count, *self.block)

    def each(self, values: Tensor) -> Tensor:
        """(K,) → (K * count,): repeat the value of each weight for each of its blocks."""
        return values if self.count == 1 else values.repeat_interleave(self.count)

    def join(self, blocks: Tensor) -> Tensor:
        """(K * count, *block) → (K, *shape): undoes ``split``."""
        if self.count > 1:
            n = len(self.merged)
            blocks = blocks.reshape(-1, *self.cuts, *self.block)
            blocks = blocks.permute(0, *(1 + i + side * n for i in range(n) for side in (0, 1)))
            blocks = blocks.reshape(-1, *(c * b for c, b in zip(self.cuts, self.block, strict=True)))
            blocks = blocks[(slice(None), *(slice(d) for d in self.merged))]
        return blocks.reshape(len(blocks), *self.shape)


@lru_cache(maxsize=4096)
def layout(
    shape: tuple[int, ...],
    *,
    merge_dims: int | None,
    block_size: int | None,
    flat: bool = False,
    stacked: bool = False,
) -> Layout:
    """The layout of a weight.

    ``flat`` makes it one vector, as S-AdaGrad sees it (Alg. 2). With ``stacked``, a weight with three or more
    axes is a stack of matrices, as of experts (E, m, n): each of them is one block. A stack of vectors,
    (E, 1, n), is the matrix (E, n) all the same.
    """
    if stacked and not flat and sum(size != 1 for size in shape[1:]) > 1:
        rows, *others = merge(shape[1:], merge_dims)
        cuts = (shape[0], *[1] * len(others))
        return Layout(shape, (shape[0] * rows, *others), (rows, *others), cuts, stacked=True)
    merged = (math.prod(shape),) if flat else merge(shape, merge_dims)
    cuts = tuple(1 if block_size is None else max(1, -(-d // block_size)) for d in merged)
    # the smallest blocks for this number of cuts: they need the least padding
    block = tuple(-(-d // c) for d, c in zip(merged, cuts, strict=True))
    return Layout(shape, merged, block, cuts)


def merge(shape: tuple[int, ...], merge_dims: int | None) -> tuple[int, ...]:
    """Merge neighbouring axes, but keep at least two. Axes of length one are dropped.

    With ``merge_dims=None`` the result is the matrix (first axis, all others). With a number, neighbouring
    axes are merged from the first one on, as long as their product is at most this number.
    """
    axes = [size for size in shape if size != 1]
    if len(axes) < 2:
        return (math.prod(shape),)
    if merge_dims is None:
        return axes[0], math.prod(axes[1:])
    merged = axes[:1]
    for size in axes[1:]:
        if merged[-1] * size <= merge_dims:
            merged[-1] *= size
        else:
            merged.append(size)
    return tuple(merged) if len(merged) > 1 else (axes[0], math.prod(axes[1:]))


def as_matrix(x: Tensor) -> Tensor:
    """Reshape (S, b_1, ..., b_N) to (S, b_1, rest)."""
    return x.reshape(*x.shape[:2], math.prod(x.shape[2:]))  # -1 is refused if there are no entries


def unfold(x: Tensor, axis: int) -> Tensor:
    """Reshape (S, b_1, ..., b_N) to matrices (S, b_axis, rest), whose columns are fibres along ``axis``."""
    if x.dim() == 3:
        return (x, x.mT)[axis]
    return as_matrix(x.movedim(1 + axis, 1))


def fold(matrix: Tensor, axis: int, like: Tensor) -> Tensor:
    """Undo ``unfold``: (S, b_axis, rest) back to the shape of ``like``."""
    if like.dim() == 3:
        return (matrix, matrix.mT)[axis]
    return matrix.reshape(like.movedim(1 + axis, 1).shape).movedim(1, 1 + axis)

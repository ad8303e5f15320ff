"""A weight, and the bytes of state that an optimizer keeps for it."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from sketchy.core.axes import merge
from sketchy.optim import SketchyShampoo

GROUPS = ("matrices", "embeddings", "vectors")  # output heads count as embeddings


@dataclass(frozen=True)
class Weight:
    """The properties of a weight on which an optimizer's state depends."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    path: str = "auto"  # sketch or adam; auto: chosen by shape

    @classmethod
    def named(cls, name: str | None, shape: Iterable[int], dtype: torch.dtype = torch.float32) -> "Weight":
        """A weight with the path that our optimizers choose for this name and shape."""
        shape = tuple(shape)
        return cls(shape, dtype, SketchyShampoo.path_of(shape, name))

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.count * self.dtype.itemsize

    @property
    def sides(self) -> tuple[int, ...]:
        """The axes that our optimizers precondition. An N-d weight is the matrix (first axis, all others)."""
        return merge(self.shape, None)

    @property
    def group(self) -> str:
        if SketchyShampoo.path_of(self.shape, path=self.path) == "sketch":
            return GROUPS[0]
        return GROUPS[1] if sum(size != 1 for size in self.shape) > 1 else GROUPS[2]


@dataclass(frozen=True)
class Held:
    """Bytes of state, by purpose."""

    momentum: int = 0
    second_moment: int = 0  # everything for preconditioning: squares, factors, bases, windows
    other: int = 0  # the graft's moments, counters

    @property
    def total(self) -> int:
        return self.momentum + self.second_moment + self.other

    def __add__(self, more: "Held") -> "Held":
        return Held(
            self.momentum + more.momentum, self.second_moment + more.second_moment, self.other + more.other
        )

    def __mul__(self, times: int) -> "Held":
        return Held(times * self.momentum, times * self.second_moment, times * self.other)


Rule = Callable[[Weight], Held]

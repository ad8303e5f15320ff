"""Exchange between the ranks of a process group, outside of a step (in a step: `core.spread`)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

T = TypeVar("T")
Tensors = dict[str, Any]  # by name


@dataclass(frozen=True, eq=False)
class Members:
    """The ranks of one process group."""

    group: Any
    index: int  # of this rank
    count: int

    def objects(self, own: T) -> list[T]:
        """The objects of all ranks, in the order of ranks."""
        from torch import distributed

        found: list[Any] = [None] * self.count
        distributed.all_gather_object(found, own, group=self.group)
        return found

    def reduce(self, own: Tensors, merge: Callable[[Tensors, Tensors], Tensors]) -> Tensors:
        """Merge the tensors of all ranks, as a tree, in the order of ranks. All get the first rank's result.

        All tensors have the same shapes and dtypes on all ranks.
        """
        from torch import distributed

        ranks = distributed.get_process_group_ranks(self.group)
        own, step = _contiguous(own), 1
        while step < self.count and self.index % step == 0:
            if self.index % (2 * step):
                for x in own.values():
                    distributed.send(x, ranks[self.index - step], group=self.group)
            elif self.index + step < self.count:
                other = _empty(own)
                for x in other.values():
                    distributed.recv(x, ranks[self.index + step], group=self.group)
                own = _contiguous(merge(own, other))
            step *= 2
        own = own if self.index == 0 else _empty(own)
        for x in own.values():
            distributed.broadcast(x, ranks[0], group=self.group)
        return own


def members(group: Any = None) -> Members:
    """The ranks of a process group, or all ranks."""
    from torch import distributed

    if not distributed.is_available() or not distributed.is_initialized():
        raise RuntimeError("no process group: call torch.distributed.init_process_group first")
    index = distributed.get_rank(group)
    if index < 0:
        raise ValueError("this rank is not in the group: call it only on the ranks of the group")
    group = distributed.group.WORLD if group is None else group
    return Members(group, index, distributed.get_world_size(group))


def _contiguous(tensors: Tensors) -> Tensors:
    return {name: x.contiguous() for name, x in tensors.items()}


def _empty(tensors: Tensors) -> Tensors:
    return {name: torch.empty_like(x) for name, x in tensors.items()}

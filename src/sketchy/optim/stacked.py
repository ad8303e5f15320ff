"""Requests that stack the tensors of K parameters, and that copy back: those of a wave take one copy each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from sketchy.core.tasks import Request


@dataclass(frozen=True, eq=False)
class Stacked(Request):
    """A request for K tensors in one, (K, ...) or joined. Those of one dtype take a single copy."""

    joins: ClassVar[bool] = False
    cat: bool = False  # whether the first dimensions are joined

    @property
    def key(self) -> Any:
        return Stacked, self.tensors[0].dtype, self.tensors[0].device

    @classmethod
    def answers(cls, requests: Sequence[Any], tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        flat = torch.cat([x.reshape(-1) for request in requests for x in request.tensors])
        pieces = flat.split_with_sizes([sum(x.numel() for x in request.tensors) for request in requests])
        found = []
        for request, piece in zip(requests, pieces, strict=True):
            (first, *_), count = request.tensors, len(request.tensors)
            shape = (count * len(first), *first.shape[1:]) if request.cat else (count, *first.shape)
            found.append(piece.view(shape))
        return found


@dataclass(frozen=True, eq=False)
class Copied(Request):
    """A request to copy ``sources`` into the tensors, one by one."""

    joins: ClassVar[bool] = False
    sources: Sequence[Tensor] = ()

    @property
    def key(self) -> Any:
        return Copied, self.tensors[0].dtype, self.tensors[0].device

    @classmethod
    def answers(cls, requests: Sequence[Any], tensors: Sequence[Tensor]) -> Sequence[None]:
        targets = [x for request in requests for x in request.tensors]
        torch._foreach_copy_(targets, [x for request in requests for x in request.sources])
        return [None] * len(requests)


def stacked(tensors: Sequence[Tensor]) -> Tensor:
    """Stack K tensors to (K, ...). The result for a single tensor is a view."""
    return tensors[0].unsqueeze(0) if len(tensors) == 1 else torch.stack(list(tensors))

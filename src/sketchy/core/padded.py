"""Functions of rows (S, m) in one batch, although m differs between stacks: rows are padded with zeros.

The weights of a network have many shapes. Without this, the small operations on numbers of their rows would
be started once for each shape. Only accelerators pad; on the CPU a call is cheap.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from sketchy.core.tasks import Request, Task, batches, called, joined, kept, split

T = TypeVar("T")


def padded(
    function: Callable[..., T], *tensors: Tensor, numbers: tuple[float, ...] = (), **options: Any
) -> Task[T]:
    """The result of ``function(*tensors, *numbers, **options)``, on an accelerator in one batch.

    The first tensor is (S, m). The others and the results are (S, m) or (S,). Zeros at the end of rows must
    not change the rest. ``numbers``: see `core.tasks.Request`.
    """
    if not batches(tensors[0]):
        return function(*tensors, *numbers, **options)
    answer: T = yield Padded(function, tensors, numbers, options)
    return answer


@dataclass(frozen=True, eq=False)
class Padded(Request):
    """A request whose tensors (S, m) may be padded."""

    joins: ClassVar[bool] = False

    @property
    def key(self) -> Any:
        tensors = ((x.dim(), x.dtype, x.device) for x in self.tensors)
        return Padded, self.function, *self.options.items(), len(self.numbers), *tensors

    @classmethod
    def answers(cls, requests: Sequence[Any], tensors: Sequence[Tensor]) -> Sequence[Any]:
        shapes = [request.tensors[0].shape for request in requests]
        longest = max(m for _, m in shapes)
        answers = split(called(requests, _columns(requests, shapes, longest)), [S for S, _ in shapes])
        return [_cut(answer, longest, m) for answer, (_, m) in zip(answers, shapes, strict=True)]


def _columns(requests: Sequence[Padded], shapes: Sequence[Any], longest: int) -> list[Tensor]:
    """The tensors of all requests, joined: (S, longest) or (S,)."""
    columns = [*zip(*(request.tensors for request in requests), strict=True)]
    if all(m == longest for _, m in shapes):
        return joined([columns])[0]
    wide: dict[torch.dtype, list[int]] = {}
    for i, parts in enumerate(columns):
        if parts[0].dim() == 2:
            wide.setdefault(parts[0].dtype, []).append(i)
    thin = [i for i, parts in enumerate(columns) if parts[0].dim() != 2]
    found = dict(zip(thin, joined([[columns[i] for i in thin]])[0], strict=True))
    first = columns[0][0]
    where, empty = kept(_layout, first)(tuple(shapes), first.device)
    for some in wide.values():
        flat = torch.cat([x.reshape(-1) for i in some for x in columns[i]]).view(len(some), -1)
        full = flat.index_select(1, where).masked_fill_(empty, 0.0).view(len(some), -1, longest)
        found |= dict(zip(some, full.unbind(), strict=True))
    return [found[i] for i in range(len(columns))]


@lru_cache(256)
def _layout(shapes: Sequence[Any], device: torch.device) -> tuple[Tensor, Tensor]:
    """For each padded entry, its place among the entries in order, and whether it is padding."""
    longest, start, where = max(m for _, m in shapes), 0, []
    columns = torch.arange(longest, device=device)
    for S, m in shapes:
        rows = start + m * torch.arange(S, device=device).unsqueeze(-1)
        where.append(torch.where(columns < m, rows + columns, -1).reshape(-1))
        start += S * m
    found = torch.cat(where)
    return found.clamp(min=0), found < 0


def _cut(answer: Any, longest: int, m: int) -> Any:
    if isinstance(answer, tuple):
        return tuple(_cut(part, longest, m) for part in answer)
    return answer[:, :m] if answer.dim() == 2 and answer.shape[1] == longest else answer

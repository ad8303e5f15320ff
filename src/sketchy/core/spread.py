"""Axes whose entries lie on several ranks: a product over such an axis is local, then summed over the ranks.

This is all that training with sharded weights changes in the math (DTensor's arithmetic would gather whole
matrices, and decide by local values). A sum is a request (`core.tasks`), so the sums of all stacks in a wave
go in one flat collective. For an axis that lies here as a whole, the spread is None, and nothing is sent.

Small matrices, which all ranks know, are decomposed by one rank each (`solved`), and the results are shared.
This saves work. And all ranks go on with the same bits: eigenvectors of two matrices that differ by one
rounding may have nothing in common.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from sketchy.core.extremes import column_norms, row_norms
from sketchy.core.tasks import Request, Task, Unread, called, divided


@dataclass(frozen=True, eq=False)
class Ranks:
    """All ranks that step a weight together."""

    groups: tuple[Any, ...]  # process groups: summing over one after the other sums over all ranks
    index: int  # of this rank
    count: int


@dataclass(frozen=True, eq=False)
class Planned:
    """A process group that exists on paper only. What would be sent is noted (`analysis.traffic`)."""

    group_name: str
    size: int
    notes: list[tuple[str, int, int]]  # of each collective: its kind, bytes given by a rank, and size

    def note(self, kind: str, x: Tensor) -> None:
        self.notes.append((kind, x.numel() * x.element_size(), self.size))


@dataclass(frozen=True, eq=False)
class Spread:
    """Where the entries of one axis lie."""

    size: int  # of the whole axis
    here: Tensor  # the numbers of the entries that lie here, (size here,)
    first: int  # of these numbers; 0 if there are none
    groups: tuple[Any, ...]  # the process groups over which it is spread
    parts: int  # the number of ranks over which it is spread
    ranks: Ranks


Spreads = tuple[Spread | None, ...]  # of the axes of a matrix or block; None: the whole axis lies here
WHOLE: Spreads = (None, None)


def size(here: int, spread: Spread | None) -> int:
    """The length of a whole axis, of which ``here`` entries lie here."""
    return here if spread is None else spread.size


def total(x: Tensor, *spreads: Spread | None) -> Task[Tensor]:
    """The sum of x over the ranks that share these axes. x may be overwritten."""
    return (yield from _collective(x, spreads, "SUM"))


def largest(x: Tensor, *spreads: Spread | None) -> Task[Tensor]:
    """The maximum of x, entry by entry, over the ranks that share these axes. x may be overwritten."""
    return (yield from _collective(x, spreads, "MAX"))


def row_lengths(A: Tensor, *spreads: Spread | None) -> Task[Tensor]:
    """The norms of the rows (S, d) of A, float64, whose columns may lie on several ranks."""
    return (yield from _lengths(row_norms(A), spreads))


def column_lengths(A: Tensor, *spreads: Spread | None) -> Task[Tensor]:
    """The norms of the columns (S, k) of A, float64, whose rows may lie on several ranks."""
    return (yield from _lengths(column_norms(A), spreads))


def _lengths(here: Tensor, spreads: Spreads) -> Task[Tensor]:
    """Norms over ranks from those of the parts; no square is formed if nothing is spread."""
    if not any(spreads):
        return here
    return (yield from total(here.square(), *spreads)).sqrt()


def norm(energy: Tensor, *spreads: Spread | None) -> Task[Tensor]:
    """The root of the sum of energies (S, d), float64, over the last axis and over ranks."""
    return (yield from total(energy.sum(-1), *spreads)).sqrt()


def whole(x: Tensor, spread: Spread | None, dim: int = -2) -> Task[Tensor]:
    """All entries of a spread axis, the dimension ``dim`` of x: parts are added up, with zeros elsewhere."""
    if spread is None:
        return x
    shape = list(x.shape)
    shape[dim] = spread.size
    parts = x.new_zeros(shape).index_copy_(dim, spread.here, x)
    return (yield from total(parts, spread))


def fetch(parts: Sequence[tuple[Tensor, Spread]]) -> list[Callable[[], Tensor]]:
    """Start to gather matrices (S, size here, l), in one all-gather; each function waits for one of them.

    All have the same dtype, device and group. The ranks of the group have consecutive rows.
    """
    _, spread = parts[0]
    (group,) = spread.groups
    longest = [-(-spread.size // spread.parts) for _, spread in parts]
    own = [pad(x, (0, 0, 0, most - x.shape[-2])) for (x, _), most in zip(parts, longest, strict=True)]
    found, wait_for_all = all_gather(torch.cat([x.reshape(-1) for x in own]), spread.parts, group)

    def waiting(start: int, shape: torch.Size, spread: Spread) -> Callable[[], Tensor]:
        def wait() -> Tensor:
            wait_for_all()
            pieces = found[:, start : start + shape.numel()].reshape(-1, *shape)  # (ranks, S, rows, l)
            return pieces.transpose(0, 1).flatten(1, 2)[:, : spread.size]

        return wait

    starts = accumulate((x.numel() for x in own), initial=0)
    return [
        waiting(start, x.shape, spread) for start, x, (_, spread) in zip(starts, own, parts, strict=False)
    ]


def all_gather(flat: Tensor, parts: int, group: Any) -> tuple[Tensor, Callable[[], object]]:
    """The vectors (n,) of all ``parts`` ranks of a group, (parts, n), and a function that waits for them."""
    from torch import distributed

    found = flat.new_empty(parts, flat.numel())
    if isinstance(group, Planned):
        group.note("all_gather", flat)
        return found, lambda: None
    # torch 2.13 renames it
    single = getattr(distributed, "all_gather_single", None) or distributed.all_gather_into_tensor
    work = single(found.view(-1), flat, group=group, async_op=True)

    def wait(flat: Tensor = flat) -> object:  # what is sent stays in memory until then
        return work.wait()

    return found, wait


def part(x: Tensor, spread: Spread | None, dim: int = -2) -> Tensor:
    """The entries that lie here: undoes `whole`."""
    return x if spread is None else x.index_select(dim, spread.here)


def solved(spreads: Spreads, function: Callable[..., Any], *tensors: Tensor, **options: Any) -> Task[Any]:
    """``function(*tensors, **options)``, batched; each matrix on one rank, if all ranks know the tensors."""
    ranks = next((spread.ranks for spread in spreads if spread is not None), None)
    if ranks is None:
        return (yield Request(function, tensors, options=options, decomposes=True))
    return (yield Shared(function, tensors, options=options, decomposes=True, ranks=ranks))


def _collective(x: Tensor, spreads: Spreads, operation: str) -> Task[Tensor]:
    groups = tuple(group for spread in spreads if spread is not None for group in spread.groups)
    if not groups:
        return x
    return (yield Collective(_flat, (x,), options={"operation": operation}, groups=groups))


@dataclass(frozen=True, eq=False)
class Collective(Request):
    """A request for the sum or the maximum of one tensor of any shape over ranks."""

    joins: ClassVar[bool] = False
    groups: tuple[Any, ...] = ()

    @property
    def key(self) -> Any:
        (x,) = self.tensors
        return Collective, self.options["operation"], _names(self.groups), x.dtype, x.device

    @classmethod
    def answers(cls, requests: Sequence[Any], tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        flat = torch.cat([request.tensors[0].reshape(-1) for request in requests])
        _flat(flat, groups=requests[0].groups, **requests[0].options)
        parts = flat.split([request.tensors[0].numel() for request in requests])
        return [part.view(request.tensors[0].shape) for part, request in zip(parts, requests, strict=True)]


@dataclass(frozen=True, eq=False)
class Shared(Request):
    """A request whose tensors all ranks know: each matrix is computed by one of them."""

    ranks: Ranks = Ranks((), 0, 1)

    @property
    def key(self) -> Any:
        return Shared, _names(self.ranks.groups), super().key

    @classmethod
    def answers(cls, requests: Sequence[Any], tensors: Sequence[Tensor]) -> Sequence[Any]:
        first, ranks = requests[0], requests[0].ranks

        def share(*arguments: Any, **options: Any) -> Any:
            count = len(first.tensors)
            rows = slice(ranks.index, None, ranks.count)
            known = len(arguments[0]) > ranks.index
            # a rank without a matrix takes the first one, to know the shapes of results
            own = [x[rows] if known else x[:1] for x in arguments[:count]]
            found = first.function(*own, *arguments[count:], **options)
            return _shared(found, rows if known else slice(0, 0), len(arguments[0]), ranks)

        return divided(requests, called(requests, tensors, share))


def _shared(found: Any, rows: slice, count: int, ranks: Ranks) -> Any:
    """Results (count, ...) of all ranks, of which ``found`` are those at ``rows``."""
    if isinstance(found, Tensor):
        return _shared((found,), rows, count, ranks)[0]
    tensors = [x for part in found for x in (part if isinstance(part, Unread) else (part,))]
    # float64 holds all that is sent: float32, float64, small integers and booleans
    parts = [x.new_zeros(count, *x.shape[1:], dtype=torch.float64) for x in tensors]
    for part, x in zip(parts, tensors, strict=True):
        part[rows] = x[: len(part[rows])].double()
    flat = torch.cat([part.reshape(-1) for part in parts])
    _flat(flat, groups=ranks.groups, operation="SUM")
    pieces = zip(flat.split([part.numel() for part in parts]), parts, tensors, strict=True)
    results = iter([piece.view(part.shape).to(x.dtype) for piece, part, x in pieces])
    return tuple(
        Unread(next(results) for _ in part) if isinstance(part, Unread) else next(results) for part in found
    )


def _flat(x: Tensor, *, groups: Sequence[Any], operation: str) -> Tensor:
    from torch import distributed

    for group in groups:
        if isinstance(group, Planned):
            group.note("all_reduce", x)
            continue
        distributed.all_reduce(x, getattr(distributed.ReduceOp, operation), group=group)
    return x


def _names(groups: Sequence[Any]) -> tuple[str, ...]:
    return tuple(group.group_name for group in groups)

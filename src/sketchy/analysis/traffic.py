"""What an optimizer keeps and sends on each rank under FSDP2 and HSDP, computed from the shapes of weights.

Nothing is typed in here. Placements are those of the real state (`optim.sharding`), on a mesh that exists on
paper only. And the real step runs once, on meta tensors, which have shapes but no numbers, in process groups
that note what would be sent. Meta tensors take the path of an accelerator. On the CPU a step sends the same
thin matrices, and less of the small ones.
"""

import inspect
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from sketchy.analysis.state import Weight
from sketchy.core.arguments import check_count
from sketchy.core.spread import Planned
from sketchy.core.tasks import gather, run
from sketchy.optim.engine import Engine
from sketchy.optim.options import check, on_path
from sketchy.optim.plan import stack_limit
from sketchy.optim.schedule import fetch, waves
from sketchy.optim.sharding import Sharding
from sketchy.optim.slots import State
from sketchy.optim.stack import Stack
from sketchy.optim.step import step

META = torch.device("meta")


@dataclass(frozen=True)
class Message:
    """One collective, as one rank sees it."""

    kind: str  # all_reduce, all_gather
    bytes: int  # that the rank gives
    ranks: int

    @property
    def sent(self) -> float:
        """Bytes that the rank sends if ranks form a ring. An all-reduce is a reduce-scatter and a gather."""
        if self.kind == "all_gather":
            return (self.ranks - 1) * self.bytes
        return 2 * (self.ranks - 1) / self.ranks * self.bytes


@dataclass(frozen=True)
class Mesh:
    """A device mesh on paper: ``shards`` ranks that divide the weights, in ``replicas`` copies (HSDP)."""

    shards: int
    replicas: int = 1
    last: bool = False  # whether this is the last rank, which has the smallest parts, or the first

    def __post_init__(self) -> None:
        check_count("shards", self.shards, 1, "at least 1: the number of ranks that divide the weights")
        check_count("replicas", self.replicas, 1, "at least 1: the number of copies of the weights (HSDP)")

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.shards,) if self.replicas == 1 else (self.replicas, self.shards)

    @cached_property
    def notes(self) -> list[tuple[str, int, int]]:
        """Of all process groups of the mesh."""
        return []

    def size(self, dim: int) -> int:
        return self.shape[dim]

    def get_coordinate(self) -> tuple[int, ...]:
        return tuple(size - 1 if self.last else 0 for size in self.shape)

    def get_group(self, dim: int) -> Planned:
        return Planned(f"dimension {dim}", self.shape[dim], self.notes)

    def placements(self, weight: Weight, axis: int) -> tuple[Any, ...]:
        """Those of FSDP2 (axis 0) or HSDP. A single number is on all ranks."""
        from torch.distributed.tensor import Replicate, Shard

        own = Shard(axis if axis < len(weight.shape) else 0) if weight.shape else Replicate()
        return (own,) if self.replicas == 1 else (Replicate(), own)


class OnPaper:
    """A sharded weight without entries: what `Sharding` reads of a DTensor."""

    def __init__(self, weight: Weight, mesh: Mesh, axis: int) -> None:
        self.shape, self.device, self.device_mesh = weight.shape, META, mesh
        self.placements = mesh.placements(weight, axis)

    def dim(self) -> int:
        return len(self.shape)


@dataclass(frozen=True)
class OnRanks:
    """State and traffic of a rank. A step that updates the sketches is counted."""

    most: int  # bytes of state on the rank that has most
    least: int  # and on the one that has least
    messages: tuple[Message, ...]  # the collectives of one step, in order
    gathered: int  # bytes of gradients that each step gathers as a whole
    reasons: Mapping[str, int]  # why, and how many bytes

    @property
    def collectives(self) -> int:
        return len(self.messages)

    @property
    def sent(self) -> int:
        """Bytes that a rank sends in one step."""
        return round(sum(message.sent for message in self.messages))


def on_ranks(
    optimizer: type[Engine],
    weights: Iterable[Weight],
    shards: int,
    replicas: int = 1,
    *,
    axis: int = 0,
    **options: Any,
) -> OnRanks:
    """State and traffic of one of our optimizers. ``axis``: the axis of matrices that is sharded."""
    given = inspect.signature(optimizer).bind((), **options)
    given.apply_defaults()
    group = check(given.arguments, "")
    counts = Counter(weights)
    sizes, reasons = [], Counter[str]()
    for mesh in (Mesh(shards, replicas), Mesh(shards, replicas, last=True)):
        held = {w: _sharding(optimizer, w, mesh, axis, group) for w in counts}
        sizes.append(sum(held[w].bytes_here * times for w, times in counts.items()))
    for w, times in counts.items():
        if shards > 1 and (why := held[w].gathers):
            reasons[why] += w.bytes * times
    messages = _messages(optimizer, counts, Mesh(shards, replicas), axis, group) if shards > 1 else ()
    return OnRanks(sizes[0], sizes[1], tuple(messages), reasons.total(), dict(reasons))


def batches_on_ranks(
    optimizer: type[Engine], weights: Iterable[Weight], shards: int, *, axis: int = 0, **options: Any
) -> int:
    """The batches of eigenproblems of one step: one for each wave with a weight that is sketched."""
    given = inspect.signature(optimizer).bind((), **options)
    given.apply_defaults()
    group = check(given.arguments, "")
    counts, mesh = Counter(weights), Mesh(shards)
    sharded = {w: _sharding(optimizer, w, mesh, axis, group) for w in counts if w.count}
    return sum(any(sharded[w].plan.axes for w in wave) for wave in _waves(sharded, counts, group))


def _sharding(
    optimizer: type[Engine], weight: Weight, mesh: Mesh, axis: int, group: Mapping[str, Any]
) -> Sharding:
    plan = optimizer.plan_of(weight.shape, weight.dtype, **{**group, "path": weight.path})
    return Sharding(OnPaper(weight, mesh, axis), plan, group.get("solver"))


def _messages(
    optimizer: type[Engine], counts: Mapping[Weight, int], mesh: Mesh, axis: int, group: Mapping[str, Any]
) -> list[Message]:
    """The collectives of one step on the first rank, whose parts are the largest."""
    sharded = {w: _sharding(optimizer, w, mesh, axis, group) for w in counts if w.count}
    found: list[Message] = []
    known: dict[Any, list[Message]] = {}  # most waves are alike
    for together in _waves(sharded, counts, group):
        key = frozenset(together.items())
        if key not in known:
            # in a wave, several stacks of one kind send the same as one long stack
            some = [_stack(w, sharded[w], times, group) for w, times in together.items()]
            fetch(some)
            run(gather(map(step, some)))
            known[key] = [Message(*note) for note in mesh.notes]
            mesh.notes.clear()
        found += known[key]
    return found


def _waves(
    sharded: Mapping[Weight, Sharding], counts: Mapping[Weight, int], group: Mapping[str, Any]
) -> list[Counter[Weight]]:
    """The weights of each wave of a step."""
    stacks: list[Stack] = []
    kinds: dict[int, Weight] = {}
    for weight, shards in sharded.items():
        kinds[id(shards.place)] = weight
        most = stack_limit(shards.plan, META, group)
        for first in range(0, counts[weight], most):
            stacks.append(_stack(weight, shards, min(most, counts[weight] - first), group))
    found = []
    for wave in waves(stacks):
        together = Counter[Weight]()
        for stack in wave:
            together[kinds[id(stack.place)]] += len(stack.params)
        found.append(together)
    return found


def _stack(weight: Weight, shards: Sharding, count: int, group: Mapping[str, Any]) -> Stack:
    """``count`` weights on paper, with their state, and gradients that are gathered if they must be."""
    place, plan, mesh = shards.place, shards.plan, shards.mesh
    state: State = {
        name: torch.empty(shards.shape_here(slot), dtype=slot.codec.dtype, device=META)
        for name, slot in plan.slots.items()
    }
    state |= {name: slot.create(META) for name, slot in plan.slots.items() if slot.on_host}
    p = torch.empty(shards.here, dtype=weight.dtype, device=META)
    whole = p if place.gathered is None else torch.empty(weight.shape, dtype=weight.dtype, device=META)

    def gradients() -> list[torch.Tensor]:
        for _ in range(0 if place.gathered is None else count):
            mesh.get_group(-1).note("all_gather", p)
        return [whole] * count

    return Stack([p] * count, [state] * count, plan, on_path(dict(group), plan.path), True, gradients, place)

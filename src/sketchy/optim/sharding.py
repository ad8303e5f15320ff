"""Sharded weights (DTensors): where their parts lie, and those of their state.

All is read from the weight itself: its mesh and its placements. The plan describes whole tensors, so it does
not depend on the number of ranks. What runs along a sharded axis is sharded in the same way. A basis along
the other axis is kept in parts, too, and is gathered for a step. Small tensors are the same on all ranks. So
the state of a sharded weight has DTensors and plain tensors, which checkpoints of
`torch.distributed.checkpoint` can move to other numbers of ranks.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from sketchy.core.axes import Layout
from sketchy.core.spread import Ranks, Spread, Spreads, part
from sketchy.optim.plan import AxisRanks, Plan
from sketchy.optim.slots import Meaning, Slot, State, is_sharded
from sketchy.optim.split import rows_of

_NUMBERS: dict[Any, Tensor] = {}  # numbers of entries that lie here (CPU); they need no process group


def local(x: Tensor) -> Tensor:
    """The part of x that lies here, in the memory of x; x itself if it is a plain tensor."""
    return _arrived(x.to_local()) if is_sharded(x) else x  # type: ignore[attr-defined]


def local_state(state: State) -> State:
    return {name: local(value) for name, value in state.items()}


@dataclass(frozen=True)
class Place:
    """Where the parts of weights of one plan lie, and those of their state."""

    layout: Layout  # of the part that lies here
    spreads: Spreads  # of the axes of a block; for a weight on Adam's path, of the weight
    apart: Mapping[str, Spread] = field(default_factory=dict)  # bases that are gathered for a step
    blocks: Spread | None = None  # of the blocks of a stacked weight
    gathered: Spreads | None = None  # of the weight's axes, if gradients are gathered

    def gradient(self, p: Tensor) -> Tensor:
        """The gradient of p, as far as a step needs it here."""
        grad: Any = p.grad
        if grad.placements != p.placements:  # type: ignore[attr-defined]
            grad = grad.redistribute(placements=p.placements)  # type: ignore[attr-defined]
        return _arrived(grad.to_local() if self.gathered is None else grad.full_tensor())

    def part_of_gathered(self, direction: Tensor) -> Tensor:
        """The part of directions (K, *shape) that belongs to the weights here."""
        for axis, spread in enumerate(self.gathered or ()):
            direction = part(direction, spread, axis + 1)
        return direction


@dataclass(frozen=True)
class Sharding:
    """How one weight is sharded."""

    p: Any  # a DTensor: the weight, or the parts of a plain one; or a weight on paper (`analysis.traffic`)
    plan: Plan
    solver: str | None  # of the sketches

    @cached_property
    def mesh(self) -> Any:
        return self.p.device_mesh

    @cached_property
    def places(self) -> tuple[Any, ...]:
        return tuple(self.p.placements)

    @cached_property
    def key(self) -> Any:
        """Weights with the same key have the same place."""
        return id(self.plan), self.mesh, self.places, self.solver

    @cached_property
    def axes(self) -> tuple[int | None, ...]:
        """For each axis of the weight, the axis of a block that consists of it alone."""
        if self.plan.path != "sketch":
            return tuple(range(self.p.dim()))
        axes: list[int | None] = [None] * self.p.dim()
        dims = [i for i, size in enumerate(self.p.shape) if size != 1 and not (i == 0 and self.stacked)]
        for axis, size in enumerate(self.plan.layout.block if self.stacked else self.plan.layout.merged):
            own = [dims.pop(0)] if dims else []
            while dims and math.prod(self.p.shape[i] for i in own) < size:
                own.append(dims.pop(0))
            if len(own) == 1:
                axes[own[0]] = axis
        return tuple(axes)

    @cached_property
    def stacked(self) -> bool:
        """Whether the first axis of the weight counts its blocks."""
        return self.plan.path == "sketch" and self.plan.layout.stacked

    @cached_property
    def sharded(self) -> tuple[int, ...]:
        """The axes of the weight that are sharded."""
        return tuple(sorted({q.dim for q in self.places if hasattr(q, "dim")}))

    @cached_property
    def gathered(self) -> str:
        """Why gradients are gathered, and the state is the same on all ranks; empty if they are not."""
        plan, rows_only = self.plan, all(type(q).__name__ in ("Shard", "Replicate") for q in self.places)
        if not self.sharded or plan.path == "none":
            return ""
        if any(slot.meaning is Meaning.CODES for slot in plan.slots.values()):
            first = next((i for i, size in enumerate(self.p.shape) if size != 1), 0)
            if self.sharded != (0,) or first != 0 or self.p.dim() < 2 or not rows_only:
                return "codes of momentum do not lie along the rows"
        if plan.path == "adam":
            return ""
        if plan.layout.count > 1 and not self.stacked:
            return "blocks (block_size) cross the parts"
        along = [i for i in self.sharded if i > 0 or not self.stacked]
        if len(plan.layout.block) > 2 or any(self.axes[i] is None for i in along):
            return "a sharded axis is merged with others"
        if self.solver == "exact" and not all(axis.exact for axis in plan.statistics.live):
            return 'solver="exact" takes whole matrices'
        return ""

    @cached_property
    def gathers(self) -> str:
        """Why a step gathers whole gradients, also if the state is in parts; empty if it does not."""
        full = {axis.index for axis in self.plan.statistics.live if axis.exact}
        if not self.gathered and full & {self.axes[i] for i in self.sharded}:
            return "the full covariance of a sharded axis is kept"
        return self.gathered

    @cached_property
    def spreads(self) -> Spreads:
        """Of the axes of the weight."""
        return tuple(self.spread(size, i, self.places) for i, size in enumerate(self.p.shape))

    @cached_property
    def here(self) -> tuple[int, ...]:
        """The shape of the part of the weight that lies here."""
        sizes = zip(self.p.shape, self.spreads, strict=True)
        return tuple(size if spread is None else len(spread.here) for size, spread in sizes)

    @cached_property
    def place(self) -> Place:
        plan, spreads, here = self.plan, self.spreads, self.here
        if self.gathered:
            return Place(plan.layout, (None,) * len(plan.layout.block), gathered=spreads)
        if plan.path != "sketch":
            matrix = (here[0], math.prod(here[1:])) if len(here) > 1 else (math.prod(here),)
            return Place(Layout(here, matrix, matrix, (1,) * len(matrix)), spreads)
        block, own = list(plan.layout.block), list[Spread | None]([None] * len(plan.layout.block))
        for i, axis in enumerate(self.axes):
            if axis is not None:
                block[axis], own[axis] = here[i], spreads[i]
        apart = {}
        for name, slot in plan.slots.items():
            placed = self.placements(slot)
            if slot.meaning is Meaning.BASIS and placed is not None and own[slot.follows[0]] is None:  # type: ignore[index]
                apart[name] = self.spread(slot.shape[0], 1, placed)
        count = here[0] if self.stacked else 1
        merged = (count * block[0], *block[1:])
        cut = Layout(here, merged, tuple(block), (count, *[1] * (len(block) - 1)), self.stacked)
        kept = {name: s for name, s in apart.items() if s is not None}
        return Place(cut, tuple(own), kept, blocks=spreads[0] if self.stacked else None)

    def placements(self, slot: Slot) -> list[Any] | None:
        """The placements of a slot on the mesh of the weight; None if it is a plain tensor."""
        from torch.distributed.tensor import Replicate, Shard

        if self.gathered or slot.on_host or not slot.stored:
            return None
        first = 0 if slot.blocks is None else 1  # the first dimension counts blocks
        axes = tuple(range(self.p.dim())) if slot.blocks is None else self.axes
        spread = {axes[i] for i in self.sharded}
        result = []
        for q in self.places:
            axis = axes[q.dim] if hasattr(q, "dim") else None
            if self.stacked and first and getattr(q, "dim", None) == 0:
                result.append(q)
            elif axis is not None and axis in slot.follows:
                result.append(_moved(q, slot.follows.index(axis) + first))
            elif axis is not None and slot.meaning is Meaning.BASIS and slot.follows[0] not in spread:
                result.append(Shard(first))
            else:
                result.append(Replicate())
        return result if any(hasattr(q, "dim") for q in result) else None

    def spread(self, size: int, dim: int, places: Sequence[Any]) -> Spread | None:
        """How an axis is spread that has these placements for ``dim``."""
        places = [q if getattr(q, "dim", None) == dim else None for q in places]
        if not any(places):
            return None
        groups = tuple(self.mesh.get_group(i) for i, q in enumerate(places) if q is not None)
        here = self._numbers(size, places)
        first = int(here[0]) if here.numel() else 0
        parts = math.prod(self.mesh.size(i) for i, q in enumerate(places) if q is not None)
        return Spread(size, here.to(local(self.p).device), first, groups, parts, self.ranks)

    @cached_property
    def ranks(self) -> Ranks:
        """The ranks with the same blocks: all, unless blocks of a stacked weight lie on different ranks."""
        same = [i for i, q in enumerate(self.places) if not self.stacked or getattr(q, "dim", None) != 0]
        index, coordinates = 0, self.mesh.get_coordinate()
        for i in same:
            index = index * self.mesh.size(i) + coordinates[i]
        return Ranks(tuple(map(self.mesh.get_group, same)), index, math.prod(self.mesh.size(i) for i in same))

    def _numbers(self, size: int, places: Sequence[Any]) -> Tensor:
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor

        placed = tuple(Replicate() if q is None else _moved(q, 0) for q in places)
        key = size, tuple(self.mesh.shape), tuple(self.mesh.get_coordinate()), placed
        if key not in _NUMBERS and {type(q) for q in placed} <= {Replicate, Shard}:
            numbers = torch.arange(size)
            for i, q in enumerate(placed):
                most = -(-len(numbers) // self.mesh.size(i)) if type(q) is Shard else len(numbers)
                first = most * self.mesh.get_coordinate()[i] if type(q) is Shard else 0
                numbers = numbers[first : first + most]
            _NUMBERS[key] = numbers.clone()
        if key not in _NUMBERS:
            whole = distribute_tensor(torch.arange(size), self.mesh, placed, src_data_rank=None)
            _NUMBERS[key] = whole.to_local().cpu().clone()
        return _NUMBERS[key]

    # ---- the state

    @cached_property
    def bytes_here(self) -> int:
        """The size of the state that lies here."""
        slots = self.plan.slots.values()
        return sum(math.prod(self.shape_here(slot)) * slot.codec.dtype.itemsize for slot in slots)

    def shape_here(self, slot: Slot) -> tuple[int, ...]:
        """The shape of the part of a slot that lies here."""
        here, placed = list(slot.stored), self.placements(slot) or ()
        for dim in {q.dim for q in placed if hasattr(q, "dim")}:
            spread = self.spread(here[dim], dim, placed)
            here[dim] = here[dim] if spread is None else len(spread.here)
        return tuple(here)

    def create(self, kept: Mapping[str, Tensor] = MappingProxyType({})) -> State:
        """A new state: each rank makes its parts. ``kept``: slots that are there already."""
        device = local(self.p).device
        bases = dict(self.plan.statistics.new_bases(device, kept))
        state = {}
        for name, slot in self.plan.slots.items():
            if name in kept:
                state[name] = kept[name]
                continue
            value = bases.get(name)
            state[name] = self.stored(slot, slot.create(device) if value is None else value.contiguous())
        return state

    def stored(self, slot: Slot, value: Any) -> Tensor:
        """A slot of the state from a whole tensor, plain or sharded in any way, in new memory."""
        placed, kind = self.placements(slot), slot.codec.dtype
        if is_sharded(value) and placed is not None and value.device_mesh == self.mesh:
            here = value.redistribute(placements=placed).to_local()
        else:
            here = value.full_tensor() if is_sharded(value) else value
            for dim in {q.dim for q in placed or () if hasattr(q, "dim")}:
                here = part(here, self.spread(slot.stored[dim], dim, placed or ()), dim)
        device = "cpu" if slot.on_host else local(self.p).device
        here = _arrived(here).detach().to(device, kind, copy=True, memory_format=torch.contiguous_format)
        if placed is None:
            return here
        from torch.distributed.tensor import DTensor

        shape = torch.Size(slot.stored)
        stride = torch.empty(shape, device="meta").stride()
        return DTensor.from_local(here, self.mesh, placed, run_check=False, shape=shape, stride=stride)


def check_backends(p: Any, name: str) -> None:
    """Refuse a sharded weight on a device that its process groups do not reach, as with CPUOffloadPolicy."""
    mesh, here = p.device_mesh, p.device
    if here.type == mesh.device_type:
        return
    for i in range(mesh.ndim):
        try:
            mesh.get_group(i)._get_backend(here)
        except RuntimeError as error:
            both = f"{here.type}:gloo,{mesh.device_type}:nccl"
            raise RuntimeError(
                f"{name} is on the device {here.type}, but its process group has no backend for {here.type}."
                f' Ask for both: torch.distributed.init_process_group("{both}")'
            ) from error


def agreed(groups: Sequence[Mapping[str, Any]], split: Any, check: Callable[[], None]) -> None:
    """Call ``check``. If it raises an error on any rank, raise the first of these errors on all ranks."""
    problem: Exception | None = None
    try:
        check()
    except (TypeError, ValueError) as error:
        problem = error
    meshes = {p.device_mesh for group in groups for p in group["params"] if is_sharded(p)}
    meshes |= set() if split is None else {split}
    for mesh in sorted(meshes, key=str):
        for i in range(mesh.ndim):
            problem = _first(problem, mesh.get_group(i))
    if problem is not None:
        raise problem


def _first(problem: Exception | None, group: Any) -> Exception | None:
    """The first problem that a rank of the group has."""
    from torch import distributed

    found: list[Any] = [None] * distributed.get_world_size(group)
    distributed.all_gather_object(found, problem, group=group)
    return next((each for each in found if each is not None), None)


def decided_by_first(ranks: list[AxisRanks], weights: Sequence[Tensor], split: Any) -> list[AxisRanks]:
    """What the first rank of the mesh has decided, for all ranks: rounding could make them differ."""
    meshes = {p.device_mesh for p in weights if is_sharded(p)} | ({split} - {None})  # type: ignore[attr-defined]
    if len(meshes) > 1:
        raise ValueError(
            f"the weights that share a budget lie on {len(meshes)} meshes: give those of each mesh a group"
            " with a budget of its own (another number of bytes)"
        )
    from torch import distributed

    for mesh in meshes:
        device = mesh.device_type
        numbers = torch.tensor([rank for each in ranks for rank in each], dtype=torch.int64, device=device)
        for i in range(mesh.ndim):
            distributed.broadcast(numbers, group=mesh.get_group(i), group_src=0)
        values = iter(numbers.tolist())
        ranks = [tuple(next(values) for _ in each) for each in ranks]
    return ranks


def sharding(p: Tensor, plan: Plan, group: Mapping[str, Any], split: Any = None) -> Sharding | None:
    """How a weight of a parameter group is sharded; None for a plain tensor that each rank steps by itself.

    ``split``: a mesh whose ranks step plain weights in parts (`optim.split`). What cannot be stepped in parts
    is not: each rank has all of it.
    """
    if is_sharded(p):
        return Sharding(p, plan, group.get("solver"))
    if split is None or p.dim() == 0:
        return None
    shards = Sharding(rows_of(p, split), plan, group.get("solver"))
    return None if shards.gathered else shards


def _moved(place: Any, dim: int) -> Any:
    """The same placement for another dimension."""
    from torch.distributed.tensor import Shard

    return Shard(dim) if type(place) is Shard else type(place)(dim, split_factor=place.split_factor)


def _arrived(x: Tensor) -> Tensor:
    """x, after the collective that computes it."""
    wait: Callable[[], Tensor] | None = getattr(x, "wait", None)
    return x if wait is None else wait()

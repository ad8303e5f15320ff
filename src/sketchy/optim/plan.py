"""The plan of a weight: its path, blocks, parts and slots. It depends on shape, dtype and options only."""

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from sketchy.core.axes import Layout, layout
from sketchy.core.tuned import sizes
from sketchy.optim.options import OPTIONS, on_path
from sketchy.optim.parts.contracts import Graft, KnowsEnergy, Part, Preconditioner, WeightSpec
from sketchy.optim.parts.entry_moments import EntryMoments
from sketchy.optim.parts.grafts import RULES, Ungrafted
from sketchy.optim.parts.momentum import COORDINATES, Momentum
from sketchy.optim.parts.row_norms import RowNorms
from sketchy.optim.parts.sketches import Axis, Sketches, decay
from sketchy.optim.routing import route
from sketchy.optim.slots import COUNTER, Codec, Meaning, Shape, Slots, State, is_sharded

PlanOf = Callable[..., "Plan"]  # from a group, a parameter of it, its name if any, and perhaps its state
AxisRanks = tuple[int, ...]  # one for each axis
DEFAULT_RANK, _LEAST_RANK, _SMALL = 64, 2, 4096  # see `_default_rank`; _SMALL is a number of entries
_GRADIENTS = (Meaning.MOMENTUM, Meaning.MOMENT, Meaning.SCALE)  # of gradients, or of their squares


@dataclass(frozen=True)
class Design:
    """What distinguishes our optimizers from each other."""

    preconditioner: type[Preconditioner]
    flat: bool = False  # whether a weight is flattened to one vector, as in S-AdaGrad (Alg. 2)

    def path(self, shape: Shape, name: str | None, options: Mapping[str, Any]) -> str:
        """``sketch`` or ``adam``, for a weight with this shape and name."""
        return route(shape, name, options, least_axes=self.preconditioner.least_axes, flat=self.flat)


@dataclass(frozen=True)
class Plan:
    """How a step treats a weight: its blocks and its parts."""

    path: str  # sketch or adam; none for a weight without entries
    layout: Layout
    work: torch.dtype  # the dtype of the arithmetic
    statistics: Sketches
    preconditioner: Preconditioner
    row_norms: RowNorms | None  # None: rows are left as they are
    graft: Graft
    momentum: Momentum

    @property
    def parts(self) -> tuple[Part, ...]:
        rows = () if self.row_norms is None else (self.row_norms,)
        return (self.momentum, self.statistics, self.preconditioner, *rows, self.graft)

    @property
    def waits(self) -> bool:
        """Whether the graft steps before ``start_step``.

        Momentum alone is as long as the gradients: steps of Adam's length must not begin with it.
        """
        return self.preconditioner.waits and (self.graft.steps or not self.preconditioner.adams_length)

    @cached_property
    def slots(self) -> Slots:
        """The slots of the state: two counters, and the slots of the parts."""
        slots = {"step": COUNTER, "skipped": COUNTER}
        for part in self.parts if self.path != "none" else ():
            slots.update(part.slots)
        return slots

    @cached_property
    def coded(self) -> Mapping[str, Codec]:
        """The codecs of the slots that are not stored as they are."""
        return {name: slot.codec for name, slot in self.slots.items() if not slot.codec.plain}

    @cached_property
    def range(self) -> torch.dtype:
        """float64 if gradients, and roots of their squares, are computed and stored in it; else float32."""
        kept = (slot.codec.dtype for slot in self.slots.values() if slot.meaning in _GRADIENTS)
        return torch.float64 if {self.work, *kept} == {torch.float64} else torch.float32

    @cached_property
    def axes(self) -> tuple[Axis | None, ...]:
        return self.statistics.axes

    @property
    def bytes(self) -> int:
        """The size of the state."""
        return sum(slot.bytes for slot in self.slots.values())

    @property
    def sketch_bytes(self) -> int:
        """The size of what depends on ranks: sketches, moments in their bases, momentum in coordinates."""
        own = {*self.statistics.slots, *self.preconditioner.slots, COORDINATES} if self.axes else ()
        return sum(self.slots[name].bytes for name in own if name in self.slots)

    @property
    def ranks(self) -> AxisRanks:
        """As the option ``rank``, one for each axis. (Where an axis is not sketched, it does not matter.)"""
        return tuple(_LEAST_RANK if axis is None else axis.rank for axis in self.axes)

    def ranks_in(self, state: Mapping[str, Any]) -> AxisRanks:
        """The ranks of a state of this weight, which may be others; where there are none, its own."""
        stored = (None if axis is None else state.get(axis.names[1]) for axis in self.axes)
        sizes = (x.shape[-1] if isinstance(x, Tensor) and x.dim() else 0 for x in stored)
        return tuple(size or own for size, own in zip(sizes, self.ranks, strict=True))

    def create(self, device: torch.device, kept: Mapping[str, Tensor] = MappingProxyType({})) -> State:
        """A new state, for a parameter that has not been updated yet. ``kept``: slots that are there."""
        state = {
            name: kept[name] if name in kept else slot.create(device) for name, slot in self.slots.items()
        }
        for name, basis in self.statistics.new_bases(device, kept):
            state[name].copy_(basis)
        return state

    def gradient_energy(self, state: State, options: Mapping[str, Any]) -> Tensor | None:
        """Σ β₂^(t-i) ‖G_i‖² of each block (S,), which is the trace of each covariance; None if unknown.

        It is unknown if statistics are whitened: then each covariance has its own trace. It is also unknown
        if moments are sharded: here is only a part of them.
        """
        if self.statistics.whitened:
            return None
        same = decay(options) == options["betas"][1]
        moments: tuple[Part, ...] = (self.graft, self.preconditioner) if same else ()
        for part in (*moments, self.statistics):  # the cheapest first
            if isinstance(part, KnowsEnergy) and part.slots.keys() <= state.keys():
                energy = part.gradient_energy(state, options)
                if energy is not None and not is_sharded(energy):
                    return energy
        return None


def plan(
    shape: Shape, dtype: torch.dtype, name: str | None, design: Design, options: Mapping[str, Any]
) -> Plan:
    """The plan of a weight, by its name if it has one, for an optimizer's design and one group's options."""
    path = design.path(shape, name, options)
    return _plan(shape, dtype, path, design, _shaping(path, options))


def sizes_of(
    shape: Shape,
    dtype: torch.dtype,
    design: Design,
    options: Mapping[str, Any],
    ranks: tuple[AxisRanks, ...],
) -> tuple[tuple[int, int], ...]:
    """`Plan.bytes` and `Plan.sketch_bytes` of a sketched weight for each of these ranks."""
    return _sizes_of(shape, dtype, design, _shaping("sketch", {**options, "rank": None}), ranks)


@lru_cache(maxsize=256)
def _sizes_of(
    shape: Shape,
    dtype: torch.dtype,
    design: Design,
    shaping: tuple[tuple[str, Any], ...],
    ranks: tuple[AxisRanks, ...],
) -> tuple[tuple[int, int], ...]:
    # there may be very many: the plans themselves are not kept
    plans = (_made(shape, dtype, "sketch", design, (*shaping, ("rank", each))) for each in ranks)
    return tuple((plan.bytes, plan.sketch_bytes) for plan in plans)


def _shaping(path: str, options: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    shaping = (
        (key, _named(options[key]))
        for key, option in OPTIONS.items()
        if option.shapes_plan and key in options
    )
    beta1 = on_path(options, path)["betas"][0]
    return (*shaping, ("momentum", beta1 > 0))


def _named(option: Any) -> Any:
    """The name of a torch.dtype; other options are unchanged. Users may put a dtype into a group by hand."""
    return str(option).removeprefix("torch.") if isinstance(option, torch.dtype) else option


@lru_cache(maxsize=4096)
def _default_rank(shape: Shape, design: Design, shaping: tuple[tuple[str, Any], ...]) -> int:
    """The rank of a weight if none is given: never more state than AdamW's, for float32 weights.

    It does not depend on dtypes, so that a state may be converted. Small weights keep the highest rank: the
    counters of a state are as large as they are, and their state hardly matters.
    """
    size = math.prod(shape)
    if size < _SMALL:
        return DEFAULT_RANK
    stored = dict.fromkeys(("momentum_dtype", "adam_dtype", "sketch_dtype"))

    def too_much(rank: int) -> bool:
        options = tuple({**dict(shaping), **stored, "rank": rank, "momentum": True}.items())
        return _plan(shape, torch.float32, "sketch", design, options).bytes > 8 * size

    ranks = range(_LEAST_RANK, DEFAULT_RANK + 1)
    return ranks[max(0, bisect_left(ranks, True, key=too_much) - 1)]


def _made(
    shape: Shape, dtype: torch.dtype, path: str, design: Design, shaping: tuple[tuple[str, Any], ...]
) -> Plan:
    options = dict(shaping)
    if path == "sketch" and options.get("rank", DEFAULT_RANK) is None:
        options["rank"] = _default_rank(shape, design, shaping)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    is_adam = path == "adam" or math.prod(shape) == 0
    if is_adam:
        cut = layout(shape, merge_dims=None, block_size=None)
    else:
        merge_dims = options.get("merge_dims")
        stacked, block_size = options.get("stacked", False), options["block_size"]
        cut = layout(shape, merge_dims=merge_dims, block_size=block_size, flat=design.flat, stacked=stacked)
    work = torch.float64 if not is_adam and options["sketch_dtype"] == "float64" else wide
    weight = WeightSpec(cut, wide, work, options)
    statistics = Sketches.none(weight) if is_adam else Sketches.of(weight)
    return Plan(
        # a weight without entries has a state too: distributed checkpoints expect one for every parameter
        path if math.prod(shape) else "none",
        cut,
        work,
        statistics=statistics,
        preconditioner=(EntryMoments if is_adam else design.preconditioner).of(weight, statistics),
        row_norms=None
        if is_adam or options.get("row_norm") is None or len(cut.block) < 2
        else RowNorms.of(weight),
        graft=(Ungrafted if is_adam else RULES[options["graft"]]).of(weight),
        momentum=Momentum.of(weight, statistics),
    )


_plan = lru_cache(maxsize=4096)(_made)


def stack_limit(plan: Plan, device: torch.device, options: Mapping[str, Any]) -> int:
    """The largest number of weights of a plan in one stack."""
    limit = options["stack_size"] or (sizes.STACK_ON_CPU if device.type == "cpu" else sizes.STACK)
    return max(1, limit // max(1, math.prod(plan.layout.shape)))


def held(plan: Plan, count: int) -> int:
    """Bytes that ``count`` weights use between reading their gradients and finishing their sketches."""
    size, bases = _sizes(plan, count)
    return size + 3 * bases


def scratch(plan: Plan, count: int, options: Mapping[str, Any]) -> int:
    """A bound on the scratch bytes of a step of ``count`` weights: beside weights, gradients and state (CPU).

    It counts two stacks (gradients and directions), more stacks for some options, ten times the size of the
    bases for small factors, and three panels (`core.tuned.panels`). Momentum in few bits adds its codes.
    """
    if plan.path == "none":
        return 0
    stacks = 2 + (plan.path == "sketch") * (
        (plan.layout.count > 1)
        + 2 * any(axis.exact for axis in plan.statistics.live)
        + 2 * (len(plan.axes) > 2)
        + 2 * (options["start_step"] > 1)
        + 12 * (options.get("solver") == "exact")
        + bool(options.get("polar"))
    )
    size, bases = _sizes(plan, count)
    if plan.path == "sketch" and options.get(
        "polar"
    ):  # four matrices as long and as wide as the shortest axis
        bases += count * plan.layout.count * plan.work.itemsize * min(plan.layout.block) ** 2
    return (
        int((stacks + plan.momentum.stacks) * size)
        + 10 * bases
        + 3 * max(sizes.PANEL_BYTES, size // sizes.MOST_PANELS)
    )


def _sizes(plan: Plan, count: int) -> tuple[int, int]:
    """Bytes of a stack of ``count`` weights, and of its bases, in the dtype of the arithmetic."""
    blocks = count * plan.layout.count * plan.work.itemsize
    return (
        blocks * math.prod(plan.layout.block),
        blocks * sum(axis.dim * axis.rank for axis in plan.statistics.live),
    )

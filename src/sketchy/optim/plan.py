"""What one weight needs: its path, its blocks, its parts and its slots, from shape and options alone."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch
from torch import Tensor

from sketchy.core.axes import Layout, layout
from sketchy.optim.options import OPTIONS
from sketchy.optim.parts.contracts import Graft, Part, Preconditioner, Weight
from sketchy.optim.parts.entry_moments import EntryMoments
from sketchy.optim.parts.grafts import RULES, Ungrafted
from sketchy.optim.parts.momentum import Momentum
from sketchy.optim.parts.row_norms import RowNorms
from sketchy.optim.parts.sketches import Axis, Sketches
from sketchy.optim.slots import COUNTER, Shape, Slots, State

# Entries. A stack saves launches and costs a copy of its gradients. On the CPU, where a launch is cheap,
# large weights are better off alone: by 5 to 10 % on a transformer 512 or 768 wide, not on one of 256.
_STACK_ON_CPU, _STACK = 1 << 22, 1 << 26


@dataclass(frozen=True)
class Design:
    """What makes one optimizer of ours another one than the others."""

    preconditioner: type[Preconditioner]
    flat: bool = False  # whether a weight is one long vector, as S-AdaGrad sees it (Alg. 2)


@dataclass(frozen=True)
class Plan:
    """The way of a weight through a step: its blocks and its parts."""

    path: str  # sketch or adam; none for a weight without entries
    layout: Layout
    work: torch.dtype  # of the arithmetic
    statistics: Sketches
    preconditioner: Preconditioner
    row_norms: RowNorms | None  # None: rows are left as they are
    graft: Graft
    momentum: Momentum

    @property
    def parts(self) -> tuple[Part, ...]:
        rows = () if self.row_norms is None else (self.row_norms,)
        return (self.momentum, self.statistics, self.preconditioner, *rows, self.graft)

    @cached_property
    def slots(self) -> Slots:
        """Everything that is kept: two counters, and what the parts keep."""
        slots = {"step": COUNTER, "skipped": COUNTER}
        for part in self.parts if self.path != "none" else ():
            slots.update(part.slots)
        return slots

    @property
    def axes(self) -> tuple[Axis | None, ...]:
        return self.statistics.axes

    @property
    def bytes(self) -> int:
        """Of the state, once it exists."""
        return sum(slot.bytes for slot in self.slots.values())

    def create(self, device: torch.device) -> State:
        """The state of a parameter that has seen no gradient."""
        state = {name: slot.create(device) for name, slot in self.slots.items()}
        self.statistics.initialize_(state)
        return state

    def gradient_energy(self, state: State, options: Mapping[str, Any]) -> Tensor | None:
        """Σ β₂^(t-i) ‖G_i‖² of each block (S,), the trace of each covariance, if the state tells it.

        The state may be of options that have changed since; it is then refused at the next step, not here.
        """
        for part in reversed(self.parts):
            known = part.slots.keys() <= state.keys()
            energy = part.gradient_energy(state, options) if known else None
            if energy is not None:
                return energy
        return None


def plan(shape: Shape, dtype: torch.dtype, path: str, design: Design, options: Mapping[str, Any]) -> Plan:
    """The plan of a weight on a path (``sketch`` or ``adam``) of an optimizer, for one group's options."""
    shaping = tuple(
        (name, _named(options[name]))
        for name, option in OPTIONS.items()
        if option.shapes_state and name in options
    )
    return _plan(shape, dtype, path, design, (*shaping, ("momentum", options["betas"][0] > 0)))


def _named(option: Any) -> Any:
    """A dtype that was put into a group by hand is one of torch's, not its name."""
    return str(option).removeprefix("torch.") if isinstance(option, torch.dtype) else option


@lru_cache(maxsize=4096)
def _plan(
    shape: Shape, dtype: torch.dtype, path: str, design: Design, shaping: tuple[tuple[str, Any], ...]
) -> Plan:
    options = dict(shaping)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    is_adam = path == "adam" or math.prod(shape) == 0
    if is_adam:
        cut = layout(shape, merge_dims=None, block_size=None)
    else:
        merge_dims = options.get("merge_dims")
        cut = layout(shape, merge_dims=merge_dims, block_size=options["block_size"], flat=design.flat)
    work = torch.float64 if not is_adam and options["sketch_dtype"] == "float64" else wide
    weight = Weight(cut, wide, work, options)
    statistics = Sketches.none(weight) if is_adam else Sketches.of(weight)
    return Plan(
        # a weight without entries has a state all the same: checkpoints want one of every parameter
        path if math.prod(shape) else "none",
        cut,
        work,
        statistics=statistics,
        preconditioner=(EntryMoments if is_adam else design.preconditioner).of(weight, statistics),
        row_norms=None if is_adam or options.get("row_norm") is None else RowNorms.of(weight),
        graft=(Ungrafted if is_adam else RULES[options["graft"]]).of(weight),
        momentum=Momentum.of(weight),
    )


def together(plan: Plan, device: torch.device, options: Mapping[str, Any]) -> int:
    """How many weights of a plan step as one stack, at most."""
    limit = options["stack_size"] or (_STACK_ON_CPU if device.type == "cpu" else _STACK)
    return max(1, limit // max(1, math.prod(plan.layout.shape)))


def held(plan: Plan, count: int) -> int:
    """Bytes that ``count`` weights hold or read from looking at their gradients to having new sketches."""
    size, bases = _sizes(plan, count)
    return size + 3 * bases


def scratch(plan: Plan, count: int, options: Mapping[str, Any]) -> int:
    """A bound on the bytes that a step of ``count`` weights holds beside weights, gradients and state (CPU).

    Two stacks, gradients and directions, and more for what is not the default; small factors as large as the
    bases, in a chain of at most ten; and three panels (`core.tuned.panels`).
    """
    if plan.path == "none":
        return 0
    stacks = 2 + (plan.path == "sketch") * (
        (plan.layout.count > 1)
        + 2 * any(axis.exact for axis in plan.statistics.live)
        + 2 * (len(plan.axes) > 2)
        + 2 * (options["start_step"] > 1)
        + 12 * (options.get("solver") == "exact")
    )
    size, bases = _sizes(plan, count)
    return stacks * size + 10 * bases + 3 * max(1 << 19, size // 8)


def _sizes(plan: Plan, count: int) -> tuple[int, int]:
    """Bytes of a stack of ``count`` weights, and of its bases, in the dtype of the arithmetic."""
    blocks = count * plan.layout.count * plan.work.itemsize
    return (
        blocks * math.prod(plan.layout.block),
        blocks * sum(axis.dim * axis.rank for axis in plan.statistics.live),
    )

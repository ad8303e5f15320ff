"""What one weight needs: its path, its axes and every tensor of its state, from shape and options alone."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from sketchy.core import graft
from sketchy.core.axes import Layout, layout

# Entries. A stack saves launches and costs a copy of its gradients. On the CPU, where a launch is cheap,
# large weights are better off alone: by 5 to 10 % on a transformer 512 or 768 wide, not on one of 256.
_STACK_ON_CPU, _STACK = 1 << 22, 1 << 26

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Axis:
    """One preconditioned axis of a block."""

    name: str  # prefix of its state: left, right, axis0, ...
    dim: int  # d
    rank: int  # l

    @property
    def dense(self) -> bool:
        """Whether the whole factor is kept: d numbers a column, d columns, nothing escapes."""
        return self.rank == self.dim


@dataclass(frozen=True)
class Tensor:
    """One tensor of a parameter's state, described."""

    shape: Shape
    dtype: torch.dtype
    per_block: bool = False  # the first dimension counts blocks
    on_host: bool = False  # read by Python each step, so it may not lie on an accelerator
    whole: bool = False  # as large as the weight: changed where it lies, and not gathered with the rest
    signed: bool = False  # whether entries may be negative: those of momentum and of bases

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Plan:
    """The path of a weight through a step."""

    path: str  # sketch or adam; none for a weight without entries
    layout: Layout
    axes: tuple[Axis | None, ...]  # None: an axis that is not preconditioned
    exponent: float  # of the inverse root along each axis
    work: torch.dtype  # of the arithmetic
    state: Mapping[str, Tensor]

    @property
    def bytes(self) -> int:
        return sum(tensor.bytes for tensor in self.state.values())

    @property
    def rounding(self) -> float:
        """The share of an entry that is lost when momentum is stored in fewer digits than are worked with."""
        stored = self.state["momentum"].dtype if "momentum" in self.state else self.work
        return torch.finfo(stored).eps if stored.itemsize < self.work.itemsize else 0.0


def plan(shape: Shape, dtype: torch.dtype, path: str, kind: str, options: Mapping[str, Any]) -> Plan:
    """The plan of a weight of one shape on a path (``sketch`` or ``adam``) of an optimizer.

    ``kind``: sketch (SketchyShampoo), dense (Shampoo), corrected (SketchySOAP) or flat (SketchyAdagrad).
    """
    # a dtype that was put into a group by hand is one of torch's, not its name
    picked = tuple(_named(options.get(name)) for name in _PLANNED)
    return _plan(shape, dtype, path, kind, picked, options["betas"][0] > 0)


def _named(option: Any) -> Any:
    return str(option).removeprefix("torch.") if isinstance(option, torch.dtype) else option


_PLANNED = (
    "rank", "block_size", "merge_dims", "one_sided", "exponent", "graft", "momentum_dtype", "sketch_dtype"
)  # fmt: skip


@lru_cache(maxsize=4096)
def _plan(
    shape: Shape, dtype: torch.dtype, path: str, kind: str, picked: tuple[Any, ...], momentum: bool
) -> Plan:
    rank, block_size, merge_dims, one_sided, exponent, rule, momentum_dtype, sketch_dtype = picked
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    sketched = getattr(torch, sketch_dtype) if sketch_dtype else wide
    work = torch.float64 if sketched == torch.float64 else wide
    whole = layout(shape, merge_dims=None, block_size=None)
    state = {name: Tensor((), torch.float32) for name in ("step", "skipped")}
    if math.prod(shape) == 0:  # a state all the same: checkpoints want one of every parameter
        return Plan("none", whole, (), 0.0, wide, state)
    if momentum:
        state["momentum"] = Tensor(
            shape, getattr(torch, momentum_dtype) if momentum_dtype else wide, whole=True, signed=True
        )
    if path == "adam":
        state["root_moment"] = Tensor(shape, wide, whole=True)
        return Plan(path, whole, (), 0.0, wide, state)

    state["turn"] = Tensor((), torch.float32, on_host=True)
    merge_dims = None if kind == "corrected" else merge_dims
    blocks = layout(shape, merge_dims=merge_dims, block_size=block_size, flat=kind == "flat")
    axes = _axes(blocks.block, math.inf if kind == "dense" else rank, bool(one_sided))
    live = [axis for axis in axes if axis is not None]

    def per_block(shape: Shape, dtype: torch.dtype = torch.float64, **traits: bool) -> Tensor:
        return Tensor((blocks.count, *shape), dtype, per_block=True, **traits)

    for axis in live:
        state[f"{axis.name}_basis"] = per_block((axis.dim, axis.rank), sketched, signed=True)
        state[f"{axis.name}_eigenvalues"] = per_block((axis.rank,))
        state[f"{axis.name}_escaped_mass"] = per_block(())
        state[f"{axis.name}_error_bound"] = per_block(())
    if kind == "corrected":
        ranks = (axis.rank if axis else 0 for axis in axes)
        state["second_moment"] = per_block(tuple(rank + 1 for rank in ranks))
    for name, (size, is_double) in graft.accumulators(rule, blocks.block).items():
        state[name] = per_block(size, torch.float64 if is_double else work, whole=name == graft.ROOT)
    return Plan(path, blocks, axes, exponent or 1 / (2 * len(live)), work, state)


def together(plan: Plan, device: torch.device, options: Mapping[str, Any]) -> int:
    """How many weights of a plan step as one stack, at most."""
    limit = options["stack_size"] or (_STACK_ON_CPU if device.type == "cpu" else _STACK)
    return max(1, limit // max(1, math.prod(plan.layout.shape)))


def held(plan: Plan, count: int) -> int:
    """Bytes that ``count`` weights hold or read from looking at their gradients to having new sketches."""
    blocks = count * plan.layout.count
    size = blocks * math.prod(plan.layout.block) * plan.work.itemsize
    bases = blocks * sum(axis.dim * axis.rank for axis in plan.axes if axis is not None)
    return size + 3 * bases * plan.work.itemsize


def scratch(plan: Plan, count: int, options: Mapping[str, Any]) -> int:
    """A bound on the bytes that a step of ``count`` weights holds beside weights, gradients and state (CPU).

    Two stacks, gradients and directions, and more for what is not the default; small factors as large as the
    bases, in a chain of at most ten; and three panels (`core.panels`).
    """
    if plan.path == "none":
        return 0
    axes = [axis for axis in plan.axes if axis is not None]
    stacks = 2 + (plan.path == "sketch") * (
        (plan.layout.count > 1)
        + 2 * any(axis.dense for axis in axes)
        + 2 * (len(plan.axes) > 2)
        + 2 * (options["start_step"] > 1)
        + 12 * (options.get("solver") == "exact")
    )
    blocks = count * plan.layout.count
    size = blocks * math.prod(plan.layout.block) * plan.work.itemsize
    bases = blocks * sum(axis.dim * axis.rank for axis in axes) * plan.work.itemsize
    return stacks * size + 10 * bases + 3 * max(1 << 19, size // 8)


def _axes(block: Shape, rank: float, one_sided: bool) -> tuple[Axis | None, ...]:
    names = {1: ("only",), 2: ("left", "right")}.get(len(block), tuple(f"axis{i}" for i in range(len(block))))
    shortest = min(range(len(block)), key=lambda i: block[i])
    return tuple(
        None if one_sided and i != shortest else Axis(name, dim, int(min(rank, dim)))
        for i, (name, dim) in enumerate(zip(names, block, strict=True))
    )

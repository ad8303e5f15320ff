"""Statistics of a weight: for each axis, a sketch of its gradients' covariance, or the full covariance."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from sketchy.core import dense
from sketchy.core import sketch as core
from sketchy.core.axes import unfold
from sketchy.core.certificate import exchange_error
from sketchy.core.extremes import frobenius
from sketchy.core.sketch import Sketch
from sketchy.core.tasks import Task, gather
from sketchy.core.tuned.products import by_rows, product
from sketchy.core.whitening import Whitened, Whitening, whitening_task
from sketchy.optim.parts.contracts import WeightSpec
from sketchy.optim.slots import COUNTER, FLOAT64, Codec, Meaning, Orthonormal, Slot, Slots, State
from sketchy.optim.stack import Gradient, Stack

_FIELDS = tuple(field.name for field in fields(Sketch))


@dataclass(frozen=True)
class Axis:
    """One preconditioned axis of a block."""

    name: str  # prefix of its slots: left, right, axis0, ...
    index: int  # of this axis in the block
    dim: int  # d
    rank: int  # l

    @cached_property
    def exact(self) -> bool:
        """Whether the full covariance is kept, so that no mass escapes."""
        return self.rank == self.dim

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of its slots, in the order of the fields of `Sketch`."""
        return tuple(f"{self.name}_{field}" for field in _FIELDS)

    def stored(self, state: State) -> Sketch:
        """The sketches (blocks, ...) in a state, in the stored dtype."""
        return Sketch(*(state[name] for name in self.names))


@dataclass(frozen=True)
class Sketches:
    axes: tuple[Axis | None, ...]  # None: an axis that is not preconditioned
    blocks: int
    codec: Codec  # of the bases
    whitened: bool = False  # whether each of the two axes is whitened by the other

    @classmethod
    def of(cls, weight: WeightSpec) -> "Sketches":
        """A sketch with at most ``rank`` columns for each axis. Without this option, the full covariance."""
        options, block = weight.options, weight.layout.block
        shortest = min(range(len(block)), key=lambda i: block[i])
        axes = tuple(
            None
            if options.get("one_sided") and i != shortest
            else Axis(name, i, dim, min(options.get("rank", dim), dim))
            for i, (name, dim) in enumerate(zip(_names(len(block)), block, strict=True))
        )
        whitened = bool(options.get("whiten")) and len(axes) == 2 and None not in axes
        codec = Orthonormal(weight.dtype("sketch_dtype"), weight.work)
        return cls(axes, weight.layout.count, codec, whitened)

    @classmethod
    def none(cls, weight: WeightSpec) -> "Sketches":
        """No sketches, for a weight on Adam's path."""
        return cls((), weight.layout.count, Orthonormal(weight.wide, weight.work))

    @cached_property
    def live(self) -> tuple[Axis, ...]:
        """The axes that are preconditioned."""
        return tuple(axis for axis in self.axes if axis is not None)

    @cached_property
    def slots(self) -> Slots:
        if not self.axes:
            return {}
        # how many gradients a weight has seen, for update_every
        slots = {"turn": replace(COUNTER, on_host=True)}
        for axis in self.live:
            shapes = ((axis.dim, axis.rank), (axis.index, None)), ((axis.rank,), (None,)), ((), ()), ((), ())
            meanings = (Meaning.BASIS, *[Meaning.SPECTRUM] * 3)
            for name, meaning, (shape, follows) in zip(axis.names, meanings, shapes, strict=True):
                codec = self.codec if meaning is Meaning.BASIS else FLOAT64
                slots[name] = Slot(meaning, shape, follows, codec, blocks=self.blocks)
        return slots

    def initialize_(self, state: State) -> None:
        """Set the bases of a new state to orthonormal columns, the same in each block."""
        for axis in self.live:
            stored = state[f"{axis.name}_basis"]
            basis = core.empty(axis.dim, axis.rank, dtype=self.codec.work, device=stored.device).basis
            stored.copy_(self.codec.encode(basis))

    def read(self, stack: Stack) -> list[Sketch | None]:
        """The sketches before this step, one for each axis, with bases in the dtype of the arithmetic."""
        sketches: list[Sketch | None] = [None] * len(self.axes)
        for axis in self.live:
            sketches[axis.index] = Sketch(*stack.read(axis.names))
        return sketches

    def update(
        self, stack: Stack, G: Gradient, old: Sequence[Sketch | None]
    ) -> Task[Sequence[Sketch | None]]:
        """Add a gradient to the sketches (Alg. 3, line 5) if they are due. Return the new sketches."""
        if not self.axes:
            return old
        self._count_turn(stack)
        if not stack.due:
            return old
        new = list(old)
        streams = yield from self._streams(G, [sketch for sketch in old if sketch is not None], stack.group)
        tasks = []
        for axis, stream in zip(self.live, streams, strict=True):
            sketch, settings = old[axis.index], {"beta2": decay(stack.group), **stream}
            assert sketch is not None
            if axis.exact:
                tasks.append(dense.update_task(sketch, **settings))
            else:
                tasks.append(core.update_task(sketch, solver=stack.group["solver"], **settings))
        found = yield from gather(tasks)
        for axis, sketch in zip(self.live, found, strict=True):
            new[axis.index] = sketch
            self._write(stack, axis, sketch)
        return new

    def _streams(
        self, G: Gradient, sketches: Sequence[Sketch], group: Mapping[str, Any]
    ) -> Task[list[dict[str, Any]]]:
        """What each axis adds to its covariance: arguments of ``update_task``."""
        matrices = [unfold(G.blocks, axis.index) for axis in self.live]
        if not self.whitened:
            return [{"A": A, "norm": G.norm} for A in matrices]
        whitenings = yield from gather(whitening_task(sketch) for sketch in reversed(sketches))
        if all(axis.exact for axis in self.live) or group["solver"] == "exact":
            return [_formed(A, W, axis) for A, W, axis in zip(matrices, whitenings, self.live, strict=True)]
        products = [product(A.mT, sketch.basis) for A, sketch in zip(matrices, sketches, strict=True)]
        streams: list[dict[str, Any]] = []
        for axis, A, W, own, other in zip(
            self.live, matrices, whitenings, products, reversed(products), strict=True
        ):
            if axis.exact:
                streams.append(_formed(A, W, axis))
            else:
                whitened = Whitened(W, by_rows(own), W.outside * G.norm)
                streams.append({"A": A, "norm": W.norm(G.norm, other), "whitened": whitened})
        return streams

    def as_stored(self, stack: Stack, basis: Tensor) -> Tensor:
        """A new basis as the next step will read it: rounded if it was updated now."""
        return basis if self.codec.plain or not stack.due else self.codec.decode(self.codec.encode(basis))

    def gradient_energy(self, state: State, options: Mapping[str, Any]) -> Tensor | None:
        exact = next((axis for axis in self.live if axis.exact), None)
        return None if exact is None or self.whitened else exact.stored(state).eigenvalues.sum(-1)

    def _write(self, stack: Stack, axis: Axis, sketch: Sketch) -> None:
        """Store a sketch. If its basis is rounded, the error is added to its certified error."""
        if not self.codec.plain:
            stored = self.as_stored(stack, sketch.basis)
            error = exchange_error(sketch.basis, sketch.eigenvalues, stored)
            sketch = replace(sketch, error_bound=sketch.error_bound + error)
        stack.write(dict(zip(axis.names, vars(sketch).values(), strict=True)))

    def _count_turn(self, stack: Stack) -> None:
        """Count gradients for ``update_every``. On the CPU bad ones are not counted; elsewhere they are,
        because Python would have to wait to know them."""
        good = stack.good
        known = good is not None and good.device.type == "cpu"
        torch._foreach_add_(
            stack.own("turn"), list(good.long().unbind()) if good is not None and known else 1
        )


def _formed(A: Tensor, W: Whitening, axis: Axis) -> dict[str, Any]:
    """The arguments of ``update_task`` for A W. Full covariances take it in float64."""
    formed = W.form(A)
    return {"A": formed if axis.exact else formed.to(A), "norm": frobenius(formed)}


def decay(group: Mapping[str, Any]) -> float:
    """β₂ of the sketches."""
    return group["betas"][1] if group.get("sketch_beta2") is None else group["sketch_beta2"]


def _names(axes: int) -> tuple[str, ...]:
    return {1: ("only",), 2: ("left", "right")}.get(axes, tuple(f"axis{i}" for i in range(axes)))

"""Statistics of a weight: for each axis, a sketch of its gradients' covariance, or the full covariance."""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from sketchy.core import dense
from sketchy.core import sketch as core
from sketchy.core.axes import unfold
from sketchy.core.certificate import exchange_error
from sketchy.core.extremes import row_energy
from sketchy.core.resize import resized_task
from sketchy.core.sketch import Sketch
from sketchy.core.spread import norm, size, total, whole
from sketchy.core.tasks import Task, gather
from sketchy.core.tuned.products import by_rows, product
from sketchy.core.whitening import Whitened, Whitening, whitening_task
from sketchy.optim.parts.contracts import WeightSpec
from sketchy.optim.slots import COUNTER, FLOAT64, Meaning, Orthonormal, Slot, Slots, State
from sketchy.optim.stack import Gradient, Stack

_FIELDS = tuple(field.name for field in fields(Sketch) if field.name != "spread")  # `Sketch.tensors`


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

    @property
    def covariance(self) -> str:
        """The name of the slot of C, if roots are rarer than updates."""
        return f"{self.name}_covariance"

    def stored(self, state: State) -> Sketch:
        """The sketches (blocks, ...) in a state, in the stored dtype."""
        return Sketch(*(state[name] for name in self.names))


@dataclass(frozen=True)
class Sketches:
    axes: tuple[Axis | None, ...]  # None: an axis that is not preconditioned
    blocks: int
    codec: Orthonormal  # of the bases
    whitened: bool = False  # whether each of the two axes is whitened by the other
    summed: bool = False  # whether covariances are kept as matrices, and decomposed rarely (roots_every)

    @classmethod
    def of(cls, weight: WeightSpec) -> "Sketches":
        """A sketch with at most ``rank`` columns for each axis. Without this option, the full covariance."""
        options, block = weight.options, weight.layout.block
        shortest = min(range(len(block)), key=lambda i: block[i])
        ranks = _ranks(options.get("rank"), block)
        axes = tuple(
            None if options.get("one_sided") and i != shortest else Axis(name, i, dim, rank)
            for i, (name, dim, rank) in enumerate(zip(_names(len(block)), block, ranks, strict=True))
        )
        whitened = bool(options.get("whiten")) and len(axes) == 2 and None not in axes
        codec = Orthonormal(weight.dtype("sketch_dtype"), weight.work)
        return cls(axes, weight.layout.count, codec, whitened, options.get("roots_every", 1) > 1)

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
            if self.summed:
                square, follows = (axis.dim, axis.dim), (axis.index, None)
                slots[axis.covariance] = Slot(
                    Meaning.COVARIANCE, square, follows, FLOAT64, blocks=self.blocks
                )
        return slots

    def new_bases(self, device: torch.device, kept: Container[str] = ()) -> Iterator[tuple[str, Tensor]]:
        """The bases of a new state, as they are stored: orthonormal columns, the same in each block.

        Those of the slots ``kept`` are left out.
        """
        for axis in (axis for axis in self.live if axis.names[0] not in kept):
            basis = core.empty(axis.dim, axis.rank, dtype=self.codec.work, device=device).basis
            yield axis.names[0], self.codec.encode(basis).expand(self.blocks, -1, -1)

    def read(self, stack: Stack) -> Task[list[Sketch | None]]:
        """The sketches before this step, one for each axis, with bases in the dtype of the arithmetic."""
        sketches: list[Sketch | None] = [None] * len(self.axes)
        bases = yield from gather(self._basis(stack, axis) for axis in self.live)
        for axis, basis in zip(self.live, bases, strict=True):
            lam, mass, bound = stack.read(axis.names[1:])
            sketches[axis.index] = Sketch(basis, lam, mass, bound, stack.spreads[axis.index])
        return sketches

    def _basis(self, stack: Stack, axis: Axis) -> Task[Tensor]:
        name = axis.names[0]
        fetched = stack.fetched.pop(name, None)
        stored = (yield from whole(stack.stored(name), stack.apart(name))) if fetched is None else fetched()
        return (yield from self.codec.decoded(stored, stack.spreads[axis.index]))

    def update(
        self, stack: Stack, G: Gradient, old: Sequence[Sketch | None]
    ) -> Task[Sequence[Sketch | None]]:
        """Add a gradient to the sketches (Alg. 3, line 5) if they are due. Return the new sketches."""
        if not self.axes:
            return old
        if not (stack.due or stack.roots):
            return old
        new, solver = list(old), stack.group.get("solver", "subspace")
        streams = yield from self._streams(stack, G, [sketch for sketch in old if sketch is not None])
        tasks = []
        for axis, stream in zip(self.live, streams, strict=True):
            sketch, settings = old[axis.index], {"beta2": decay(stack.group), **stream}
            settings["columns"] = stack.spreads[1 - axis.index] if len(self.axes) == 2 else None
            assert sketch is not None
            if self.summed:
                tasks.append(self._summed(stack, axis, sketch, settings))
            elif axis.exact:
                tasks.append(dense.update_task(sketch, sweeps=solver == "sweeps", **settings))
            else:
                tasks.append(core.update_task(sketch, solver=solver, **settings))
        found = yield from gather(tasks)
        for axis, sketch in zip(self.live, found, strict=True):
            new[axis.index] = sketch
            if stack.roots:
                yield from self._write(stack, axis, sketch)
        return new

    def _summed(self, stack: Stack, axis: Axis, sketch: Sketch, settings: Mapping[str, Any]) -> Task[Sketch]:
        """Add a gradient to the covariance if it is due; decompose it if roots are due."""
        C, columns = stack.read((axis.covariance,))[0], settings["columns"]
        if stack.due:
            C = yield from dense.add_task(C, settings["A"], settings["beta2"], (sketch.spread, columns))
            stack[axis.covariance] = C
        if not stack.roots:
            return sketch
        terms = stack.group["roots_every"] * size(settings["A"].shape[-1], columns)
        return (yield from dense.decompose_task(sketch, C, terms=terms, columns=columns))

    def _streams(self, stack: Stack, G: Gradient, sketches: Sequence[Sketch]) -> Task[list[dict[str, Any]]]:
        """What each axis adds to its covariance: arguments of ``update_task``."""
        matrices = [unfold(G.blocks, axis.index) for axis in self.live]
        if not self.whitened:
            return [{"A": A, "norm": G.norm} for A in matrices]
        whitenings = yield from gather(whitening_task(sketch) for sketch in reversed(sketches))
        if all(axis.exact for axis in self.live) or stack.group["solver"] == "exact":
            tasks = map(_formed, matrices, whitenings, self.live, sketches)
            return (yield from gather(tasks))
        products = yield from gather(map(_product, matrices, sketches))

        def stream(axis: Axis, A: Tensor, W: Whitening, own: Tensor, other: Tensor) -> Task[dict[str, Any]]:
            if axis.exact:
                return (yield from _formed(A, W, axis, sketches[axis.index]))
            norm, noise = yield from W.norm(G.norm, other, stack.spreads[axis.index])
            return {"A": A, "norm": norm, "whitened": Whitened(W, by_rows(own), noise)}

        return (yield from gather(map(stream, self.live, matrices, whitenings, products, reversed(products))))

    def resize(self, stack: Stack, old: Sequence[Sketch | None]) -> Task[None]:
        """Write the sketches of other ranks with the ranks of this plan."""
        for axis in self.live:
            sketch = old[axis.index]
            assert sketch is not None
            if sketch.rank != axis.rank:
                yield from self._write(stack, axis, (yield from resized_task(sketch, axis.rank)))

    def as_stored(self, stack: Stack, sketch: Sketch) -> Task[Tensor]:
        """A new basis as the next step will read it: rounded if it was updated now."""
        if self.codec.plain or not stack.roots:
            return sketch.basis
        return (yield from self.codec.decoded(self.codec.encode(sketch.basis), sketch.spread))

    def gradient_energy(self, state: State, options: Mapping[str, Any]) -> Tensor | None:
        exact = next((axis for axis in self.live if axis.exact), None)
        return None if exact is None or self.whitened else exact.stored(state).eigenvalues.sum(-1)

    def _write(self, stack: Stack, axis: Axis, sketch: Sketch) -> Task[None]:
        """Store a sketch. If its basis is rounded, the error is added to its certified error."""
        if not self.codec.plain:
            stored = yield from self.as_stored(stack, sketch)
            error = yield from exchange_error(sketch.basis, sketch.eigenvalues, stored, sketch.spread)
            sketch = replace(sketch, error_bound=sketch.error_bound + error)
        stack.write(dict(zip(axis.names, sketch.tensors.values(), strict=True)))


def _product(A: Tensor, sketch: Sketch) -> Task[Tensor]:
    """Aᵀ U."""
    return (yield from total(product(A.mT, sketch.basis), sketch.spread))


def _formed(A: Tensor, W: Whitening, axis: Axis, sketch: Sketch) -> Task[dict[str, Any]]:
    """The arguments of ``update_task`` for A W. Full covariances take it in float64."""
    formed = yield from W.form(A)
    length = yield from norm(row_energy(formed), sketch.spread, W.spread)
    return {"A": formed if axis.exact else formed.to(A), "norm": length}


def decay(group: Mapping[str, Any]) -> float:
    """β₂ of the sketches."""
    return group["betas"][1] if group.get("sketch_beta2") is None else group["sketch_beta2"]


def _ranks(given: int | tuple[int, ...] | None, block: Sequence[int]) -> tuple[int, ...]:
    """The rank of each axis of a block. None: the full covariances."""
    if given is None:
        return tuple(block)
    each = (given,) * len(block) if isinstance(given, int) else given
    if len(each) != len(block):
        raise ValueError(
            f"rank={given}: has {len(each)} numbers, but a weight has {len(block)} axes to sketch"
        )
    return tuple(map(min, each, block))


def _names(axes: int) -> tuple[str, ...]:
    return {1: ("only",), 2: ("left", "right")}.get(axes, tuple(f"axis{i}" for i in range(axes)))

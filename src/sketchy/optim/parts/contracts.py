"""What parts promise: the methods that a step calls, and the record of a weight that they are made from."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import torch
from torch import Tensor

from sketchy.core.axes import Layout
from sketchy.core.sketch import Sketch
from sketchy.core.tasks import Task
from sketchy.optim.slots import Codec, Meaning, Shape, Slot, Slots, State

if TYPE_CHECKING:
    from sketchy.optim.parts.sketches import Sketches
    from sketchy.optim.stack import Gradient, Stack


@dataclass(frozen=True)
class Weight:
    """What parts are made from: the shape and dtypes of a weight, and the options that shape its state."""

    layout: Layout
    wide: torch.dtype  # of moments and momentum: float32, or float64 for float64 weights
    work: torch.dtype  # of the arithmetic
    options: Mapping[str, Any]

    def slot(self, meaning: Meaning, codec: Codec, **traits: bool) -> Slot:
        """As large as the weight."""
        shape = self.layout.shape
        return Slot(meaning, shape, tuple(range(len(shape))), codec, **traits)

    def block_slot(
        self, meaning: Meaning, codec: Codec, shape: Shape, follows: tuple[int | None, ...], **traits: bool
    ) -> Slot:
        """Kept for each block."""
        return Slot(meaning, shape, follows, codec, blocks=self.layout.count, **traits)


class Part(Protocol):
    @property
    def slots(self) -> Slots:
        """What it keeps."""

    def gradient_energy(self, state: State, options: Mapping[str, Any]) -> Tensor | None:
        """Σ β₂^(t-i) ‖G_i‖² of each block (S,), the covariances' trace; None: it is not in the state."""


class Preconditioner(Part, Protocol):
    least_axes: ClassVar[int]  # weights with fewer axes longer than one take Adam's path
    waits: ClassVar[bool]  # whether ``start_step`` delays it

    @classmethod
    def of(cls, weight: Weight, statistics: "Sketches") -> Self: ...

    def update(
        self, stack: "Stack", G: "Gradient", old: Sequence[Sketch | None], new: Sequence[Sketch | None]
    ) -> Task[Any]:
        """Learn from a gradient, given the sketches before and after it. Returns what `apply_` needs."""

    def apply_(self, stack: "Stack", x: Tensor, scale: Tensor, learned: Any) -> tuple[Tensor, Tensor]:
        """Precondition scale * x, (S,) and (S, *block). Return (direction, scale), to be multiplied.

        The direction is in x's memory where that can be.
        """


class Graft(Part, Protocol):
    by_columns: ClassVar[bool]  # whether it needs the energy of a gradient's columns

    @classmethod
    def of(cls, weight: Weight) -> Self: ...

    def update(self, stack: "Stack", G: "Gradient") -> Tensor | None:
        """Learn from a gradient. Returns the length (S,) of the rule's step if the gradient decides it."""

    def length(self, stack: "Stack", x: Tensor, ahead: Tensor) -> Tensor | None:
        """The length (S,) of the rule's step for ahead * x; None: a step keeps its own length."""

    def step(self, stack: "Stack", x: Tensor, length: Tensor | None) -> Tensor:
        """The rule's own step for x (S, *block), taken before ``start_step``; ``length``: see `length`."""

    def rescale(self, stack: "Stack", direction: Tensor, scale: Tensor, length: Tensor | None) -> Tensor:
        """The new scale (S,) of scale * direction (S, *block), which has the rule's length."""

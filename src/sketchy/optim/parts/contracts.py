"""The interfaces of parts (the methods that a step calls), and the record of a weight that makes them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, runtime_checkable

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
class WeightSpec:
    """The arguments of parts: shape and dtypes of a weight, and the options on which its state depends."""

    layout: Layout
    wide: torch.dtype  # the dtype of moments and momentum: float32, or float64 for float64 weights
    work: torch.dtype  # the dtype of the arithmetic
    options: Mapping[str, Any]

    def dtype(self, option: str) -> torch.dtype:
        """The dtype that an option names; None: the wide one."""
        name = self.options[option]
        return getattr(torch, name) if name else self.wide

    def slot(self, meaning: Meaning, codec: Codec) -> Slot:
        """A slot as large as the weight."""
        shape = self.layout.shape
        return Slot(meaning, shape, tuple(range(len(shape))), codec)

    def block_slot(
        self, meaning: Meaning, codec: Codec, shape: Shape, follows: tuple[int | None, ...]
    ) -> Slot:
        """A slot of which each block has its own."""
        return Slot(meaning, shape, follows, codec, blocks=self.layout.count)


class Part(Protocol):
    @property
    def slots(self) -> Slots:
        """The slots of the state that this part owns."""


@runtime_checkable
class KnowsEnergy(Protocol):
    """A part whose slots contain the energy of the gradients that the statistics have seen."""

    def gradient_energy(self, state: State, options: Mapping[str, Any]) -> Tensor | None:
        """Σ β₂^(t-i) ‖G_i‖² of each block (S,), the trace of its covariances; None if unknown here."""


class Preconditioner(Part, Protocol):
    least_axes: ClassVar[int]  # a weight with fewer axes longer than one takes Adam's path
    waits: ClassVar[bool]  # whether it is not used before ``start_step``
    adams_length: ClassVar[bool]  # whether matrices that it preconditions have the length of Adam's step

    @classmethod
    def of(cls, weight: WeightSpec, statistics: "Sketches") -> Self: ...

    def update(
        self, stack: "Stack", G: "Gradient", old: Sequence[Sketch | None], new: Sequence[Sketch | None]
    ) -> Task[Any]:
        """Learn from a gradient, given the sketches before and after it. Return what `apply_` needs."""

    def apply_(self, stack: "Stack", x: Tensor, scale: Tensor, learned: Any) -> Task[tuple[Tensor, Tensor]]:
        """Precondition scale * x for scale (S,) and x (S, *block).

        Return (direction, new scale); the result is their product. x may be overwritten: the direction reuses
        its memory if possible.
        """

    def carry(
        self,
        before: "Preconditioner",
        source: "Stack",
        target: "Stack",
        old: Sequence[Sketch | None],
        new: Sequence[Sketch | None],
    ) -> Task[None]:
        """Take over what this part of another plan has learned in ``source``, with other slots or ranks.

        ``old``, ``new``: the sketches of both plans.
        """


class Graft(Part, Protocol):
    steps: ClassVar[bool]  # whether it is a rule that steps by itself (momentum alone is none)
    by_columns: ClassVar[bool]  # whether it needs the sums of squares of a gradient's columns

    @classmethod
    def of(cls, weight: WeightSpec) -> Self: ...

    def update(self, stack: "Stack", G: "Gradient") -> Task[Tensor | None]:
        """Learn from a gradient. Return the length (S,) of the rule's step, if the gradient decides it."""

    def length(self, stack: "Stack", x: Tensor, ahead: Tensor) -> Task[Tensor | None]:
        """The length (S,) of the rule's step for the momentum ahead * x. None: steps keep their length."""

    def step(self, stack: "Stack", x: Tensor, length: Tensor | None) -> Task[Tensor]:
        """The rule's own step for the momentum x (S, *block), for use before ``start_step``.

        ``length``: the length of this step, see `length`.
        """

    def limit(self, stack: "Stack") -> float | None:
        """The largest root mean square of the rule's step, see `core.moments.longest`; None: no limit."""

    def rescale(
        self,
        stack: "Stack",
        direction: Tensor,
        scale: Tensor,
        length: Tensor | None,
        energy: Tensor | None = None,
    ) -> Task[Tensor]:
        """The new scale (S,) that gives the step scale * direction (S, *block) the length of this rule.

        ``energy``: ‖direction‖² (S,), if it is known.
        """

"""Values as large as a weight in few bits: two slots, the codes and the scales of blocks (`core.quantize`).

The rows are those of the matrix (first axis, all others), whatever the blocks of the sketches are.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from sketchy.core import quantize
from sketchy.core.axes import merge
from sketchy.core.spread import Spread
from sketchy.core.tasks import Task
from sketchy.core.tuned.panels import panels
from sketchy.optim.parts.contracts import WeightSpec
from sketchy.optim.slots import Codec, Meaning, Slot, Slots
from sketchy.optim.stack import Stack

# Weights on Adam's path with fewer entries are not stored in few bits. They are biases and norms: sensitive,
# and small. (The same limit as in bitsandbytes.)
FEWEST = 4096


@dataclass(frozen=True)
class FewBits(ABC):
    """A value (K, *shape) of a stack, stored in the slots ``name`` and ``name_scale``."""

    stored: ClassVar[torch.dtype]  # of the codes

    name: str
    weight: WeightSpec

    @cached_property
    def rows(self) -> tuple[int, int]:
        """The matrix (first axis, all others) of the weight, whose rows are cut into blocks."""
        sides = merge(self.weight.layout.shape, None)
        return (1, *sides) if len(sides) == 1 else sides  # type: ignore[return-value]

    @cached_property
    def slots(self) -> Slots:
        shape, (m, n), wide = self.weight.layout.shape, self.rows, self.weight.wide
        first = next((i for i, size in enumerate(shape) if size == m), None) if m > 1 else None
        codes = self.weight.slot(Meaning.CODES, Codec(self.stored, self.stored))
        if self.width < n:  # packed
            codes = Slot(Meaning.CODES, (m, self.width), (first, None), codes.codec)
        scale = Slot(Meaning.SCALE, (m, quantize.blocks(n)), (first, None), Codec(wide, wide))
        return {self.name: codes, f"{self.name}_scale": scale}

    @property
    def width(self) -> int:
        """The number of codes in a row, as they are stored."""
        return self.rows[1]

    def read(self, stack: Stack) -> Tensor:
        """The value (K, *shape), in new memory, in the dtype of the arithmetic."""
        codes, scale = self._stored(stack)
        rows = self.rows_of(stack)
        x = torch.empty(len(codes), *rows, dtype=self.weight.work, device=codes.device)
        for _, piece in panels(x):
            x[piece] = self._decoded(codes[piece], scale[piece])
        return x.reshape(len(x), *stack.layout.shape)

    def write(
        self,
        stack: Stack,
        x: Tensor,
        minus: tuple[Tensor, Tensor] | None = None,
        G: Tensor | None = None,
    ) -> Task[None]:
        """Store x (K, *shape), or x - A B for ``minus`` = A (K, m, l) and B (K, l, n), panel by panel.

        ``G``: the newest gradients (K, *shape), if there are any. Without ``minus``, `FourBits` overwrites x.
        """
        X = x.reshape(len(x), *self.rows_of(stack))
        spread = _spread_of_rows(stack)
        start = 0 if spread is None else spread.first
        codes = X.new_empty(*X.shape[:2], self.width, dtype=self.stored)
        scale = X.new_empty(*X.shape[:2], quantize.blocks(X.shape[2]), dtype=self.weight.wide)
        for some, piece in panels(X):
            part = X[piece]
            if minus is not None:
                A, B = minus
                part = torch.baddbmm(part, A[piece], B[some], alpha=-1)
            first = start + ((piece[1].start or 0) if len(piece) > 1 else 0)
            fresh = None if G is None else G.reshape(X.shape)[piece]
            codes[piece], scale[piece] = self._encoded(part, fresh, stack, stack.count[some], first)
        kept = stack.own(self.name)[0].shape
        yield from stack.store({self.name: codes.reshape(len(codes), *kept), f"{self.name}_scale": scale})

    def _stored(self, stack: Stack) -> tuple[Tensor, Tensor]:
        codes, scale = (stack.stacked(name) for name in self.slots)
        return codes.reshape(len(codes), self.rows_of(stack)[0], self.width), scale

    def rows_of(self, stack: Stack) -> tuple[int, int]:
        """`rows`, as far as they lie here. Rows themselves are never cut."""
        spread = _spread_of_rows(stack)
        return self.rows if spread is None else (len(spread.here), self.rows[1])

    @abstractmethod
    def _encoded(
        self, x: Tensor, G: Tensor | None, stack: Stack, count: Tensor, first: int
    ) -> tuple[Tensor, Tensor]:
        """Codes and scales of a panel x (k, rows, n) with gradients G, whose first row is ``first``."""

    @abstractmethod
    def _decoded(self, codes: Tensor, scale: Tensor) -> Tensor: ...


class EightBits(FewBits):
    """Signed numbers in 8 bits. Small ones fade if they get no gradients (`quantize.encode`)."""

    stored = torch.int8
    levels: ClassVar[int] = quantize.EIGHT_BITS

    def _encoded(
        self, x: Tensor, G: Tensor | None, stack: Stack, count: Tensor, first: int
    ) -> tuple[Tensor, Tensor]:
        return quantize.encode(x, self.levels, self.weight.wide, fade=1 - stack.group["betas"][0])

    def _decoded(self, codes: Tensor, scale: Tensor) -> Tensor:
        return quantize.decode(codes, scale, self.levels, self.weight.work)


class FourBits(FewBits):
    """Signed numbers in 4 bits, two in a byte. Those with a gradient of zero fade, as in 8 bits.

    If all did, small numbers with small gradients would be lost: they are many, with so few codes.
    """

    stored = torch.uint8
    levels: ClassVar[int] = quantize.FOUR_BITS

    @property
    def width(self) -> int:
        return -(-self.rows[1] // 2)

    def _encoded(
        self, x: Tensor, G: Tensor | None, stack: Stack, count: Tensor, first: int
    ) -> tuple[Tensor, Tensor]:
        fade = None if G is None else torch.where(G == 0, 1 - stack.group["betas"][0], quantize.NEAREST)
        codes, scale = quantize.encode(x, self.levels, self.weight.wide, fade, out=x)
        return quantize.pack(codes), scale

    def _decoded(self, codes: Tensor, scale: Tensor) -> Tensor:
        return quantize.decode(quantize.unpack(codes, self.rows[1]), scale, self.levels, self.weight.work)


class Roots(FewBits):
    """Roots of second moments in 8 bits. A root that is not zero stays so."""

    stored = torch.uint8

    def _encoded(
        self, x: Tensor, G: Tensor | None, stack: Stack, count: Tensor, first: int
    ) -> tuple[Tensor, Tensor]:
        dither = quantize.spread(count, first, *x.shape[1:])
        return quantize.encode_roots(x, dither.to(x.dtype), self.weight.wide)

    def _decoded(self, codes: Tensor, scale: Tensor) -> Tensor:
        return quantize.decode_roots(codes, scale, self.weight.work)


def _spread_of_rows(stack: Stack) -> Spread | None:
    """The spread of the first axis of the weights. Of stacked weights, it is that of the blocks."""
    blocks = None if stack.place is None else stack.place.blocks
    return stack.spreads[0] if blocks is None else blocks

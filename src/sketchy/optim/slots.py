"""Slots: what an optimizer keeps for a parameter, tensor by tensor, from shape and options alone.

Making a state, checking a loaded one, counting its bytes, stacking it for a step and writing it back: all of
these read slots and nothing else. A parameter's state is a flat dict of plain tensors, one for each slot. Its
keys have no dots, since distributed checkpoints split names at them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor

Shape = tuple[int, ...]
State = dict[str, Any]


class Meaning(Enum):
    """What the numbers of a slot are."""

    COUNTER = "counter"
    MOMENTUM = "momentum"  # an average of gradients
    BASIS = "basis"  # orthonormal columns
    SPECTRUM = "spectrum"  # eigenvalues, escaped masses, certified errors
    MOMENT = "moment"  # averages of squares, or their roots

    @property
    def signed(self) -> bool:
        return self in (Meaning.MOMENTUM, Meaning.BASIS)


@dataclass(frozen=True)
class Codec:
    """How a slot is stored: as numbers of one dtype."""

    dtype: torch.dtype

    def encode(self, value: Tensor) -> Tensor:
        return value.to(self.dtype)

    def decode(self, stored: Tensor, work: torch.dtype) -> Tensor:
        return stored.to(work)

    @property
    def eps(self) -> float:
        return torch.finfo(self.dtype).eps


@dataclass(frozen=True)
class Orthonormal(Codec):
    """The same for a basis, whose columns are orthonormal again after decoding."""

    def decode(self, stored: Tensor, work: torch.dtype) -> Tensor:
        """Rounding costs orthonormality, not the span. Newton-Schulz steps restore it: an error of 1e-2
        becomes 1e-4, then 1e-8 and, for float64, 1e-16.
        """
        U = stored.to(work)
        for _ in range(0 if self.dtype == work else 3 if work == torch.float64 else 2):
            U = U @ (1.5 * torch.eye(U.shape[-1], dtype=work, device=U.device) - 0.5 * U.mT @ U)
        return U


FLOAT32, FLOAT64 = Codec(torch.float32), Codec(torch.float64)


@dataclass(frozen=True)
class Slot:
    """One tensor of a parameter's state, described."""

    meaning: Meaning
    shape: Shape
    follows: tuple[int | None, ...]  # of each dimension: the axis of the weight (or block) that it runs along
    codec: Codec
    blocks: int | None = None  # kept once for each of so many blocks, along a first dimension; None: once
    in_place: bool = False  # as large as the weight: a part changes it where it lies
    on_host: bool = False  # read by Python at each step, so that it may not lie on an accelerator

    @property
    def stored(self) -> Shape:
        """The shape in the state."""
        return self.shape if self.blocks is None else (self.blocks, *self.shape)

    @property
    def bytes(self) -> int:
        return math.prod(self.stored) * self.codec.dtype.itemsize

    def create(self, device: torch.device) -> Tensor:
        """What a parameter that has seen no gradient keeps: zeros; of a basis, its part says more."""
        return torch.zeros(self.stored, dtype=self.codec.dtype, device="cpu" if self.on_host else device)


Slots = Mapping[str, Slot]

COUNTER = Slot(Meaning.COUNTER, (), (), FLOAT32)


def fits(state: State, slots: Slots) -> bool:
    """Whether a state is made of these slots."""
    return state.keys() == slots.keys() and all(state[name].shape == s.stored for name, s in slots.items())

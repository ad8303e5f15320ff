"""Slots: descriptions of the tensors that an optimizer keeps for a parameter.

A parameter's state is a flat dict of plain tensors, one for each slot. Slots depend on shape and options
only. All code that makes a state, checks a loaded one, counts its bytes, or reads and writes it in a step
uses the slots. Their names contain no dots, because distributed checkpoints split names at dots.
"""

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from sketchy.core.spread import Spread, total
from sketchy.core.tasks import Task, run

Shape = tuple[int, ...]
State = dict[str, Any]


class Meaning(Enum):
    """What the numbers of a slot are."""

    COUNTER = "counter"
    MOMENTUM = "momentum"  # an average of gradients
    BASIS = "basis"  # orthonormal columns
    COVARIANCE = "covariance"  # symmetric, positive semi-definite
    SPECTRUM = "spectrum"  # eigenvalues, escaped masses, certified errors
    MOMENT = "moment"  # averages of squares, or their roots
    CODES = "codes"  # integers that stand for numbers
    SCALE = "scale"  # the units of codes

    @property
    def signed(self) -> bool:
        return self in (Meaning.MOMENTUM, Meaning.BASIS, Meaning.COVARIANCE, Meaning.CODES)


@dataclass(frozen=True)
class Codec:
    """How a slot is stored. The state has encoded tensors; parts see decoded ones."""

    dtype: torch.dtype  # in the state
    work: torch.dtype  # in the arithmetic

    def encode(self, value: Tensor) -> Tensor:
        return value.to(self.dtype)

    def decode(self, stored: Tensor) -> Tensor:
        """The value in the dtype ``work``; the stored tensor itself if the codec is plain."""
        return stored.to(self.work)

    @cached_property
    def plain(self) -> bool:
        """Whether a value is stored as it is, so that it can be changed in place."""
        return self.dtype == self.work

    @property
    def rounding(self) -> float:
        """The relative rounding error of a stored entry, if it has fewer digits than the arithmetic."""
        return torch.finfo(self.dtype).eps if self.dtype.itemsize < self.work.itemsize else 0.0


@dataclass(frozen=True)
class Orthonormal(Codec):
    """A codec for bases. It makes their columns orthonormal again when it decodes them."""

    def decode(self, stored: Tensor) -> Tensor:
        return run(self.decoded(stored))

    def decoded(self, stored: Tensor, spread: Spread | None = None) -> Task[Tensor]:
        """Convert to ``work``. If the basis was rounded, Newton-Schulz steps make it orthonormal again.

        The error goes from 1e-2 to 1e-4 to 1e-8, and for float64 to 1e-16. ``spread``: of the rows.
        """
        U = super().decode(stored)
        for _ in range(0 if self.plain else 3 if self.work == torch.float64 else 2):
            gram = yield from total(0.5 * U.mT @ U, spread)
            U = U @ (1.5 * torch.eye(U.shape[-1], dtype=self.work, device=U.device) - gram)
        return U


INT64, FLOAT64 = Codec(torch.int64, torch.int64), Codec(torch.float64, torch.float64)


@dataclass(frozen=True)
class Slot:
    """The description of one tensor of a parameter's state."""

    meaning: Meaning
    shape: Shape
    follows: tuple[int | None, ...]  # for each dimension, the axis of the weight (or block) as long as it
    codec: Codec
    blocks: int | None = None  # the number of blocks, if each has its own (first dimension); None: only one
    on_host: bool = False  # Python reads it at each step, so it is kept on the CPU

    @property
    def stored(self) -> Shape:
        """The shape in the state."""
        return self.shape if self.blocks is None else (self.blocks, *self.shape)

    @property
    def bytes(self) -> int:
        return math.prod(self.stored) * self.codec.dtype.itemsize

    def create(self, device: torch.device) -> Tensor:
        """A new tensor of zeros. (Bases are then filled by the part that owns them.)"""
        return torch.zeros(self.stored, dtype=self.codec.dtype, device="cpu" if self.on_host else device)


Slots = Mapping[str, Slot]

COUNTER = Slot(Meaning.COUNTER, (), (), INT64)  # float32 would stop at 2^24


def fits(state: State, slots: Slots) -> bool:
    """Whether a state has exactly these slots, with the right shapes and dtypes."""
    return state.keys() == slots.keys() and all(
        tensor is not None and tensor.shape == slot.stored and tensor.dtype == slot.codec.dtype
        for tensor, slot in ((state[name], slot) for name, slot in slots.items())
    )


def is_sharded(x: object) -> bool:
    """Whether x is a DTensor. If their module is not imported, nothing is one; the import takes long."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(x, module.DTensor)

"""Row norms, as in NorMuon: rows of a direction get similar lengths, and the direction keeps its length.

Each row is divided by the running root mean square of this row in the directions so far. Keeps m numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from sketchy.core import moments
from sketchy.optim.parts.contracts import Weight
from sketchy.optim.slots import FLOAT64, Meaning, Slots, State
from sketchy.optim.stack import Stack


@dataclass(frozen=True)
class RowNorms:
    slots: Slots

    @classmethod
    def of(cls, weight: Weight) -> "RowNorms":
        rows = weight.layout.block[:1]
        return cls({"direction_moment": weight.block_slot(Meaning.MOMENT, FLOAT64, rows, (0,))})

    def apply_(self, stack: Stack, direction: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Learn from scale * direction, (S,) and (S, *block), and normalise its rows, in place."""
        # directions before start_step were the graft's: they don't count, and change nothing
        count = (stack.steps - (stack.group["start_step"] - 1)).clamp(min=0)
        moment, scale = moments.normalize_rows_(
            direction, scale, stack["direction_moment"], stack.group["row_norm"], count
        )
        stack["direction_moment"] = moment
        return direction, scale

    def gradient_energy(self, state: State, options: Mapping[str, Any]) -> None:
        return None

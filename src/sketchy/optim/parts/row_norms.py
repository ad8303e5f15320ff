"""Row norms, as in NorMuon: rows of a direction get similar lengths, and the direction keeps its length.

Each row is divided by the running root mean square of this row in the directions so far. Keeps m numbers.
"""

from dataclasses import dataclass

from torch import Tensor

from sketchy.core import row_norms
from sketchy.core.tasks import Task
from sketchy.optim.parts.contracts import WeightSpec
from sketchy.optim.slots import FLOAT64, Meaning, Slots
from sketchy.optim.stack import Stack


@dataclass(frozen=True)
class RowNorms:
    slots: Slots

    @classmethod
    def of(cls, weight: WeightSpec) -> "RowNorms":
        rows = weight.layout.block[:1]
        return cls({"direction_moment": weight.block_slot(Meaning.MOMENT, FLOAT64, rows, (0,))})

    def apply_(self, stack: Stack, direction: Tensor, scale: Tensor) -> Task[tuple[Tensor, Tensor, Tensor]]:
        """Learn from scale * direction, (S,) and (S, *block), and normalise its rows.

        Return the new direction and scale, and the energy (S,) of the direction.
        """
        # directions before start_step were the graft's: they don't count, and change nothing
        before = stack.group["start_step"] - 1
        count = (stack.steps - before).clamp(min=0) if before and stack.plan.waits else stack.steps
        direction, moment, scale, energy = yield from row_norms.normalize_rows_(
            direction, scale, stack["direction_moment"], stack.group["row_norm"], count, stack.spreads
        )
        stack["direction_moment"] = moment
        return direction, scale, energy

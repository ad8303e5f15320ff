"""The parts of a step. Each owns its slots of the state; an optimizer is a choice of parts.

| part           | what it does with a gradient                  | classes
|
| -------------- | --------------------------------------------- |
---------------------------------------------- |
| statistics     | folds it into a covariance for each axis      | `Sketches`
|
| preconditioner | learns from it, then preconditions momentum   | `InverseRoots`, `BasisMoments`,
`EntryMoments` |
| graft          | learns the length that a step should have     | one class a rule, in `grafts`
|
| momentum       | averages it                                   | `Momentum`
|

A part is made once for all weights of one shape and set of options (`of`), and holds no tensors. The values
are the stack's: a part reads and writes its slots there.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from sketchy.optim.parts.contracts import Graft, Part, Preconditioner
from sketchy.optim.parts.momentum import Momentum
from sketchy.optim.parts.sketches import Sketches


@dataclass(frozen=True)
class Parts:
    """The parts of a weight's step."""

    statistics: Sketches
    preconditioner: Preconditioner
    graft: Graft
    momentum: Momentum

    def __iter__(self) -> Iterator[Part]:
        return iter((self.momentum, self.statistics, self.preconditioner, self.graft))

"""A stack: weights of one plan on their way through a step, with their gradients and their state.

Parts read and write the stacked state by name (``stack["row_moment"]``). New values are written into the
parameters' own tensors at the end of the step, all at once. A bad gradient (NaN, Inf, or too large to be
squared) counts as zero during the step. Its weight and its state stay as they were, and it is counted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sketchy.core.axes import as_matrix
from sketchy.core.extremes import energies, row_energy
from sketchy.core.moments import like
from sketchy.core.tasks import Task, reading, within
from sketchy.optim.descend import descend_
from sketchy.optim.slots import State

if TYPE_CHECKING:
    from sketchy.optim.plan import Plan

Group = dict[str, Any]  # one of param_groups

# From here on a gradient is as bad as Inf: sums of such, or their squares in float64, would be.
_TOO_LARGE = {torch.float32: 1e28, torch.float64: 1e140}


@dataclass(frozen=True)
class Gradient:
    """The gradients of a stack, zero where they are bad."""

    whole: Tensor  # (K, *shape)
    blocks: Tensor  # (S, *block), in the same memory where that can be
    norm: Tensor  # (S,), float64, of the blocks
    rows: Tensor  # (S, b_1), float64: sums of squares over the rows of the blocks
    columns: Tensor | None  # (S, rest), the same of their columns, where the graft needs it


class Stack:
    """K weights of one group and one plan, cut into S blocks."""

    def __init__(
        self, params: Sequence[Tensor], states: Sequence[State], plan: "Plan", group: Group, due: bool
    ) -> None:
        self.params, self.states, self.plan, self.group = params, states, plan, group
        self.due = due  # whether sketches see this gradient (update_every)
        self.good: Tensor | None = None  # (K,): which gradients are good; None: all are known to be
        self._old: dict[str, Tensor] = {}  # what was read of the state, stacked
        self._new: dict[str, Tensor] = {}  # what was written since
        self.count = self["step"] + 1  # (K,): good gradients, with this one
        self._new["step"] = self.count
        self.steps = plan.layout.each(self.count)  # (S,)

    # ---- the state

    def __getitem__(self, name: str) -> Tensor:
        """The newest value of a slot: (K, ...), or (S, ...) where it is kept for each block."""
        return self._new[name] if name in self._new else self.read((name,))[0]

    def __setitem__(self, name: str, value: Tensor) -> None:
        self._new[name] = value

    def read(self, names: Sequence[str]) -> list[Tensor]:
        """The values of some slots before this step."""
        for name in names:
            if name not in self._old:
                self._old[name] = self.stacked(name)
        return [self._old[name] for name in names]

    def write(self, values: Mapping[str, Tensor]) -> None:
        """The values of some slots after this step."""
        self._new.update(values)

    def own(self, name: str) -> list[Tensor]:
        """A slot of each parameter, where it lies."""
        return [state[name] for state in self.states]

    def stacked(self, name: str) -> Tensor:
        """A slot of all parameters; that of a single one is in its own memory."""
        own = self.own(name)
        if self.plan.slots[name].blocks is None:
            return stacked(own)
        return own[0] if len(own) == 1 else torch.cat(own)

    def put_back(self, name: str, value: Tensor) -> None:
        """Write what `stacked` gave, after a change in place."""
        if len(self.params) > 1:
            self._scatter({name: value})

    def _scatter(self, values: Mapping[str, Tensor]) -> None:
        targets: list[Tensor] = []
        sources: list[Tensor] = []
        for name, value in values.items():
            own = self.own(name)
            targets += own
            if len(own) == 1 and value.shape == own[0].shape:
                sources.append(value)
            else:
                sources += value.reshape(len(own), *own[0].shape).unbind()
        torch._foreach_copy_(targets, sources)

    # ---- the two ends of a step

    def gradients(self) -> Task[Gradient]:
        """The gradients, in the dtype of the arithmetic. Bad ones are zero, and marked in ``good``."""
        plan, layout = self.plan, self.plan.layout
        whole = stacked([p.grad for p in self.params if p.grad is not None]).to(plan.work)
        if self.group["maximize"]:
            whole = -whole
        blocks = layout.split(whole)
        matrix = as_matrix(blocks)
        rows, columns = energies(matrix) if plan.graft.by_columns else (row_energy(matrix), None)
        norm = rows.sum(-1).sqrt()
        size = norm if layout.count == 1 else norm.reshape(len(whole), -1).square().sum(-1).sqrt()
        limit = _TOO_LARGE[whole.dtype]
        if within((yield from reading(size)), -1.0, limit):  # no NaN is
            return Gradient(whole, blocks, norm, rows, columns)
        self.good = size < limit
        del blocks, matrix
        whole = _select(self.good, whole)
        norm, rows = (_select(self.good, x) for x in (norm, rows))
        columns = None if columns is None else _select(self.good, columns)
        return Gradient(whole, layout.split(whole), norm, rows, columns)

    @property
    def good_blocks(self) -> Tensor | None:
        """(S,): `good` for each block."""
        return None if self.good is None else self.plan.layout.each(self.good)

    def descend_(self, direction: Tensor, scale: Tensor) -> None:
        """Move the weights by -lr * scale * direction, (S, *block) and (S,); bad gradients move nothing."""
        layout = self.plan.layout
        if layout.count > 1:
            direction, scale = (
                direction.mul_(like(scale, direction)),
                torch.ones_like(self.count, dtype=torch.float64),
            )
        direction = layout.join(direction)
        if self.good is not None:
            direction.masked_fill_(like(~self.good, direction) > 0, 0.0)
        descend_(self.params, direction, scale, self.good, self.group)

    def keep(self) -> None:
        """Write what has changed into the state, and let go of it."""
        changed = self._new
        if self.good is not None:
            old = self.read(tuple(changed))
            pairs = zip(changed.items(), old, strict=True)
            changed = {name: _select(self.good, new, before) for (name, new), before in pairs}
            changed["skipped"] = self["skipped"] + ~self.good
        self._scatter(changed)
        self._old, self._new = {}, {}


def stacked(tensors: Sequence[Tensor]) -> Tensor:
    """(K, ...); a view of a single one."""
    return tensors[0].unsqueeze(0) if len(tensors) == 1 else torch.stack(list(tensors))


def _select(good: Tensor, new: Tensor, old: Tensor | float = 0.0) -> Tensor:
    """``new`` for good gradients, ``old`` for bad ones; a stack may hold several blocks a parameter."""
    mask = good.repeat_interleave(len(new) // len(good)).reshape(-1, *[1] * (new.dim() - 1))
    return torch.where(mask, new.to(old.dtype) if isinstance(old, Tensor) else new, old)

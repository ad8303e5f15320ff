"""A stack: weights with the same plan that step together, with their gradients and their state.

Parts read and write the stacked state by name (``stack["row_moment"]``). At the end of the step, all new
values are written into the parameters' own tensors. A bad gradient (NaN, Inf, or too large to be squared) is
replaced by zero during the step. Its weight and state do not change, and it is counted as skipped.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sketchy.core.axes import as_matrix
from sketchy.core.extremes import energies, row_energy
from sketchy.core.moments import like
from sketchy.core.tasks import Request, Task, read, within
from sketchy.optim.descend import descend_
from sketchy.optim.slots import State

if TYPE_CHECKING:
    from sketchy.optim.plan import Plan

Group = dict[str, Any]  # one of param_groups
Settings = Mapping[str, Any]  # the options of a group, as its weights on one path use them

# A gradient with a larger norm counts as bad: sums of such gradients, or their squares in float64, would be
# Inf.
_TOO_LARGE = {torch.float32: 1e28, torch.float64: 1e140}


@dataclass(frozen=True)
class Gradient:
    """The gradients of a stack. Bad ones are replaced by zero."""

    whole: Tensor  # (K, *shape)
    blocks: Tensor  # (S, *block), a view of ``whole`` if possible
    norm: Tensor  # (S,), float64: norms of the blocks
    rows: Tensor  # (S, b_1), float64: sums of squares of each row of the blocks
    columns: Tensor | None  # (S, rest), float64: the same for columns, if the graft needs it


class Stack:
    """K weights of one group and one plan, cut into S blocks."""

    def __init__(
        self, params: Sequence[Tensor], states: Sequence[State], plan: "Plan", group: Settings, due: bool
    ) -> None:
        self.params, self.states, self.plan, self.group = params, states, plan, group
        self.due = due  # whether this gradient updates the sketches (update_every)
        self.good: Tensor | None = None  # (K,): which gradients are good; None: all are known to be good
        self._old: dict[str, Tensor] = {}  # the slots that were read, stacked
        self._new: dict[str, Tensor] = {}  # the slots that were written
        self.count = self["step"] + 1  # (K,): number of good gradients, including this one
        self._new["step"] = self.count
        self.steps = plan.layout.each(self.count)  # (S,)

    # ---- the state

    def __getitem__(self, name: str) -> Tensor:
        """The newest value of a slot: (K, ...), or (S, ...) if each block has its own."""
        return self._new[name] if name in self._new else self.read((name,))[0]

    def __setitem__(self, name: str, value: Tensor) -> None:
        self._new[name] = value

    def read(self, names: Sequence[str]) -> list[Tensor]:
        """The values that some slots had before this step."""
        for name in names:
            if name not in self._old:
                self._old[name] = self.stacked(name)
        return [self._old[name] for name in names]

    def write(self, values: Mapping[str, Tensor]) -> None:
        """Set the values of some slots after this step."""
        self._new.update(values)

    def own(self, name: str) -> list[Tensor]:
        """The tensors of a slot in the state, one for each parameter; not copied."""
        return [state[name] for state in self.states]

    def stacked(self, name: str) -> Tensor:
        """A slot of all parameters in one tensor, decoded. With one parameter, a plain slot is not copied."""
        stored = self._encoded(name)
        return self.plan.coded[name].decode(stored) if name in self.plan.coded else stored

    def put_back(self, name: str, value: Tensor) -> None:
        """Write back the result of `stacked` after it was changed in place."""
        codec = self.plan.coded.get(name)
        if codec is not None or len(self.params) > 1:
            self._scatter({name: value if codec is None else codec.encode(value)})

    def _encoded(self, name: str) -> Tensor:
        """A slot of all parameters in one tensor, as it is stored."""
        own = self.own(name)
        if self.plan.slots[name].blocks is None:
            return stacked(own)
        return own[0] if len(own) == 1 else torch.cat(own)

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
        """The gradients, in the dtype of the arithmetic. Bad ones become zero, and are marked in ``good``."""
        plan, layout = self.plan, self.plan.layout
        whole = stacked([p.grad for p in self.params if p.grad is not None]).to(plan.work)
        if self.group["maximize"]:
            whole = -whole
        blocks = layout.split(whole)
        matrix = as_matrix(blocks)
        rows, columns = energies(matrix) if plan.graft.by_columns else (row_energy(matrix), None)
        norm = rows.sum(-1).sqrt()
        size = norm if layout.count == 1 else norm.reshape(len(whole), -1).square().sum(-1).sqrt()
        limit = _TOO_LARGE[plan.range]
        if within((yield Request(read, (size,))), -1.0, limit):  # false for NaN
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
        """Add -lr * scale (S,) * direction (S, *block) to the weights, except to those with bad gradients."""
        layout = self.plan.layout
        if layout.count > 1:
            direction = direction.mul_(like(scale, direction))
            scale = torch.ones_like(self.count, dtype=torch.float64)
        direction = layout.join(direction)
        if self.good is not None:
            direction.masked_fill_(like(~self.good, direction) > 0, 0.0)
        descend_(self.params, direction, scale, self.good, self.group)

    def keep(self) -> None:
        """Write the new values into the state, and forget them. Bad gradients change only a counter."""
        changed, coded = self._new, self.plan.coded
        for name in coded.keys() & changed.keys():
            changed[name] = coded[name].encode(changed[name])
        changed = self._masked(changed)
        if self.good is not None:
            changed["skipped"] = self["skipped"] + ~self.good
        self._scatter(changed)
        self._old, self._new = {}, {}

    def store(self, values: Mapping[str, Tensor]) -> None:
        """Write encoded values into the state at once. Those of bad gradients are dropped."""
        self._scatter(self._masked(values))

    def _masked(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Encoded values for good gradients, the stored ones for bad gradients."""
        if self.good is None:
            return dict(values)
        read = self._old.keys() - self.plan.coded.keys()
        old = {name: self._old[name] if name in read else self._encoded(name) for name in values}
        return {name: _select(self.good, new, old[name]) for name, new in values.items()}


def stacked(tensors: Sequence[Tensor]) -> Tensor:
    """Stack K tensors to (K, ...). The result for a single tensor is a view."""
    return tensors[0].unsqueeze(0) if len(tensors) == 1 else torch.stack(list(tensors))


def _select(good: Tensor, new: Tensor, old: Tensor | float = 0.0) -> Tensor:
    """``new`` for good gradients, ``old`` for bad ones. ``new`` may have several blocks per parameter."""
    mask = good.repeat_interleave(len(new) // len(good)).reshape(-1, *[1] * (new.dim() - 1))
    return torch.where(mask, new.to(old.dtype) if isinstance(old, Tensor) else new, old)

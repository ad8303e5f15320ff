"""A stack: weights with the same plan that step together, with their gradients and their state.

Parts read and write the stacked state by name (``stack["row_moment"]``). At the end of the step, all new
values are written into the parameters' own tensors. A bad gradient (NaN, Inf, or too large to be squared) is
replaced by zero during the step. Its weight and state do not change, and it is counted as skipped.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sketchy.core.axes import as_matrix
from sketchy.core.extremes import energies, row_norms
from sketchy.core.moments import correction, like
from sketchy.core.padded import padded
from sketchy.core.spread import Spread, part, total
from sketchy.core.tasks import Request, Task, batches, gather, launch, read, within
from sketchy.optim.descend import descend_
from sketchy.optim.slots import Meaning, State
from sketchy.optim.stacked import Copied, Stacked, stacked

if TYPE_CHECKING:
    from sketchy.optim.plan import Plan
    from sketchy.optim.sharding import Place

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
    """K weights of one group and one plan, cut into S blocks.

    Of sharded weights, it has the parts that lie here. ``place`` says where the parts lie, and the spreads of
    the axes of a block (`core.spread`) are read from it. ``grads`` finds their gradients when the step needs
    them.
    """

    def __init__(
        self,
        params: Sequence[Tensor],
        states: Sequence[State],
        plan: "Plan",
        group: Settings,
        due: bool,
        grads: Callable[[], Sequence[Tensor]] | None = None,
        place: "Place | None" = None,
        roots: bool | None = None,
    ) -> None:
        self.params, self.states, self.plan, self.group, self.grads = params, states, plan, group, grads
        self.due = due  # whether this gradient updates the sketches (update_every)
        self.roots = due if roots is None else roots  # whether their bases change: rarer with roots_every
        self.place = place
        self.fetched: dict[str, Callable[[], Tensor]] = {}  # bases that are on their way (`schedule.fetch`)
        self.layout = plan.layout if place is None else place.layout
        self.spreads = (None,) * len(plan.layout.block) if place is None else place.spreads
        # (K,): which gradients are good or bad; None: all are known to be good
        self.good: Tensor | None = None
        self.bad: Tensor | None = None
        self._loaded: dict[str, Tensor] = {}  # slots that were stacked ahead, as they are stored
        self._old: dict[str, Tensor] = {}  # the slots that were read, stacked
        self._new: dict[str, Tensor] = {}  # the slots that were written

    @cached_property
    def count(self) -> Tensor:
        """(K,): number of good gradients, including this one."""
        return self["step"] + 1

    @cached_property
    def steps(self) -> Tensor:
        """(S,): `count` for each block."""
        return self.layout.each(self.count)

    @property
    def parts(self) -> int:
        """The number of ranks over which the weights are spread, as parts of about the same size."""
        return math.prod(spread.parts for spread in self.spreads if spread is not None)

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
        stored = self.stored(name)
        return self.plan.coded[name].decode(stored) if name in self.plan.coded else stored

    def apart(self, name: str) -> Spread | None:
        """How the rows of a basis are spread in the state, if a step needs all of them."""
        return None if self.place is None else self.place.apart.get(name)

    def put_back(self, name: str, value: Tensor) -> Task[None]:
        """Write back the result of `stacked` after it was changed in place."""
        codec = self.plan.coded.get(name)
        if codec is not None or len(self.params) > 1:
            yield from self._scatter({name: value if codec is None else codec.encode(value)})

    def stored(self, name: str) -> Tensor:
        """A slot of all parameters in one tensor, as it is stored here."""
        if name in self._loaded:
            return self._loaded[name]
        own = self.own(name)
        if self.plan.slots[name].blocks is None:
            return stacked(own)
        return own[0] if len(own) == 1 else torch.cat(own)

    def _is_thin(self, name: str) -> bool:
        """Whether a slot is a counter, or smaller than the weight."""
        slot = self.plan.slots[name]
        if slot.blocks is None:
            return slot.meaning is Meaning.COUNTER and not slot.on_host
        return math.prod(slot.shape) < math.prod(self.plan.layout.block)

    def _scatter(self, values: Mapping[str, Tensor]) -> Task[None]:
        """Copy values into the state. On an accelerator, all copies of a wave are made together."""
        pairs: list[tuple[list[Tensor], Sequence[Tensor]]] = []
        for name, value in values.items():
            own = self.own(name)
            alone = len(own) == 1 and value.shape == own[0].shape
            pairs.append((own, [value] if alone else value.reshape(len(own), *own[0].shape).unbind()))
        if batches(self.params[0]):
            yield [Copied(torch._foreach_copy_, (*own,), sources=sources) for own, sources in pairs]
        elif pairs:
            targets, sources = ([x for some in column for x in some] for column in zip(*pairs, strict=True))
            torch._foreach_copy_(targets, sources)

    # ---- the two ends of a step

    def _load(self) -> Task[None]:
        """Count the step. On an accelerator, stack the thin slots together with those of other stacks."""
        if batches(self.params[0]):
            several = len(self.params) > 1
            names = [*filter(self._is_thin, self.plan.slots)] if several else []
            slots = [self.plan.slots[name] for name in names]
            found = yield [
                Stacked(stacked, (*self.own(name),), cat=slot.blocks is not None)
                for name, slot in zip(names, slots, strict=True)
            ]
            self._loaded = dict(zip(names, found, strict=True))
        self.count = yield from launch(_plus, self["step"], amount=1)
        self._new["step"] = self.count

    def gradients(self) -> Task[Gradient]:
        """The gradients, in the dtype of the arithmetic. Bad ones become zero, and are marked in ``good``."""
        yield from self._load()
        plan, layout, spreads = self.plan, self.layout, self.spreads
        own = [p.grad for p in self.params if p.grad is not None]
        grads = own if self.grads is None else self.grads()
        whole = stacked(grads).to(plan.work)
        if self.group["maximize"]:
            whole = -whole
        blocks = layout.split(whole)
        matrix = as_matrix(blocks)
        if plan.graft.by_columns:
            rows, columns = energies(matrix)
            columns = yield from total(columns, *spreads[:1])
            energy = rows.sum(-1)
        else:
            columns = None
            rows, energy = yield from padded(_squared, row_norms(matrix))
        rows = yield from total(rows, *spreads[1:])
        energy = yield from total(energy, *spreads)
        norm = yield from launch(torch.sqrt, energy)
        size = norm if plan.layout.count == 1 else (yield from self._norm_of_weights(norm))
        limit = _TOO_LARGE[plan.range]
        if within((yield Request(read, (size,))), -1.0, limit):  # false for NaN
            return Gradient(whole, blocks, norm, rows, columns)
        del blocks, matrix
        self.good, self.bad, size = yield from launch(_judged, size, limit=limit)
        bad = self.bad
        whole, rows = _without(bad, whole), _without(bad, rows)
        norm = size if plan.layout.count == 1 else _without(bad, norm)
        columns = None if columns is None else _without(bad, columns)
        return Gradient(whole, layout.split(whole), norm, rows, columns)

    def _norm_of_weights(self, norm: Tensor) -> Task[Tensor]:
        """The norms (K,) of weights from those of their blocks."""
        energy = norm.reshape(len(self.params), self.layout.count).square().sum(-1)
        blocks = None if self.place is None else self.place.blocks
        return (yield from total(energy, blocks)).sqrt()

    @property
    def good_blocks(self) -> Tensor | None:
        """(S,): `good` for each block."""
        return None if self.good is None else self.layout.each(self.good)

    def filled(self, beta: float) -> Task[Tensor]:
        """The weight (S,) of all gradients so far in a moving average, see `core.moments.correction`."""
        return (yield from launch(correction, self.steps, beta=beta))

    def descend_(self, direction: Tensor, scale: Tensor) -> Task[None]:
        """Add -lr * scale (S,) * direction (S, *block) to the weights, except to those with bad gradients."""
        layout = self.layout
        if layout.count == 0:  # none of the stacked matrices lies here
            return
        if self.bad is not None:
            scale = _without(self.bad, scale)
        if layout.count > 1:
            direction = direction.mul_(like(scale, direction))
            scale = torch.ones_like(self.count, dtype=torch.float64)
        direction = layout.join(direction)
        if self.place is not None:
            direction = self.place.part_of_gathered(direction)
        yield from descend_(self.params, direction, scale, self.good, self.group)

    def keep(self) -> Task[None]:
        """Write the new values into the state, and forget them. Bad gradients change only a counter."""
        changed, coded = self._new, self.plan.coded
        for name in changed.keys() & ({} if self.place is None else self.place.apart).keys():
            changed[name] = part(changed[name], self.apart(name))
        for name in coded.keys() & changed.keys():
            changed[name] = coded[name].encode(changed[name])
        changed = yield from self._masked(changed)
        if self.bad is not None:
            changed["skipped"] = yield from launch(torch.add, self["skipped"], self.bad)
        yield from self._scatter(changed)
        self._loaded, self._old, self._new = {}, {}, {}

    def count_turns(self) -> None:
        """After the step: count gradients for ``update_every``. Bad ones are not counted if they are known;
        on an accelerator they are counted, because Python would have to wait to know them."""
        if "turn" not in self.plan.slots:
            return
        good = self.good if self.good is not None and self.good.device.type == "cpu" else None
        torch._foreach_add_(self.own("turn"), 1 if good is None else list(good.long().unbind()))

    def store(self, values: Mapping[str, Tensor]) -> Task[None]:
        """Write encoded values into the state at once. Those of bad gradients are dropped."""
        yield from self._scatter((yield from self._masked(values)))

    def _masked(self, values: Mapping[str, Tensor]) -> Task[dict[str, Tensor]]:
        """Encoded values for good gradients, the stored ones for bad gradients."""
        if self.good is None:
            return dict(values)
        read = self._old.keys() - self.plan.coded.keys()
        old = {name: self._old[name] if name in read else self.stored(name) for name in values}
        assert self.good_blocks is not None
        good = [self.good if self.plan.slots[name].blocks is None else self.good_blocks for name in values]
        tasks = (
            launch(_select, which, values[name], old[name]) for name, which in zip(values, good, strict=True)
        )
        return dict(zip(values, (yield from gather(tasks)), strict=True))


def _squared(lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Squares (S, m), and their sums (S,)."""
    rows = lengths.square()
    return rows, rows.sum(-1)


def _judged(size: Tensor, *, limit: float) -> tuple[Tensor, Tensor, Tensor]:
    """Which gradients are good and bad, by their norms (K,), and the norms, zero for bad ones."""
    good = size < limit  # false for NaN
    bad = ~good
    return good, bad, size.masked_fill(bad, 0.0)


def _select(good: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """``new`` for good gradients or blocks, ``old`` for bad ones."""
    return torch.where(good.reshape(-1, *[1] * (new.dim() - 1)), new.to(old.dtype), old)


def _plus(x: Tensor, *, amount: int) -> Tensor:
    return x + amount


def _without(bad: Tensor, x: Tensor) -> Tensor:
    """x, and zero for bad gradients. x may have several blocks per parameter."""
    return x.masked_fill(_mask(bad, x), 0.0)


def _mask(which: Tensor, x: Tensor) -> Tensor:
    """(K,) in the shape of a mask for x (S, ...), S a multiple of K."""
    return which.unsqueeze(-1).expand(-1, len(x) // len(which)).reshape(-1, *[1] * (x.dim() - 1))

"""A stack's way through one step: its gradients into sketches, then momentum into directions.

Sketches of all stacks of a step are updated together (`sketch_together`), between the two halves.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from sketchy.core import dense, graft
from sketchy.core.axes import as_matrix, unfold
from sketchy.core.linalg import certain, energies, row_energy, within
from sketchy.core.moments import like
from sketchy.core.sketch import Sketch, update_all
from sketchy.optim import state as states
from sketchy.optim.elementwise import adam, look_ahead
from sketchy.optim.state import Stack

# From here on a gradient is as bad as Inf: sums of such, or their squares in float64, would be.
_TOO_LARGE = {torch.float32: 1e28, torch.float64: 1e140}

Energy = tuple[Tensor, Tensor | None]  # of the rows of a stack of blocks, and of their columns if needed
# x (S, *block), what momentum says the gradients are → a direction, in x's memory where that can be, and the
# factor (S,) that it lacks
Preconditioner = Callable[[Tensor], tuple[Tensor, Tensor]]


class Turn:
    """K weights of one plan, cut into S blocks, on their way through one step.

    Values are those of the state (`Stack.gather`), and new ones take their place as they are found. A bad
    gradient counts as zero here; it changes nothing where state lies, and of values the old ones are kept.
    """

    def __init__(self, stack: Stack) -> None:
        self.stack, self.group, self.plan = stack, stack.group, stack.plan
        layout, G = self.plan.layout, stack.gradients()
        blocks = layout.split(G)
        energy = _energy(blocks, self.group["graft"] if self.sketched else None)
        norm = energy[0].sum(-1).sqrt()
        good = _good(norm, len(G), _TOO_LARGE[G.dtype])
        if good is not None:
            del blocks
            G, norm = _select(good, G), _select(good, norm)
            blocks = layout.split(G)
            energy = _select(good, energy[0]), None if energy[1] is None else _select(good, energy[1])
        self.gradients = G  # (K, *shape)
        self.blocks = blocks  # (S, *block), in the same memory where that can be
        self.norm, self.energy = norm, energy  # of blocks
        self.good = good  # (K,); None: all are
        self.before = stack.gather()
        self.values = self.before | {"step": self.before["step"] + 1}
        self.step = layout.each(self.values["step"])  # (S,)
        self.old_sketches: list[Sketch | None] = [
            None if axis is None else states.sketch_of(self.before, axis, self.plan.work)
            for axis in self.plan.axes
        ]
        self.sketches = list(self.old_sketches)  # of each axis, the newest

    @property
    def sketched(self) -> bool:
        return self.plan.path == "sketch"

    def directions(self, preconditioner: Preconditioner | None) -> tuple[Tensor, Tensor]:
        """Directions (K, *shape) for what momentum says, and the factors (K,) that they lack.

        Without a preconditioner, Adam's.
        """
        direction, factor = self._adam() if preconditioner is None else self._precondition(preconditioner)
        if self.good is not None:
            direction.masked_fill_(like(~self.good, direction) > 0, 0.0)
        return direction, factor

    def keep(self) -> None:
        """Write what has changed into the state."""
        before, good = self.before, self.good
        changed = {name: value for name, value in self.values.items() if value is not before[name]}
        if good is not None:
            changed = {name: _select(good, value, before[name]) for name, value in changed.items()}
            changed["skipped"] = before["skipped"] + ~good
        self.stack.scatter(changed)

    def observe(self, i: int, sketch: Sketch) -> None:
        """Take a sketch into which the gradient was folded."""
        axis = self.plan.axes[i]
        assert axis is not None
        self.sketches[i] = sketch
        self.values.update(states.values_of(sketch, axis, self.plan))

    def _precondition(self, preconditioner: Preconditioner) -> tuple[Tensor, Tensor]:
        layout = self.plan.layout
        self._observe_graft()
        normalized = graft.normalized(self.group["graft"])
        length = self._lender().length(self.blocks, self.norm) if normalized else None
        del self.blocks
        x, ahead = look_ahead(self.stack, self.gradients, self.values["step"], self.good)
        del self.gradients
        x, ahead = layout.split(x), layout.each(ahead)
        direction, factor = self._move(x, ahead, length, preconditioner)
        if layout.count > 1:
            direction = direction.mul_(like(factor, direction))
            factor = _ones(self.values["step"])
        self.stack.count_turn(self.good)
        return layout.join(direction), factor

    def _move(
        self, x: Tensor, ahead: Tensor, length: Tensor | None, preconditioner: Preconditioner
    ) -> tuple[Tensor, Tensor]:
        """Directions for x, which lacks a factor ``ahead``, and the factors (S,) that they lack.

        ``length``: what a normalised rule lends. Normalised momentum, of length one, would step as far as
        ever when the gradient has gone.
        """
        group, lender = self.group, self._lender()
        rule = lender.rule
        if rule is not None:
            wanted = lender.clipped(ahead * lender.length(x), x) if length is None else length
        lent = None
        if group["start_step"] > 1 and not certain(started := self.step >= group["start_step"]):
            lent = lender.step(x * like(ahead, x))
            if graft.normalized(rule):
                lent = lent * like(graft.ratio(wanted, lent), lent)
            if certain(~started):
                return lent, _ones(self.step)
        del lender  # and what it has stacked
        direction, factor = preconditioner(x)
        factor = ahead * factor
        if rule is not None:
            factor = graft.factor(rule, wanted, direction, factor) * group["graft_scale"]
        if lent is not None:
            own = like(factor, x) * direction
            direction, factor = torch.where(like(started, x) > 0, own, lent), _ones(self.step)
        return direction, factor

    def _adam(self) -> tuple[Tensor, Tensor]:
        G = self.gradients
        del self.blocks, self.gradients
        return adam(self.stack, G, self.values["step"], self.good)

    def _observe_graft(self) -> None:
        """Fold the gradient into what the graft's rule keeps."""
        rule, beta2 = self.group["graft"], self.group["betas"][1]
        self.values.update(graft.observe(self.values, self.energy, beta2))
        if self._rooted:
            root = self.stack.stacked(graft.ROOT)
            good = None if self.good is None else self.plan.layout.each(self.good)
            graft.observe_entries_(rule, root, self.blocks, self.norm, beta2, good)
            self.stack.put_back(graft.ROOT, root)

    def _lender(self) -> graft.Graft:
        """Who lends a step its length. Entries are stacked anew: held meanwhile, they'd be a third stack."""
        state = self.values | ({graft.ROOT: self.stack.stacked(graft.ROOT)} if self._rooted else {})
        return graft.Graft(
            self.group["graft"], state, self.step, beta2=self.group["betas"][1], eps=self.group["eps"]
        )

    @property
    def _rooted(self) -> bool:
        return graft.ROOT in self.plan.state


def sketch_together(turns: Sequence[Turn]) -> None:
    """Fold gradients into the sketches that are due (Alg. 3, line 5), those of one rank in one batch."""
    alike: dict[Any, list[tuple[Turn, int, Sketch]]] = defaultdict(list)
    for turn in turns:
        beta2 = turn.group["betas"][1]
        for i, (axis, sketch) in enumerate(zip(turn.plan.axes, turn.sketches, strict=True)):
            if axis is None or sketch is None or not turn.stack.due:
                continue
            if axis.dense:
                A = unfold(turn.blocks, i)
                turn.observe(i, dense.update(sketch, A, beta2=beta2, norm=turn.norm))
            else:
                where = sketch.basis.dtype, sketch.basis.device
                alike[axis.rank, *where, beta2, turn.group["solver"]].append((turn, i, sketch))
    for (*_, beta2, solver), some in alike.items():
        new = update_all(
            [sketch for *_, sketch in some],
            [unfold(turn.blocks, i) for turn, i, _ in some],
            beta2=beta2,
            solver=solver,
            norms=[turn.norm for turn, *_ in some],
        )
        for (turn, i, _), sketch in zip(some, new, strict=True):
            turn.observe(i, sketch)


def _ones(step: Tensor) -> Tensor:
    return torch.ones_like(step, dtype=torch.float64)


def _good(norm: Tensor, weights: int, limit: float) -> Tensor | None:
    """Which weights have a gradient to go by, from the norms of their blocks; None: all are known to."""
    whole = norm if len(norm) == weights else norm.reshape(weights, -1).square().sum(-1).sqrt()
    return None if within(whole, -1.0, limit) else whole < limit  # no NaN is


def _energy(blocks: Tensor, rule: str | None) -> Energy:
    """What finding bad gradients and a graft's rule need."""
    rows = as_matrix(blocks)
    return energies(rows) if rule == "factored" else (row_energy(rows), None)


def _select(good: Tensor, new: Tensor, old: Tensor | float = 0.0) -> Tensor:
    """``new`` for good gradients, ``old`` for bad ones; a stack may hold several blocks a parameter."""
    mask = good.repeat_interleave(len(new) // len(good)).reshape(-1, *[1] * (new.dim() - 1))
    return torch.where(mask, new.to(old.dtype) if isinstance(old, Tensor) else new, old)

"""Graft rules: they set the length of a preconditioned step (Sec. 5, App. C). `RULES` lists them by name.

A rule is an optimizer of its own, for example Adam with a second moment for each row. It keeps second moments
of the gradient. A preconditioned step gets the length that the rule's step would have for the same momentum.
Normalised rules divide gradients by their norm. They take the length of their step for the gradient instead
of the momentum: normalised momentum would give long steps even when the gradient is almost zero.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from sketchy.core import moments
from sketchy.core.axes import as_matrix
from sketchy.core.extremes import row_energy
from sketchy.core.moments import (
    divide_by_root,
    length_over_root,
    like,
    observe_root_,
    over_length,
    weights,
)
from sketchy.core.spread import norm
from sketchy.core.tasks import Task
from sketchy.optim.parts.contracts import Graft, WeightSpec
from sketchy.optim.slots import FLOAT64, Codec, Meaning, Slots, State
from sketchy.optim.stack import Gradient, Stack

# Steps in an eigenbasis are short if gradients have few directions. On the first plateau of an autoencoder,
# the rule `Rows` gave 2 to 500 times the step's own length. Later, and on a character model, it gave 0.4 to 2
# times this length.
FLOOR = 0.5


@dataclass(frozen=True)
class Ungrafted:
    """No grafting: a step keeps its own length. It is limited if it is like Adam's."""

    steps: ClassVar[bool] = False
    by_columns: ClassVar[bool] = False
    slots: Slots = field(default_factory=dict)

    @classmethod
    def of(cls, weight: WeightSpec) -> Self:
        return cls()

    def update(self, stack: Stack, G: Gradient) -> Task[None]:
        yield from ()

    def length(self, stack: Stack, x: Tensor, ahead: Tensor) -> Task[None]:
        yield from ()

    def step(self, stack: Stack, x: Tensor, length: Tensor | None) -> Task[Tensor]:
        yield from ()
        return x

    def limit(self, stack: Stack) -> float | None:
        return _adams_limit(stack) if stack.plan.preconditioner.adams_length else None

    def rescale(
        self,
        stack: Stack,
        direction: Tensor,
        scale: Tensor,
        length: Tensor | None,
        energy: Tensor | None = None,
    ) -> Task[Tensor]:
        yield from ()
        return scale


@dataclass(frozen=True)
class Rule(ABC):
    """Base of the rules. A preconditioned step is ``graft_scale`` times as long as the rule's step."""

    steps: ClassVar[bool] = True
    by_columns: ClassVar[bool] = False
    slots: Slots = field(default_factory=dict)

    @classmethod
    def of(cls, weight: WeightSpec) -> Self:
        return cls()

    def update(self, stack: Stack, G: Gradient) -> Task[Tensor | None]:
        yield from ()
        return None

    @abstractmethod
    def step(self, stack: Stack, x: Tensor, length: Tensor | None) -> Task[Tensor]: ...

    @abstractmethod
    def length(self, stack: Stack, x: Tensor, ahead: Tensor) -> Task[Tensor]: ...

    def limit(self, stack: Stack) -> float | None:
        return _adams_limit(stack)

    def rescale(
        self,
        stack: Stack,
        direction: Tensor,
        scale: Tensor,
        length: Tensor | None,
        energy: Tensor | None = None,
    ) -> Task[Tensor]:
        assert length is not None
        times = stack.group["graft_scale"]
        return (yield from moments.ratio(length, direction, stack.spreads, times=times, energy=energy))


class Sgd(Rule):
    """The length of the momentum. Needs no state."""

    def limit(self, stack: Stack) -> float | None:
        return None

    def step(self, stack: Stack, x: Tensor, length: Tensor | None) -> Task[Tensor]:
        yield from ()
        return x

    def length(self, stack: Stack, x: Tensor, ahead: Tensor) -> Task[Tensor]:
        return ahead * (yield from norm(row_energy(as_matrix(x)), *stack.spreads))


class Rows(Rule):
    """Adam's length with a second moment for each row. Keeps m numbers."""

    @classmethod
    def of(cls, weight: WeightSpec) -> Self:
        rows = weight.layout.block[:1]
        return cls({"row_moment": weight.block_slot(Meaning.MOMENT, FLOAT64, rows, (0,))})

    def update(self, stack: Stack, G: Gradient) -> Task[None]:
        yield from ()
        old, new = weights(stack.group["betas"][1])
        stack["row_moment"] = torch.add(old * stack["row_moment"], G.rows, alpha=new)

    def step(self, stack: Stack, x: Tensor, length: Tensor | None) -> Task[Tensor]:
        return moments.step_by_rows(x, (yield from self._roots(stack)))

    def length(self, stack: Stack, x: Tensor, ahead: Tensor) -> Task[Tensor]:
        a = yield from self._roots(stack)
        return ahead * (yield from moments.length_by_rows(x, a, stack.spreads))

    def gradient_energy(self, state: State, options: Mapping[str, Any]) -> Tensor | None:
        # these moments contain gradients that the sketches don't
        if options["update_every"] > 1 or options.get("roots_every", 1) > 1:
            return None
        return state["row_moment"].sum(-1) / weights(options["betas"][1])[1]

    def _roots(self, stack: Stack) -> Task[Tensor]:
        filled = yield from stack.filled(stack.group["betas"][1])
        entries, eps = math.prod(stack.plan.layout.block), stack.group["eps"]
        return (yield from moments.row_roots(stack["row_moment"], filled, eps, entries, stack.spreads[0]))


class Own(Rows):
    """The step's own length, but at least half of the length that `rows` gives. Keeps m numbers."""

    def rescale(
        self,
        stack: Stack,
        direction: Tensor,
        scale: Tensor,
        length: Tensor | None,
        energy: Tensor | None = None,
    ) -> Task[Tensor]:
        assert length is not None
        options = {"times": stack.group["graft_scale"], "least": scale, "energy": energy}
        return (yield from moments.ratio(FLOOR * length, direction, stack.spreads, **options))


class Factored(Rows):
    """Adam's length with second moments for rows and columns. Keeps m + n numbers."""

    by_columns: ClassVar[bool] = True

    @classmethod
    def of(cls, weight: WeightSpec) -> Self:
        columns = math.prod(weight.layout.block[1:])
        follows = (1,) if len(weight.layout.block) == 2 else (None,)
        slot = weight.block_slot(Meaning.MOMENT, FLOAT64, (columns,), follows)
        return cls({**super().of(weight).slots, "column_moment": slot})

    def update(self, stack: Stack, G: Gradient) -> Task[None]:
        yield from super().update(stack, G)
        assert G.columns is not None
        old, new = weights(stack.group["betas"][1])
        stack["column_moment"] = torch.add(old * stack["column_moment"], G.columns, alpha=new)

    def step(self, stack: Stack, x: Tensor, length: Tensor | None) -> Task[Tensor]:
        a, b = yield from self._factors(stack)
        return (yield from moments.factored_step(x, a, b, stack.spreads))

    def length(self, stack: Stack, x: Tensor, ahead: Tensor) -> Task[Tensor]:
        a, b = yield from self._factors(stack)
        found = ahead * (yield from moments.factored_length(x, a, b, stack.spreads))
        return moments.clipped(found, math.prod(stack.plan.layout.block))

    def _factors(self, stack: Stack) -> Task[tuple[Tensor, Tensor]]:
        filled, eps = (yield from stack.filled(stack.group["betas"][1])), stack.group["eps"]
        rows, columns = stack["row_moment"], stack["column_moment"]
        return (yield from moments.factored_roots(rows, columns, filled, eps, stack.spreads))


class RmsProp(Rule):
    """Adam's length with a second moment for each entry. Keeps m n numbers."""

    @classmethod
    def of(cls, weight: WeightSpec) -> Self:
        block = weight.layout.block
        axes = tuple(range(len(block)))
        slot = weight.block_slot(Meaning.MOMENT, Codec(weight.work, weight.work), block, axes)
        return cls({"graft_root": slot})

    def update(self, stack: Stack, G: Gradient) -> Task[Tensor | None]:
        root = stack.stacked("graft_root")
        observe_root_(root, G.blocks, self._decay(stack), stack.good_blocks, over=self._over(G))
        yield from stack.put_back("graft_root", root)
        return None

    def step(self, stack: Stack, x: Tensor, length: Tensor | None) -> Task[Tensor]:
        root, eps = stack.stacked("graft_root"), stack.group["eps"]
        filled = yield from stack.filled(self._decay(stack))
        return (yield from divide_by_root(x, root, filled, eps, spreads=stack.spreads))

    def length(self, stack: Stack, x: Tensor, ahead: Tensor) -> Task[Tensor]:
        return ahead * (yield from self._length(stack, x, over=None))

    def _length(self, stack: Stack, x: Tensor, over: Tensor | None) -> Task[Tensor]:
        # stacked again each time: to keep the roots would need memory for a third stack
        root, eps = as_matrix(stack.stacked("graft_root")), stack.group["eps"]
        filled = yield from stack.filled(self._decay(stack))
        return (yield from length_over_root(as_matrix(x), root, filled, eps, over, stack.spreads))

    def _over(self, G: Gradient) -> Tensor | None:
        """The divisor of gradients before they are added; None: they are not divided."""
        return None

    def _decay(self, stack: Stack) -> float:
        return stack.group["betas"][1]


class Adagrad(RmsProp):
    """AdaGrad's length: like rmsprop, with sums of squares instead of averages. Keeps m n numbers."""

    def limit(self, stack: Stack) -> float | None:
        return None  # sums do not fade

    def _decay(self, stack: Stack) -> float:
        return 1.0


class _Normalized(RmsProp):
    """Divides gradients by their norm. The length is that of its step for the gradient, not the momentum."""

    def update(self, stack: Stack, G: Gradient) -> Task[Tensor]:
        yield from super().update(stack, G)
        return (yield from self._length(stack, G.blocks, over=G.norm))

    def step(self, stack: Stack, x: Tensor, length: Tensor | None) -> Task[Tensor]:
        assert length is not None
        x = over_length(x, (yield from norm(row_energy(as_matrix(x)), *stack.spreads)))
        step = yield from super().step(stack, x, length)
        return step.mul_(like((yield from moments.ratio(length, step, stack.spreads)), step))

    def _over(self, G: Gradient) -> Tensor | None:
        return G.norm


class RmsPropNormalized(_Normalized):
    """Like rmsprop, for gradients divided by their norm. Keeps m n numbers."""


class AdagradNormalized(_Normalized, Adagrad):
    """Like adagrad, for gradients divided by their norm. Keeps m n numbers."""


def _adams_limit(stack: Stack) -> float | None:
    return moments.longest(*stack.group["betas"], moving_average=stack.group["moving_average_momentum"])


RULES: dict[str | None, type[Graft]] = {
    None: Ungrafted,
    "sgd": Sgd,
    "adagrad": Adagrad,
    "rmsprop": RmsProp,
    "adagrad_normalized": AdagradNormalized,
    "rmsprop_normalized": RmsPropNormalized,
    "factored": Factored,
    "rows": Rows,
    "own": Own,
}

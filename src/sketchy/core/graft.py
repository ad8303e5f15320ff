"""Graft rules: another optimizer's step lends its length to a preconditioned direction (Sec. 5, App. C).

Each rule has accumulators, named tensors over the stack (S, ...); `observe` and `observe_entries_` fold a
gradient into them and `Graft` gives the rule's own step and its length. ``factored`` is Adam's step with the
second moment kept by rows and columns, m + n numbers: the length without the memory. ``rows`` keeps one for
each row. ``own`` leaves a direction its own length, unless that is below ``FLOOR`` times the one by rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from sketchy.core.axes import as_matrix
from sketchy.core.linalg import as_weights, frobenius, row_energy
from sketchy.core.moments import (
    correction,
    divide_by_root,
    factored_inverse_roots,
    inverse_root,
    length_over_root,
    like,
    observe_root_,
    over_length,
    weights,
)
from sketchy.core.panels import panels

OWN = "own"
# In eigenbases steps are short where gradients have few directions. On the first plateau of an autoencoder
# the length by rows was 2 to 500 times the own one; after that, and on a character model, 0.4 to 2 times.
FLOOR = 0.5
# Where one entry outshines its row and its column, moments by both are far too small for all others. Adam's
# own entries are at most (1 - β₁) / √(1 - β₂), 3.2 by default.
_LONGEST = 4.0
ROOT = "graft_root"  # the one accumulator as large as the weight
RULES = ("sgd", "adagrad", "rmsprop", "adagrad_normalized", "rmsprop_normalized", "factored", "rows", OWN)
_BY_ROWS = ("rows", OWN)

Accumulators = dict[str, Tensor]


def accumulators(rule: str | None, block: tuple[int, ...]) -> dict[str, tuple[tuple[int, ...], bool]]:
    """Name → (shape, whether it is float64) of what a rule keeps for one block."""
    if rule in (None, "sgd"):
        return {}
    if rule == "factored":
        rest = 1
        for size in block[1:]:
            rest *= size
        return {"row_moment": (block[:1], True), "column_moment": ((rest,), True)}
    if rule in _BY_ROWS:
        return {"row_moment": (block[:1], True)}
    return {ROOT: (block, False)}


def normalized(rule: str | None) -> bool:
    """Whether a rule sees gradients at length one."""
    return rule is not None and rule.endswith("_normalized")


def observe(state: Accumulators, energy: tuple[Tensor, Tensor | None], beta2: float) -> Accumulators:
    """Fold a gradient into moments of rows and columns, from its ``energy`` by rows and, if kept, columns."""
    old, new = weights(beta2)
    moments = zip(("row_moment", "column_moment"), energy, strict=True)
    return {name: old * state[name] + new * e for name, e in moments if name in state and e is not None}


def observe_entries_(
    rule: str, root: Tensor, G: Tensor, norm: Tensor, beta2: float, good: Tensor | None = None
) -> None:
    """Fold G (S, *block) of a known ``norm`` (S,) into a rule's root second moment, in place.

    Where ``good`` (S,) is false, G must be zero, and the root stays as it is to the bit.
    """
    observe_root_(root, G, _decay(rule, beta2), good, over=norm if normalized(rule) else None)


@dataclass(frozen=True)
class Graft:
    """A rule after ``steps`` (S,) gradients: its own step for a gradient or momentum x (S, *block)."""

    rule: str | None
    state: Mapping[str, Tensor]
    steps: Tensor
    beta2: float
    eps: float

    def step(self, x: Tensor) -> Tensor:
        if self.rule in (None, "sgd"):
            return x
        if self.rule in _BY_ROWS:
            return (as_matrix(x) * as_weights(self._row_factor(x), x)).reshape(x.shape)
        if self.rule == "factored":
            a, b = self._factors()
            y = as_matrix(x) * as_weights(a, x) * as_weights(b, x)
            length = frobenius(y)
            kept = torch.where(length > 0, self.clipped(length, x) / length, 0.0)
            return (y * like(kept, y)).reshape(x.shape)
        if normalized(self.rule):
            x = over_length(x, frobenius(as_matrix(x)))
        return divide_by_root(x, self.state[ROOT], self._filled, self.eps)

    def length(self, x: Tensor, norm: Tensor | None = None) -> Tensor:
        """Of its step for x, (S,), float64. ``norm``: that of x, where it is known."""
        X = as_matrix(x)
        if self.rule in (None, "sgd"):
            return frobenius(X)
        if self.rule in _BY_ROWS:
            return (row_energy(X).sqrt() * self._row_factor(x).squeeze(-1)).square().sum(-1).sqrt()
        if self.rule == "factored":
            a, b = self._factors()
            weight = as_weights(b, x)
            rows = torch.empty_like(a.squeeze(-1))
            for stack, piece in panels(X):
                rows[piece] = row_energy(X[piece] * weight[stack])
            return (rows.sqrt() * a.squeeze(-1)).square().sum(-1).sqrt()
        over = (frobenius(X) if norm is None else norm) if normalized(self.rule) else None
        return length_over_root(X, as_matrix(self.state[ROOT]), self._filled, self.eps, over)

    def clipped(self, length: Tensor, x: Tensor) -> Tensor:
        """The length (S,) of the rule's step for x, no longer than it may be."""
        return length.clamp(max=_LONGEST * (x.numel() / len(x)) ** 0.5) if self.rule == "factored" else length

    @property
    def _filled(self) -> Tensor:
        return correction(_decay(self.rule or "", self.beta2), self.steps)

    def _row_factor(self, x: Tensor) -> Tensor:
        """a (S, m, 1): the inverse roots of the rows' mean second moments."""
        mean = self.state["row_moment"] * (self.state["row_moment"].shape[-1] / (x.numel() / len(x)))
        a = inverse_root(mean, self.eps) * correction(self.beta2, self.steps).sqrt().unsqueeze(-1)
        return a.unsqueeze(-1)

    def _factors(self) -> tuple[Tensor, Tensor]:
        """a (S, m, 1) and b (S, 1, n) with a_i b_j the inverse root of the factored second moment."""
        a, b = factored_inverse_roots(self.state["row_moment"], self.state["column_moment"], self.eps)
        return a * correction(self.beta2, self.steps).sqrt().reshape(-1, 1, 1), b


def factor(rule: str, wanted: Tensor, direction: Tensor, own: Tensor) -> Tensor:
    """What a rule multiplies a direction (S, *block) by, which lacks a factor ``own`` (S,) to its own length.

    ``wanted`` (S,): the length of the rule's step.
    """
    lent = ratio(wanted, direction)
    return torch.maximum(own, FLOOR * lent) if rule == OWN else lent


def ratio(wanted: Tensor, direction: Tensor) -> Tensor:
    """What to multiply a direction (S, *block) by, for a ``wanted`` length (S,) of each; zero stays zero."""
    length = frobenius(as_matrix(direction))
    return torch.where(length > 0, wanted / length, 0.0)


def _decay(rule: str, beta2: float) -> float:
    return 1.0 if rule.startswith("adagrad") else beta2

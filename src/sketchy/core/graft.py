"""Graft rules: another optimizer's step lends its length to a preconditioned direction (Sec. 5, App. C).

Each rule has accumulators, named tensors over the stack (S, ...); ``observe`` folds a gradient into them
and `Graft` gives the rule's own step and its length. ``factored`` is Adam's step with the second moment kept
by rows and columns, m + n numbers: the length without the memory.
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
    like,
    observe_root_,
    weights,
)
from sketchy.core.panels import panels

OWN = "own"  # no rule: a direction keeps its own length, and is only scaled
RULES = ("sgd", "adagrad", "rmsprop", "adagrad_normalized", "rmsprop_normalized", "factored", "rows")

Accumulators = dict[str, Tensor]


def accumulators(rule: str | None, block: tuple[int, ...]) -> dict[str, tuple[tuple[int, ...], bool]]:
    """Name → (shape, whether it is float64) of what a rule keeps for one block."""
    if rule in (None, OWN, "sgd"):
        return {}
    if rule == "factored":
        rest = 1
        for size in block[1:]:
            rest *= size
        return {"row_moment": (block[:1], True), "column_moment": ((rest,), True)}
    if rule == "rows":
        return {"row_moment": (block[:1], True)}
    return {"graft_root": (block, False)}


def observe(
    rule: str | None, state: Accumulators, G: Tensor, energy: tuple[Tensor, Tensor | None], beta2: float
) -> Accumulators:
    """Fold the gradient G (S, *block) into a rule's accumulators.

    ``energy``: of the rows of G as a matrix and, for the factored rule, of its columns.
    """
    if rule in ("factored", "rows"):
        old, new = weights(beta2)
        moments = zip(("row_moment", "column_moment"), energy, strict=True)
        return {name: old * state[name] + new * e for name, e in moments if e is not None}
    if not state:
        return state
    assert rule is not None
    if rule.endswith("_normalized"):
        G = _normalized(G)
    return {"graft_root": observe_root_(state["graft_root"].clone(), G, _decay(rule, beta2))}


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
        if self.rule == "rows":
            return (as_matrix(x) * as_weights(self._row_factor(x), x)).reshape(x.shape)
        if self.rule == "factored":
            a, b = self._factors()
            return (as_matrix(x) * as_weights(a, x) * as_weights(b, x)).reshape(x.shape)
        if self.normalized:
            x = _normalized(x)
        return divide_by_root(x, self.state["graft_root"], correction(self._decay, self.steps), self.eps)

    def length(self, x: Tensor) -> Tensor:
        """(S,), float64."""
        if self.rule == "rows":
            return (row_energy(as_matrix(x)).sqrt() * self._row_factor(x).squeeze(-1)).square().sum(-1).sqrt()
        if self.rule == "factored":
            a, b = self._factors()
            X, weight = as_matrix(x), as_weights(b, x)
            rows = torch.empty_like(a.squeeze(-1))
            for stack, piece in panels(X):
                rows[piece] = row_energy(X[piece] * weight[stack])
            return (rows.sqrt() * a.squeeze(-1)).square().sum(-1).sqrt()
        return frobenius(as_matrix(self.step(x)))

    @property
    def lends(self) -> bool:
        return self.rule not in (None, OWN)

    @property
    def normalized(self) -> bool:
        return self.rule is not None and self.rule.endswith("_normalized")

    @property
    def _decay(self) -> float:
        return _decay(self.rule or "", self.beta2)

    def _row_factor(self, x: Tensor) -> Tensor:
        """a (S, m, 1): the inverse roots of the rows' mean second moments."""
        mean = self.state["row_moment"] * (self.state["row_moment"].shape[-1] / (x.numel() / len(x)))
        a = inverse_root(mean, self.eps) * correction(self.beta2, self.steps).sqrt().unsqueeze(-1)
        return a.unsqueeze(-1)

    def _factors(self) -> tuple[Tensor, Tensor]:
        """a (S, m, 1) and b (S, 1, n) with a_i b_j the inverse root of the factored second moment."""
        a, b = factored_inverse_roots(self.state["row_moment"], self.state["column_moment"], self.eps)
        return a * correction(self.beta2, self.steps).sqrt().reshape(-1, 1, 1), b


def ratio(wanted: Tensor, direction: Tensor) -> Tensor:
    """What to multiply a direction (S, *block) by, for a ``wanted`` length (S,) of each; zero stays zero."""
    length = frobenius(as_matrix(direction))
    return torch.where(length > 0, wanted / length, 0.0)


def _decay(rule: str, beta2: float) -> float:
    return 1.0 if rule.startswith("adagrad") else beta2


def _normalized(x: Tensor) -> Tensor:
    length = frobenius(as_matrix(x))
    return x / like(torch.where(length > 0, length, 1.0), x)

"""Graft rules: another optimizer's step lends its length to a preconditioned direction (Sec. 5, App. C).

Each rule has accumulators, named tensors over the stack (S, ...); ``observe`` folds a gradient into them
and ``step`` gives the rule's own step. ``factored`` is Adam's step with the second moment kept by rows and
columns, m + n numbers: the length without the memory.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from sketchy.core.linalg import as_weights, frobenius
from sketchy.core.moments import (
    correction,
    divide_by_root,
    energy,
    factored_inverse_roots,
    like,
    observe_root_,
    weights,
)

RULES = ("sgd", "adagrad", "rmsprop", "adagrad_normalized", "rmsprop_normalized", "factored")

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
    return {"graft_root": (block, False)}


def observe(rule: str | None, state: Accumulators, G: Tensor, largest: Tensor, beta2: float) -> Accumulators:
    """Fold the gradient G (S, *block) into a rule's accumulators; ``largest`` (S,) bounds its entries."""
    if rule == "factored":
        old, new = weights(beta2)
        rows, columns = energy(_matrix(G), largest)
        return {
            "row_moment": old * state["row_moment"] + new * rows,
            "column_moment": old * state["column_moment"] + new * columns,
        }
    if not state:
        return state
    assert rule is not None
    if rule.endswith("_normalized"):
        G = _normalized(G)
    return {"graft_root": observe_root_(state["graft_root"].clone(), G, _decay(rule, beta2))}


def step(
    rule: str | None, state: Mapping[str, Tensor], x: Tensor, steps: Tensor, *, beta2: float, eps: float
) -> Tensor:
    """The rule's own step for the gradient or momentum x (S, *block) after ``steps`` (S,) gradients."""
    if rule in (None, "sgd"):
        return x
    if rule == "factored":
        a, b = factored_inverse_roots(state["row_moment"], state["column_moment"], eps)
        a = a * correction(beta2, steps).sqrt().reshape(-1, 1, 1)
        return (_matrix(x) * as_weights(a, x) * as_weights(b, x)).reshape(x.shape)
    assert rule is not None
    if rule.endswith("_normalized"):
        x = _normalized(x)
    return divide_by_root(x, state["graft_root"], correction(_decay(rule, beta2), steps), eps)


def rescale(direction: Tensor, to: Tensor) -> Tensor:
    """The direction with the length of another step, block by block; zero stays zero."""
    length, wanted = (frobenius(_matrix(x)) for x in (direction, to))
    ratio = torch.where(length > 0, wanted / torch.where(length > 0, length, 1.0), 0.0)
    return direction * like(ratio, direction)


def _decay(rule: str, beta2: float) -> float:
    return 1.0 if rule.startswith("adagrad") else beta2


def _matrix(x: Tensor) -> Tensor:
    return x.reshape(x.shape[0], x.shape[1], -1)


def _normalized(x: Tensor) -> Tensor:
    length = frobenius(_matrix(x))
    return x / like(torch.where(length > 0, length, 1.0), x)

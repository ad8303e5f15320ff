"""Plain formulas can replace what is tuned to a processor. Numbers change by rounding only."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from checks import assert_close
from optim.optimizers import CASES, F64, Case, gradient
from sketchy.core import directions, extremes, linalg, moments, preconditioner
from sketchy.core.tuned import panels, products
from sketchy.optim import descend

PLAIN = {
    "product": lambda A, X: A @ X,
    "by_rows": lambda X: X,
    "add_product_": lambda Y, A, X: Y + A @ X,
    "add_outer_": lambda A, X, Y: A.add_(X @ Y.mT),
    "solve_transposed_": lambda Y, L: torch.linalg.solve_triangular(L, Y.mT, upper=False).mT,
    "lower_gram": lambda K: K.mT @ K,
    "lower_gram_of_triangle": lambda L: L.mT @ L,
}
# sides and ranks that take every way: columns a page apart, padded Gram matrices, narrow and wide factors
SHAPES, RANK = ((600, 512), (512, 300)), 128


def whole(x: Tensor) -> Iterator[panels.Panel]:
    yield slice(None), (slice(None),)


def train(case: Case) -> list[Tensor]:
    params = [torch.nn.Parameter(torch.zeros(shape, dtype=F64)) for shape in SHAPES]
    options = {} if case.cls.__name__ == "Shampoo" else {"rank": RANK}
    optimizer = case.cls(params, **{**options, "graft": "factored"})
    for step in range(3):
        for i, p in enumerate(params):
            p.grad = gradient(p, i, step)
        optimizer.step()
    return [p.detach() for p in params]


def test_every_tuned_product_has_a_plain_form() -> None:
    own = {n for n, value in vars(products).items() if getattr(value, "__module__", "") == products.__name__}
    assert {name for name in own if not name.startswith("_")} == PLAIN.keys()


@pytest.mark.parametrize("case", [c for c in CASES if c.name in ("SketchyShampoo", "SketchySOAP")], ids=str)
def test_plain_formulas_give_the_same_steps(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    tuned = train(case)
    replaced = set()
    for module in (directions, extremes, linalg, moments, preconditioner):
        for name, plain in {**PLAIN, "panels": whole}.items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, plain)
                replaced.add(name)
    assert replaced == PLAIN.keys() | {"panels"}
    monkeypatch.setattr(descend, "descend_in_one_pass_", lambda *_: False)  # the plain operations follow
    for found, expected in zip(train(case), tuned, strict=True):
        assert_close(found, expected, scale=expected.abs().max(), tolerance=1e-9)

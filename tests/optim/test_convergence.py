"""Every optimizer minimises a parabola, Rosenbrock's valley, a factorisation, a badly scaled regression."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.nn.functional import cross_entropy

from cases import F64
from sketchy import Shampoo, SketchyAdagrad, SketchyShampoo, SketchySOAP

Start = tuple[list[Parameter], Callable[[], Tensor]]  # fresh weights, and the loss at them


def parabola() -> Start:
    """A matrix, whose curvatures span three orders of magnitude, a vector and a scalar."""
    generator = torch.Generator().manual_seed(0)
    target = torch.randn(8, 6, generator=generator)
    scale = torch.outer(torch.logspace(0, -0.75, 8), torch.logspace(0, -0.75, 6))
    W, b, c = (Parameter(torch.zeros(shape)) for shape in ((8, 6), (6,), ()))
    return [W, b, c], lambda: (scale * (W - target)).square().sum() + (b - 1).square().sum() + (c + 2) ** 2


def valley(x: Tensor, y: Tensor) -> Tensor:
    return (1 - x) ** 2 + 100 * (y - x**2) ** 2


def rosenbrock_vector() -> Start:
    p = Parameter(torch.tensor([-1.2, 1.0]))
    return [p], lambda: valley(*p)


def rosenbrock_matrix() -> Start:
    """Two points in the valley, one in each row."""
    W = Parameter(torch.tensor([[-1.2, 1.0], [0.0, 0.5]]))
    return [W], lambda: valley(W[:, 0], W[:, 1]).sum()


def factorisation() -> Start:
    """A B = T with T of rank 4: many minima, all zero, and a saddle between them."""
    generator = torch.Generator().manual_seed(0)
    T = torch.randn(12, 4, generator=generator) @ torch.randn(4, 10, generator=generator)
    A, B = (Parameter(torch.randn(shape, generator=generator)) for shape in ((12, 4), (4, 10)))
    return [A, B], lambda: (A @ B - T).square().mean()


SCALES = torch.logspace(2, -2, 30)  # of the features
RIDGE = 1e-3  # in well-scaled coordinates: makes the minimum finite


@cache
def tumours() -> tuple[Tensor, Tensor]:
    """scikit-learn's breast cancer set, standardised."""
    datasets = pytest.importorskip("sklearn.datasets")
    features, labels = datasets.load_breast_cancer(return_X_y=True)
    X = torch.tensor(features)
    return (X - X.mean(0)) / X.std(0), torch.tensor(labels)


@cache
def least_loss() -> float:
    """The minimum, found where features are well scaled."""
    X, labels = tumours()
    W, b = Parameter(torch.zeros(2, 30, dtype=F64)), Parameter(torch.zeros(2, dtype=F64))
    solver = torch.optim.LBFGS([W, b], max_iter=1000, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        solver.zero_grad()
        loss = cross_entropy(X @ W.T + b, labels) + RIDGE * W.square().sum()
        loss.backward()
        return loss

    solver.step(closure)
    return closure().item()


def regression() -> Start:
    """Loss minus its minimum, for a logistic regression whose features span four orders of magnitude."""
    X, labels = tumours()
    features, lowest = X.float() * SCALES, least_loss()
    W, b = Parameter(torch.zeros(2, 30)), Parameter(torch.zeros(2))
    return [
        W,
        b,
    ], lambda: cross_entropy(features @ W.T + b, labels) + RIDGE * (SCALES * W).square().sum() - lowest


@dataclass(frozen=True)
class Problem:
    start: Callable[[], Start]
    steps: int
    level: float  # to be reached
    options: dict[str, Any]


SMALL = {"rank": 4, "betas": (0.9, 0.99)}
PROBLEMS = {
    "parabola": Problem(parabola, 300, 1e-4, SMALL),  # from 11
    "rosenbrock_vector": Problem(rosenbrock_vector, 1000, 1e-3, SMALL),  # from 24
    "rosenbrock_matrix": Problem(rosenbrock_matrix, 1000, 1e-3, SMALL),  # from 50
    "factorisation": Problem(factorisation, 300, 1e-6, SMALL),  # from 9
    "regression": Problem(regression, 1000, 0.025, {"rank": 16}),  # from 0.63
}
BEST_OF_SGD = 0.05  # what heavy-ball SGD does not get below in the regression, at the best of its rates
RATES = {
    # SketchyShampoo, SketchySOAP, SketchyAdagrad, Shampoo
    "parabola": (0.1, 0.1, 1.0, 0.1),
    "rosenbrock_vector": (0.1, 0.1, 1.0, 0.1),
    "rosenbrock_matrix": (0.1, 0.03, 1.0, 0.1),
    "factorisation": (0.1, 0.3, 1.0, 0.1),
    "regression": (0.1, 0.1, 3.0, 0.1),
}
OPTIMIZERS = (SketchyShampoo, SketchySOAP, SketchyAdagrad, Shampoo)


def minimise(kind: type[torch.optim.Optimizer], problem: Problem, lr: float, **options: Any) -> float:
    """The loss at the end, the rate going to zero along a cosine."""
    params, loss = problem.start()
    optimizer = kind(params, lr=lr, weight_decay=0.0, **options)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, problem.steps)
    for _ in range(problem.steps):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
        schedule.step()
    return loss().item()


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_every_optimizer_reaches_the_level(name, kind):
    problem, lr = PROBLEMS[name], RATES[name][OPTIMIZERS.index(kind)]
    options = {k: v for k, v in problem.options.items() if not (kind is Shampoo and k == "rank")}
    if name == "regression" and kind in (SketchyShampoo, Shampoo):
        options["graft"] = "factored"  # features of unlike scales: lengths by rows end at 0.047
    reached = minimise(kind, problem, lr, **options)
    assert reached <= problem.level, f"{reached:.2e}, not {problem.level:.2e}"


@pytest.mark.parametrize("kind", [SketchyShampoo, Shampoo])
def test_a_preconditioned_vector_finds_the_end_of_the_valley(kind):
    """SketchyShampoo's and Shampoo's other path for vectors."""
    problem = PROBLEMS["rosenbrock_vector"]
    assert minimise(kind, problem, lr=0.15, betas=(0.9, 0.99), precondition_1d=True) <= problem.level


def test_the_regression_is_badly_scaled_for_gradient_descent():
    rates = (1e-4, 1e-3, 1e-2, 1e-1)
    found = [minimise(torch.optim.SGD, PROBLEMS["regression"], lr, momentum=0.9) for lr in rates]
    assert min(found) > BEST_OF_SGD

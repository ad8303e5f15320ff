"""Adam's path compared with torch's Adam, and the lengths of grafts with torch's optimizers."""

from typing import Any

import pytest
import torch
from torch import Tensor

from checks import assert_close
from optim.trajectories import gradients, start, train_one
from sketchy import SketchyShampoo, SketchySOAP, reference

LR = 0.1
EXACT = 1e-10
DEFAULT_EPS = 1e-4  # eps = 1e-7 of the largest root, against entries 100 times smaller, over 50 steps of 0.1
SHAPES = ((6,), (), (1, 5), (4, 3), (3, 2, 2))


@pytest.mark.parametrize(("eps", "tolerance"), [(0.0, EXACT), (1e-7, DEFAULT_EPS)])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_adams_path_is_adamw(shape, eps, tolerance):
    X, G = start(shape), gradients(shape)
    shared: dict[str, Any] = {"lr": LR, "betas": (0.9, 0.99), "weight_decay": 0.1}
    found = train_one(SketchyShampoo, X, G, path="adam", nesterov=False, eps=eps, **shared)
    assert_close(found, train_one(torch.optim.AdamW, X, G, eps=0.0, **shared), scale=1, tolerance=tolerance)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_with_nesterov_adams_path_looks_one_step_ahead(shape):
    """NAdam without its schedule: β₁ m / (1 - β₁ᵗ) + (1 - β₁) g over the root of the second moment."""
    X, G, beta1, beta2 = start(shape), gradients(shape), 0.9, 0.99
    m, v, x = torch.zeros_like(X), torch.zeros_like(X), X
    expected = []
    for t, g in enumerate(G, 1):
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g**2
        ahead = beta1 * m / (1 - beta1**t) + (1 - beta1) * g
        x = (1 - LR * 0.1) * x - LR * ahead / (v / (1 - beta2**t)) ** 0.5
        expected.append(x)
    options: dict[str, Any] = {"lr": LR, "betas": (beta1, beta2), "eps": 0.0, "weight_decay": 0.1}
    found = train_one(SketchyShampoo, X, G, path="adam", **options)
    assert_close(found, torch.stack(expected), scale=1, tolerance=EXACT)


def test_with_beta2_of_one_and_no_momentum_adams_path_is_adagrad():
    X, G = start((4, 3)), gradients((4, 3))
    options: dict[str, Any] = {"betas": (0.0, 1.0), "eps": 0.0, "weight_decay": 0.0}
    found = train_one(SketchyShampoo, X, G, lr=LR, path="adam", **options)
    assert_close(found, train_one(torch.optim.Adagrad, X, G, lr=LR, eps=0.0), scale=1, tolerance=EXACT)


# -- grafts -------------------------------------------------------------------------------------------


def factored_adam(X: Tensor, G: Tensor, beta2: float) -> Tensor:
    rows, columns, history = 0.0, 0.0, []
    for t, g in enumerate(G, 1):
        rows = beta2 * rows + (1 - beta2) * g.square().sum(1)
        columns = beta2 * columns + (1 - beta2) * g.square().sum(0)
        X = X - LR * g / (torch.outer(rows, columns) / rows.sum() / (1 - beta2**t)) ** 0.5
        history.append(X)
    return torch.stack(history)


def adam_by_rows(X: Tensor, G: Tensor, beta2: float) -> Tensor:
    moment, history = 0.0, []
    for t, g in enumerate(G, 1):
        moment = beta2 * moment + (1 - beta2) * g.square().mean(1, keepdim=True)
        X = X - LR * g / (moment / (1 - beta2**t)) ** 0.5
        history.append(X)
    return torch.stack(history)


def lender(rule: str, X: Tensor, G: Tensor, beta2: float) -> Tensor:
    """The weights with the rule alone, by torch's optimizer if there is one."""
    if rule.endswith("_normalized"):
        G = G / G.flatten(1).norm(dim=1).reshape(-1, 1, 1)
    match rule.removesuffix("_normalized"):
        case "sgd":
            return train_one(torch.optim.SGD, X, G, lr=LR)
        case "adagrad":
            return train_one(torch.optim.Adagrad, X, G, lr=LR, eps=0.0)
        case "rmsprop":
            return train_one(torch.optim.Adam, X, G, lr=LR, betas=(0.0, beta2), eps=0.0)
        case "factored":
            return factored_adam(X, G, beta2)
        case "rows" | "own":
            return adam_by_rows(X, G, beta2)
    raise KeyError(rule)


def steps(X: Tensor, history: Tensor) -> Tensor:
    return torch.cat([X[None], history]).diff(dim=0)


RULES = ("sgd", "adagrad", "rmsprop", "adagrad_normalized", "rmsprop_normalized", "factored", "rows")
ALG_3: dict[str, Any] = {
    "exponent": None,
    "lr": LR,
    "rank": 3,
    "eps": 0.0,
    "weight_decay": 0.0,
    "solver": "exact",
}


@pytest.mark.parametrize("rule", RULES)
def test_a_grafted_step_has_the_direction_of_alg_3_and_a_multiple_of_the_rules_length(rule):
    beta2, X, G = 0.95, start((6, 4)), gradients((6, 4))
    player, directions = reference.SShampoo.start(X, rank=3), []
    for g in G:
        before, player = player, player.step(g, LR, beta2=beta2)
        directions.append(player.X - before.X)
    lengths = 1.5 * steps(X, lender(rule, X, G, beta2)).flatten(1).norm(dim=1)
    expected = X + torch.stack(
        [length * d / d.norm() for length, d in zip(lengths, directions, strict=True)]
    ).cumsum(0)
    found = train_one(SketchyShampoo, X, G, betas=(0.0, beta2), graft=rule, graft_scale=1.5, **ALG_3)
    assert_close(found, expected, scale=1, tolerance=EXACT)


def test_by_its_own_length_a_step_is_the_longer_of_itself_and_half_of_that_by_rows():
    """Without momentum, directions depend on gradients only, so the three runs differ only in step length."""
    X, G = start((6, 4)), gradients((6, 4))
    G[:10] = G[:10, :, :1] * G[0, 0]  # of rank one, with few directions
    options: dict[str, Any] = {"rank": 3, "betas": (0.0, 0.95), "eps": 0.0, "weight_decay": 0.0, "lr": LR}
    plain = steps(X, train_one(SketchySOAP, X, G, graft=None, **options))
    by_rows = steps(X, train_one(SketchySOAP, X, G, graft="rows", graft_scale=0.5, **options))
    length, floor = (s.flatten(1).norm(dim=1) for s in (plain, by_rows))
    assert (length < floor).any() and (length > floor).any()  # or this test would say nothing
    expected = torch.where((length < floor).reshape(-1, 1, 1), by_rows, plain)
    found = train_one(SketchySOAP, X, G, graft="own", graft_scale=2.5, **options)
    assert_close(found, X + 2.5 * expected.cumsum(0), scale=1, tolerance=EXACT)


@pytest.mark.parametrize("first", [2, 20])
@pytest.mark.parametrize("rule", [*RULES, "own"])
def test_before_the_start_step_the_rule_itself_steps(rule, first):
    beta2, X, G = 0.95, start((6, 4)), gradients((6, 4))
    options = ALG_3 | {"betas": (0.0, beta2), "graft": rule}
    alone = lender(rule, X, G, beta2)
    late = train_one(SketchyShampoo, X, G, start_step=first, **options)
    assert_close(late[: first - 1], alone[: first - 1], scale=1, tolerance=EXACT)
    # statistics were gathered all along: from then on every step is that of a run that never waited
    plain = steps(X, train_one(SketchyShampoo, X, G, **options))
    assert_close(steps(X, late)[first - 1 :], plain[first - 1 :], scale=1, tolerance=EXACT)


@pytest.mark.parametrize("first", [2, 20])
def test_adams_path_does_not_wait_for_the_start_step(first):
    X, G = start((6, 4)), gradients((6, 4))
    usual, late = (train_one(SketchyShampoo, X, G, path="adam", lr=LR, start_step=s) for s in (1, first))
    assert torch.equal(late, usual)


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.9, 0.0)])  # the steps with the second ones are limited
@pytest.mark.parametrize("rule", ["rmsprop_normalized", "rows", None])
def test_weights_of_one_stack_may_start_at_different_steps(rule, betas):
    G = gradients((6, 4))[:8] * torch.logspace(0, 0 if betas[1] else -14, 8).reshape(-1, 1, 1)

    def train(late: bool, together: bool) -> list[torch.Tensor]:
        """The second weight misses two gradients."""
        params = [torch.nn.Parameter(start((6, 4))) for _ in range(2)]
        optimizers = [
            SketchyShampoo(some, lr=LR, rank=3, start_step=5 if late else 1, graft=rule, betas=betas)
            for some in ([params] if together else [[p] for p in params])
        ]
        for step, g in enumerate(G):
            for i, p in enumerate(params):
                p.grad = torch.full_like(g, torch.nan) if i and step < 2 else g.clone()
            for optimizer in optimizers:
                optimizer.step()
        return [p.detach() for p in params]

    together, apart, early = train(True, True), train(True, False), train(False, True)
    for i in range(2):
        scale = apart[i].abs().max().clamp(min=1)  # without a graft, nothing limits steps
        assert_close(together[i], apart[i], scale=scale, tolerance=EXACT)
        assert (together[i] - early[i]).abs().max() > 1e-6


@pytest.mark.parametrize("moving_average", [True, False])
@pytest.mark.parametrize("nesterov", [True, False])
def test_momentum_is_taken_of_the_gradient_and_preconditioned(moving_average, nesterov):
    """The sketches are of gradients; L̃^(-1/4) M R̃^(-1/4) is applied to the momentum M."""
    beta1, beta2, X, G = 0.9, 0.95, start((6, 4)), gradients((6, 4))
    left, right = (reference.DenseSketch.empty(d, 3) for d in (6, 4))
    M, x, expected = torch.zeros_like(X), X, []
    for t, g in enumerate(G, 1):
        left, right = left.update(g @ g.T, beta2), right.update(g.T @ g, beta2)
        M = beta1 * M + ((1 - beta1) if moving_average else 1) * g
        seen, weight = (M / (1 - beta1**t), 1 - beta1) if moving_average else (M, 1)
        ahead = beta1 * seen + weight * g if nesterov else seen
        L, R = (reference.pseudo_power(s.compensated(), -1 / 4) for s in (left, right))
        x = x - LR * L @ ahead @ R
        expected.append(x)
    options = {"nesterov": nesterov, "moving_average_momentum": moving_average, "graft": None}
    found = train_one(SketchyShampoo, X, G, betas=(beta1, beta2), **ALG_3, **options)
    assert_close(found, torch.stack(expected), scale=1, tolerance=EXACT)

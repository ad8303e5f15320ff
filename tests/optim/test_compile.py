"""A step inside compiled code equals the eager step bit for bit, from the first one on."""

import os
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from optim.optimizers import CASES, CLASSES, Case, assert_same, gradient, snapshot, weights

# slow to compile, and the compiler keeps tensors alive that other tests would count
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),  # the compiler has its own warnings
    pytest.mark.skipif(os.environ.get("SKETCHY_DEVICE") == "standin", reason="torch can't compile for it"),
]

STEPS, BAD = 5, 2  # the first weight's gradient has a NaN at the bad step


def follow(case: Case, compiled: bool) -> list[dict[str, Tensor]]:
    """Weights and state after each step, for many shapes with different numbers of axes; two are equal."""
    params = weights()
    optimizer = case.make(params, lr=0.01)
    step = torch.compile(optimizer.step) if compiled else optimizer.step
    result = []
    for t in range(STEPS):
        for i, p in enumerate(params):
            p.grad = gradient(p, i, t)
        if t == BAD:
            params[0].grad[0, 0] = torch.nan
        step()
        result.append(snapshot(optimizer))
    return result


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_compiled_step_is_the_eager_one_bit_for_bit(case: Case) -> None:
    torch._dynamo.reset()
    now, then = follow(case, compiled=True), follow(case, compiled=False)
    for t in range(STEPS):
        assert_same(now[t], then[t])
        assert now[t]["0.0.skipped"] == (t >= BAD)
    assert torch.equal(now[BAD]["0.0"], now[BAD - 1]["0.0"])
    assert not torch.equal(now[BAD]["0.1"], now[BAD - 1]["0.1"])


@pytest.mark.parametrize("case", CLASSES, ids=str)
def test_a_compiled_training_step_may_hold_the_optimizers(case: Case) -> None:
    torch._dynamo.reset()
    inputs = torch.randn(STEPS, 8, 6, generator=torch.Generator().manual_seed(0))

    def train(wrap: Callable[[Callable[[Tensor], None]], Callable[[Tensor], None]]) -> dict[str, Tensor]:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
        optimizer = case.make(net.parameters(), lr=0.01)

        def step(x: Tensor) -> None:
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()

        run = wrap(step)
        for x in inputs:
            run(x)
        return snapshot(optimizer)

    # the model's graph, too, has the operations of the eager one
    assert_same(train(lambda step: torch.compile(step, backend="eager")), train(lambda step: step))


@pytest.mark.parametrize("case", CLASSES, ids=str)
def test_closures_are_called_once_and_their_loss_comes_back(case: Case) -> None:
    torch._dynamo.reset()
    p = nn.Parameter(torch.ones(4, 3))
    optimizer = case.make([p], lr=0.01)
    losses = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = p.square().sum()
        loss.backward()
        losses.append(float(loss.detach()))
        return loss

    step = torch.compile(optimizer.step, backend="eager")
    assert [float(step(closure).detach()) for _ in range(3)] == losses
    assert losses[0] == 12 and losses[2] < losses[1] < losses[0]

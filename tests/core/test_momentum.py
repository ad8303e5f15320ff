"""Momentum compared with its definition: averages and sums, with and without Nesterov's step."""

from typing import Any

import pytest
import torch
from torch import Tensor

from cases import F32, F64
from checks import assert_close
from sketchy.core import momentum
from sketchy.core.moments import like
from sketchy.core.tasks import Task, run

EXACT = 1e-13
BFLOAT16 = 2.0**-8  # half a unit of the last place, relative


def averages(G: torch.Tensor, beta1: float, moving_average: bool) -> torch.Tensor:
    """M_T from its definition: Σ β₁^(T-t) G_t, times 1 - β₁ for an average."""
    powers = beta1 ** torch.arange(len(G) - 1, -1, -1, dtype=F64)
    return torch.einsum("t,t...->...", powers, G) * ((1 - beta1) if moving_average else 1)


def looked(*given: Any, **options: Any) -> Tensor:
    x, factor = run(momentum.advance_(*given, **options))
    return x * like(factor, x)


@pytest.mark.parametrize("moving_average", [True, False])
@pytest.mark.parametrize("beta1", [0.5, 0.9])
def test_momentum_is_the_decayed_sum(beta1, moving_average, rng):
    G = torch.randn(9, 2, 3, 4, generator=rng, dtype=F64)
    M = torch.zeros_like(G[0])
    for g in G:
        run(momentum.advance_(M, g, beta1, torch.ones(2), moving_average=moving_average, nesterov=False))
    assert_close(M, averages(G, beta1, moving_average), scale=1, tolerance=EXACT)


@pytest.mark.parametrize("nesterov", [True, False])
def test_an_average_is_corrected_for_its_start_and_looks_ahead_by_one_step(nesterov, rng):
    beta1, G = 0.8, torch.randn(5, 2, 3, generator=rng, dtype=F64)
    M, step = averages(G[:-1], beta1, True), torch.tensor([5.0, 5.0])
    seen = averages(G, beta1, True) / (1 - beta1**5)
    expected = beta1 * seen + (1 - beta1) * G[-1] if nesterov else seen
    found = looked(M, G[-1], beta1, step, moving_average=True, nesterov=nesterov)
    assert_close(found, expected, scale=1, tolerance=EXACT)


@pytest.mark.parametrize("nesterov", [True, False])
def test_a_sum_is_heavy_ball_and_looks_ahead_as_torch_sgd_does(nesterov, rng):
    G = torch.randn(6, 3, generator=rng, dtype=F64)
    p = torch.nn.Parameter(torch.zeros(3, dtype=F64))
    sgd = torch.optim.SGD([p], lr=1.0, momentum=0.7, nesterov=nesterov)
    x, M, step = torch.zeros(1, 3, dtype=F64), torch.zeros(1, 3, dtype=F64), torch.zeros(1)
    for g in G:
        p.grad = g.clone()
        sgd.step()
        step = step + 1
        x -= looked(M, g.unsqueeze(0), 0.7, step, moving_average=False, nesterov=nesterov)
        assert_close(x[0], p.detach(), scale=1, tolerance=EXACT)


@pytest.mark.parametrize("nesterov", [True, False])
def test_momentum_of_a_constant_gradient_is_that_gradient_from_the_first_step(nesterov):
    G, M = torch.full((1, 4), 2.5, dtype=F64), torch.zeros(1, 4, dtype=F64)
    for t in range(1, 6):
        step = torch.tensor([float(t)])
        ahead = looked(M, G, 0.9, step, moving_average=True, nesterov=nesterov)
        assert_close(ahead, G, scale=1, tolerance=EXACT)


def test_each_parameter_of_a_stack_has_its_own_age(rng):
    M = torch.randn(2, 3, generator=rng, dtype=F64)
    ages = torch.tensor([1.0, 10.0])
    found = looked(M.clone(), M, 0.9, ages, moving_average=True, nesterov=False)
    for i, age in enumerate((1, 10)):
        assert_close(found[i], M[i] / (1 - 0.9**age), scale=10, tolerance=EXACT)


def test_bfloat16_storage_rounds_once_a_step_and_the_step_itself_is_not_rounded(rng):
    M, G = torch.randn(1, 50, generator=rng).bfloat16(), torch.randn(1, 50, generator=rng)
    exact = 0.9 * M.double() + 0.1 * G.double()

    def keep(new: Tensor) -> Task[None]:
        yield from ()
        M.copy_(new)

    options = {"moving_average": True, "nesterov": True, "keep": keep}
    returned = looked(M.float(), G, 0.9, torch.ones(1), **options)
    assert returned.dtype == F32 and M.dtype == torch.bfloat16
    assert_close(returned, 0.9 * exact / (1 - 0.9) + 0.1 * G, scale=1, tolerance=1e-5)
    assert ((M.double() - exact).abs() <= BFLOAT16 * exact.abs() + 1e-7).all()


@pytest.mark.parametrize("moving_average", [True, False])
def test_a_momentum_whose_gradient_is_not_good_stays_to_the_bit(moving_average, rng):
    M, G = torch.randn(2, 2, 3, generator=rng, dtype=F64)
    G[1] = 0.0
    kept, good, step = M.clone(), torch.tensor([True, False]), torch.tensor([5.0, 4.0])
    run(momentum.advance_(M, G, 0.9, step, moving_average=moving_average, nesterov=True, good=good))
    expected = 0.9 * kept[0] + (0.1 if moving_average else 1.0) * G[0]
    assert_close(M[0], expected, scale=1, tolerance=EXACT)
    assert torch.equal(M[1], kept[1])

"""Gradients that vanish and come back: no step is longer than a stated multiple of lr * √(its size)."""

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sketchy import Shampoo, SketchyAdagrad, SketchyShampoo, SketchySOAP
from sketchy.core.moments import longest
from sketchy.optim.parts.grafts import RULES

LR = 0.1
KINDS = (
    SketchyShampoo,
    partial(SketchyShampoo, start_step=20),
    SketchySOAP,
    partial(SketchySOAP, graft=None),
    partial(SketchySOAP, graft=None, start_step=20),
    Shampoo,
)
# The largest root mean square of a step / (lr * graft_scale): for moving averages by Cauchy-Schwarz, see
# `longest`, times Nesterov's 1 + β₁ and what grafts and row norms add.
MARGIN = 4.0


def allowed(betas: tuple[float, float]) -> float:
    beta1, beta2 = betas
    limit = longest(beta1, beta2)
    if limit is not None:
        return limit
    return MARGIN * max(1.0, (1 - beta1) / ((1 - beta2) * (1 - beta1**2 / beta2)) ** 0.5)


def lengths(kind: Any, betas: tuple[float, float], silence: int, scale: float, dtype: torch.dtype) -> float:
    """The largest root mean square of a step over a stream with a silence, in units of lr * graft_scale."""
    generator = torch.Generator().manual_seed(0)
    params = [torch.nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in ((6, 5), (7,))]
    optimizer = kind(params, lr=LR, betas=betas, weight_decay=0.0)
    worst = 0.0
    for step in range(5 + silence + 5):
        for p in params:
            silent = 5 <= step < 5 + silence
            p.grad = torch.randn(p.shape, generator=generator).to(dtype) * (0.0 if silent else scale)
            p.detach().zero_()
        optimizer.step()
        for p in params:
            assert p.isfinite().all()
            worst = max(worst, float(p.detach().double().square().mean().sqrt()) / LR)
    return worst / max(1.0, optimizer.param_groups[0]["graft_scale"])


@settings(deadline=None, max_examples=60)
@given(
    kind=st.sampled_from(KINDS),
    beta1=st.sampled_from([0.0, 0.5, 0.9, 0.99]) | st.floats(0, 1, exclude_max=True),
    beta2=st.sampled_from([0.0, 0.3, 0.5, 0.8, 0.9, 0.95, 0.999]) | st.floats(0, 1, exclude_max=True),
    silence=st.sampled_from([0, 1, 30, 300]),
    scale=st.sampled_from([1e-10, 1.0, 1e10]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_no_step_after_any_silence_is_longer_than_stated(kind, beta1, beta2, silence, scale, dtype):
    assert lengths(kind, (beta1, beta2), silence, scale, dtype) <= 1.1 * allowed((beta1, beta2))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("betas", [(0.9, 0.8), (0.9, 0.5), (0.9, 0.0)])
def test_second_moments_that_fade_faster_than_momentum_do_not_make_steps_grow(kind, betas):
    """Without the limit: 2e7, 1e28 and 1e36 times lr."""
    assert lengths(kind, betas, 300, 1.0, torch.float32) <= 1.1 * allowed(betas)


@pytest.mark.parametrize("moving_average", [True, False])
@pytest.mark.parametrize("beta1", [1e-20, 1e-300])
def test_a_momentum_that_fades_at_once_is_none(beta1, moving_average):
    """Nesterov's step divides by beta1: float32 became Inf."""

    def trained(beta1: float) -> torch.Tensor:
        p = torch.nn.Parameter(torch.zeros(6, 5))
        options = {"betas": (beta1, 0.95), "moving_average_momentum": moving_average}
        optimizer = SketchyShampoo([p], lr=LR, rank=3, **options)
        for step in range(3):
            p.grad = 1e20 * torch.randn(6, 5, generator=torch.Generator().manual_seed(step))
            optimizer.step()
        return p.detach()

    torch.testing.assert_close(trained(beta1), trained(0.0), rtol=1e-5, atol=1e-6)


def test_steps_of_sketchysoap_are_limited_without_a_graft_too():
    kind, betas = partial(SketchySOAP, graft=None), (0.9, 0.5)
    assert lengths(kind, betas, 60, 1.0, torch.float32) <= 1.1 * allowed(betas)  # without the limit: 1e5


def test_without_a_graft_sketchysoap_does_not_wait_for_the_start_step():
    """No rule could step until then. Momentum itself is as long as the gradients."""

    def trained(start_step: int) -> torch.Tensor:
        p = torch.nn.Parameter(torch.zeros(6, 5))
        optimizer = SketchySOAP([p], lr=LR, rank=3, graft=None, start_step=start_step)
        for step in range(4):
            p.grad = 1e20 * torch.randn(6, 5, generator=torch.Generator().manual_seed(step))
            optimizer.step()
        return p.detach()

    assert torch.equal(trained(1), trained(3)) and trained(3).abs().max() < 1


def test_steps_before_the_first_preconditioned_one_are_limited_too():
    p = torch.nn.Parameter(torch.zeros(6, 8))
    optimizer = SketchyShampoo([p], lr=1.0, betas=(0.9, 0.5), start_step=1000, weight_decay=0.0)
    for step in range(200):
        p.grad = torch.randn(6, 8) if step < 3 else torch.zeros(6, 8)
        p.detach().zero_()
        optimizer.step()
        assert float(p.detach().square().mean().sqrt()) <= 1.1 * allowed((0.9, 0.5))


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule not in (None, "sgd")])
@pytest.mark.parametrize("betas", [(0.9, 0.5), (0.5, 0.0)])
def test_before_the_first_preconditioned_step_no_moment_that_fades_to_zero_gives_nan(rule, betas):
    """Momentum over the root of such a moment is Inf."""
    p = torch.nn.Parameter(torch.zeros(6, 8))
    optimizer = SketchyShampoo([p], lr=1.0, betas=betas, start_step=1000, weight_decay=0.0, graft=rule)
    for step in range(400):
        p.grad = torch.randn(6, 8) * (1e20 if step < 3 else 0.0)
        p.detach().zero_()
        optimizer.step()
        assert float(p.detach().square().mean().sqrt()) <= 1.1 * allowed(betas)  # false for NaN


@pytest.mark.parametrize("graft_scale", [0.1, 1.0])
def test_the_limit_of_adams_path_does_not_depend_on_the_graft(graft_scale):
    p = torch.nn.Parameter(torch.zeros(50))
    optimizer = SketchySOAP([p], lr=1.0, betas=(0.95, 0.9), graft_scale=graft_scale, weight_decay=0.0)
    for _ in range(20):
        p.grad = torch.ones(50)
        p.detach().zero_()
        optimizer.step()
    assert float(p.detach().square().mean().sqrt()) == pytest.approx(1.0, rel=0.05)


def test_without_learning_rate_weights_stay_as_they_are_after_silence():
    p = torch.nn.Parameter(torch.ones(6, 5, dtype=torch.bfloat16))
    optimizer = SketchySOAP([p], lr=0.0, betas=(0.9, 0.0))
    for step in range(200):
        p.grad = torch.randn(6, 5).bfloat16() if step < 3 else torch.zeros_like(p)
        optimizer.step()
    assert torch.equal(p, torch.ones_like(p))


@pytest.mark.parametrize("kind", [SketchyShampoo, SketchySOAP])
def test_the_limit_of_a_step_is_that_of_its_graft_times_graft_scale(kind):
    p = torch.nn.Parameter(torch.zeros(6, 5))
    optimizer = kind([p], lr=1.0, betas=(0.9, 0.0), graft="rows", graft_scale=0.1, weight_decay=0.0)
    for step in range(5):
        p.grad = torch.randn(6, 5, generator=torch.Generator().manual_seed(step)) * 1e-3**step
        p.detach().zero_()
        optimizer.step()
    assert float(p.detach().square().mean().sqrt()) == pytest.approx(0.1 * longest(0.9, 0.0), rel=1e-5)


@pytest.mark.parametrize("nesterov", [True, False])
def test_entries_on_adams_path_are_limited_to_four_in_any_step(nesterov):
    """The second gradient is zero, and its moment too. Momentum is corrected for its start."""
    p = torch.nn.Parameter(torch.zeros(3))
    optimizer = SketchySOAP([p], lr=1.0, betas=(0.9, 0.0), nesterov=nesterov, weight_decay=0.0)
    for g in ([1.0, -2.0, 0.0], [0.0, 0.0, 1e-6]):
        p.grad = torch.tensor(g)
        p.detach().zero_()
        optimizer.step()
    assert p[:2].tolist() == pytest.approx([-4.0, 4.0], rel=1e-5)


def test_steps_of_shampoo_without_a_graft_have_the_length_of_its_formula():
    """They scale with a power of the gradients, so that no number can limit them."""

    def taken(size: float) -> torch.Tensor:
        p = torch.nn.Parameter(torch.zeros(6, 5, dtype=torch.float64))
        options = {"lr": 1.0, "betas": (0.9, 0.5), "exponent": 0.1, "graft": None, "whiten": False}
        optimizer = SketchyShampoo([p], rank=3, weight_decay=0.0, row_norm=None, **options)
        p.grad = size * torch.randn(6, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        optimizer.step()
        return p.detach()

    torch.testing.assert_close(taken(1e10), 1e6 * taken(1.0), rtol=1e-6, atol=0)


def test_moving_averages_that_limit_steps_themselves_have_no_limit():
    assert longest(0.9, 0.95) is None and longest(0.9, 0.999) is None and longest(0.0, 1.0) is None
    assert SketchyAdagrad([torch.nn.Parameter(torch.ones(3))]).defaults["betas"] == (0.0, 1.0)

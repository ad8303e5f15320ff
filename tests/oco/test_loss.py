"""Losses: values by hand, slopes and curvatures by automatic differentiation, convexity, large scores."""

import math

import pytest
import torch

from sketchy.oco import loss as losses

every_loss = pytest.mark.parametrize("loss", losses.LOSSES.values(), ids=losses.LOSSES)


@every_loss
@pytest.mark.parametrize("y", [0.0, 1.0])
def test_slope_and_curvature_are_the_derivatives(loss: losses.Loss, y: float) -> None:
    score = torch.linspace(-5.1, 5.2, 40, dtype=torch.float64, requires_grad=True)
    label = torch.tensor(y, dtype=torch.float64)
    (slope,) = torch.autograd.grad(loss.value(score, label).sum(), score, create_graph=True)
    torch.testing.assert_close(loss.slope(score, label), slope, rtol=1e-12, atol=1e-15)
    if loss.curvature is not None and slope.requires_grad:
        (curvature,) = torch.autograd.grad(slope.sum(), score, allow_unused=True)
        expected = torch.zeros_like(score) if curvature is None else curvature
        torch.testing.assert_close(loss.curvature(score, label), expected, rtol=1e-10, atol=1e-12)


@every_loss
def test_the_gradient_in_w_is_the_derivative(loss: losses.Loss, rng: torch.Generator) -> None:
    w = torch.randn(3, generator=rng, dtype=torch.float64, requires_grad=True)
    x = torch.randn(3, generator=rng, dtype=torch.float64)
    (g,) = torch.autograd.grad(loss(w, x, 1.0), w)
    torch.testing.assert_close(loss.gradient(w.detach(), x, 1.0), g)


@every_loss
def test_losses_are_convex(loss: losses.Loss) -> None:
    score = torch.linspace(-6, 6, 101, dtype=torch.float64)
    slope = loss.slope(score, torch.tensor(1.0, dtype=torch.float64))
    assert (slope.diff() >= 0).all()


def test_values_by_hand() -> None:
    one, zero, score = torch.tensor(1.0).double(), torch.tensor(0.0).double(), torch.tensor(2.0).double()
    assert losses.logistic.value(score, one).item() == pytest.approx(math.log1p(math.exp(-2)), rel=1e-14)
    assert losses.logistic.value(score, zero).item() == pytest.approx(math.log1p(math.exp(2)), rel=1e-14)
    assert losses.hinge.value(score, zero).item() == 3.0
    assert losses.hinge.value(score, one).item() == 0.0
    assert losses.squared.value(score, one).item() == 0.5
    assert losses.linear.value(score, -one).item() == -2.0


def test_the_logistic_loss_takes_any_score() -> None:
    score = torch.tensor([-1e308, -1e3, 1e3, 1e308, torch.inf], dtype=torch.float64)
    one, zero = torch.ones((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    assert losses.logistic.value(score, one).tolist() == [1e308, 1e3, 0.0, 0.0, 0.0]
    assert losses.logistic.value(score, zero).tolist() == [0.0, 0.0, 1e3, 1e308, torch.inf]
    close = torch.tensor([21.0, 30.0], dtype=torch.float64)  # not yet linear in float64
    assert (losses.logistic.value(close, zero) > close).all()

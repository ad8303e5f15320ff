"""Convex losses of a linear model w at an example (x, y), as functions of the score s = w.x.

The gradient with respect to w is slope * x. Scores may have any leading dimensions; y is broadcast against
them. For the logistic and the hinge loss, y is 1 or 0 (true or false).

>>> logistic.value(torch.tensor(0.0), torch.tensor(1.0))
tensor(0.6931)
>>> w, x = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 1.0])
>>> squared(w, x, 1.0), squared.gradient(w, x, 1.0)
(tensor(2.), tensor([2., 2.]))
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

OfScore = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Loss:
    """f(w) = value(w.x, y), convex in w."""

    name: str
    value: OfScore  # (score, y) to the loss
    slope: OfScore  # derivative with respect to the score, or a subgradient
    curvature: OfScore | None  # second derivative; None if it does not exist
    classifies: bool  # whether the sign of the score predicts y

    def __call__(self, w: Tensor, x: Tensor, y: Tensor | float) -> Tensor:
        score = w @ x
        return self.value(score, torch.as_tensor(y, dtype=score.dtype))

    def gradient(self, w: Tensor, x: Tensor, y: Tensor | float) -> Tensor:
        score = w @ x
        return self.slope(score, torch.as_tensor(y, dtype=score.dtype)).unsqueeze(-1) * x


def _sign(y: Tensor) -> Tensor:
    return 2 * y - 1


# for s <= -37, log(1 + exp(-s)) equals -s in float64
logistic = Loss(
    "logistic",
    value=lambda score, y: softplus(-_sign(y) * score, threshold=40.0),
    slope=lambda score, y: torch.sigmoid(score) - y,
    curvature=lambda score, y: torch.sigmoid(score) * torch.sigmoid(-score),
    classifies=True,
)
hinge = Loss(
    "hinge",
    value=lambda score, y: (1 - _sign(y) * score).clamp(min=0),
    slope=lambda score, y: torch.where(_sign(y) * score < 1, -_sign(y), 0.0),
    curvature=None,
    classifies=True,
)
squared = Loss(
    "squared",
    value=lambda score, y: (score - y).square() / 2,
    slope=lambda score, y: score - y,
    curvature=lambda score, y: torch.ones_like(score),
    classifies=False,
)
linear = Loss(
    "linear",
    value=lambda score, y: y * score,
    slope=lambda score, y: y.expand_as(score),
    curvature=lambda score, y: torch.zeros_like(score),
    classifies=False,
)

LOSSES = {loss.name: loss for loss in (logistic, linear, squared, hinge)}

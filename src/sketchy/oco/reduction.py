"""Reduction of non-convex to convex optimization: any online learner as a stochastic optimizer (Alg. 4)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from sketchy.oco.learner import Learner

Oracle = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Episode:
    """The iterate x_t at which an episode starts, and the norm of the true gradient there."""

    number: int  # t
    point: Tensor  # x_t, (d,)
    gradient_norm: float


def minimise(
    learner: Learner,
    start: Tensor,
    stochastic_gradient: Oracle,
    gradient: Oracle,
    *,
    episodes: int,
    rounds: int,
    smoothness: float,
) -> Episode:
    """Alg. 4: the iterate with the smallest gradient norm among x_1 ... x_{T+1}."""
    walk = iterates(learner, start, stochastic_gradient, gradient, rounds=rounds, smoothness=smoothness)
    return min((next(walk) for _ in range(episodes + 1)), key=lambda episode: episode.gradient_norm)


def iterates(
    learner: Learner,
    start: Tensor,
    stochastic_gradient: Oracle,
    gradient: Oracle,
    *,
    rounds: int,
    smoothness: float,
) -> Iterator[Episode]:
    """The iterates of Alg. 4, an infinite sequence.

    In each episode the learner restarts at x_t and plays N = ``rounds`` rounds of f(x) + L ‖x - x_t‖². The
    next iterate x_{t+1} is the mean of the points it played. ``stochastic_gradient`` maps x (d,) to an
    estimate of the gradient of f, ``gradient`` to the gradient itself. ``smoothness`` is L. The learner must
    have a single setting.
    """
    x, number = torch.as_tensor(start, dtype=learner.dtype), 1
    while True:
        yield Episode(number, x, float(torch.linalg.vector_norm(gradient(x))))
        learner.restart(x)
        total = torch.zeros_like(x)
        for _ in range(rounds):
            played = learner.point.clone()
            total += played
            learner.update(stochastic_gradient(played) + 2 * smoothness * (played - x))
        x, number = total / rounds, number + 1

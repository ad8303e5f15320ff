"""Observation 2: a stream on which Ada-FD's regret bound grows as T^(3/4), and S-AdaGrad's as √T."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sketchy.core import regret
from sketchy.oco.ada_fd import AdaFD
from sketchy.oco.domain import Ball
from sketchy.oco.learner import Learner
from sketchy.oco.s_adagrad import SAdaGrad


@dataclass(frozen=True)
class Growth:
    """The bound and the regret of one learner at each horizon T, averaged over the seeds."""

    learner: str
    rounds: list[int]  # T, one entry per horizon
    bound: list[float]  # right-hand side of its theorem
    regret: list[float]  # its loss minus that of the best point of the unit ball
    exponent: float  # least-squares slope of log(bound) against log(T)
    regret_exponent: float  # the same for the regret; nan if some regret is not positive


@torch.no_grad()
def growth(
    rounds: Sequence[int] = (250, 500, 1000, 2000, 4000),
    *,
    dim: int = 20,
    sketch_size: int = 5,
    seeds: int = 4,
) -> dict[str, Growth]:
    """Run Obs. 2 for each horizon T in ``rounds``: {"s-adagrad": Growth, "ada-fd": Growth}.

    The losses are x.g_t on the unit ball (D = 2), with g_t drawn uniformly from ``dim`` orthonormal vectors.
    Both learners are tuned to each T, as the theorems require:

    - S-AdaGrad: η = D/√2; its bound is Thm 3 (about √T).
    - Ada-FD: δ = 1 + √Σρ_t, so that the maximum in its bound is 1, and the best η, D √(Σ√ρ_t / (2 tr √G));
      its bound is that of the proof of Obs. 2, D √(2 tr G^(1/2) Σ√ρ_t) (about T^(3/4)).

    Each horizon takes 2 T updates of a batch of ``seeds`` sketches.
    """
    if not 2 <= sketch_size <= dim:
        raise ValueError(f"sketch_size={sketch_size}: must be between 2 and dim={dim}")
    ball = Ball(1.0)
    D = ball.diameter(dim)
    found: dict[str, list[tuple[float, float]]] = {"s-adagrad": [], "ada-fd": []}
    for T in rounds:
        streams = torch.stack([_stream(dim, T, seed) for seed in range(seeds)], 1)  # (T, seeds, d)
        eigenvalues = torch.linalg.svdvals(streams.transpose(0, 1)).square()
        learner: Learner = SAdaGrad(
            dim, eta=torch.full((seeds,), D / math.sqrt(2)), sketch_size=sketch_size, domain=ball
        )
        suffered, escaped = _suffer(learner, streams)
        bound = regret.s_adagrad(eigenvalues, sketch_size, D)
        found["s-adagrad"].append((float(bound.mean()), float(suffered.mean())))

        trace = eigenvalues.sqrt().sum(-1)
        delta = 1 + escaped.sum(-1).sqrt()
        eta = D * (escaped.sqrt().sum(-1) / (2 * trace)).sqrt()
        learner = AdaFD(dim, eta=eta, delta=delta, sketch_size=sketch_size, domain=ball)
        suffered, _ = _suffer(learner, streams)
        bound = regret.ada_fd(eigenvalues, escaped, D, eta, delta)
        found["ada-fd"].append((float(bound.mean()), float(suffered.mean())))
    return {name: _growth(name, list(rounds), pairs) for name, pairs in found.items()}


def _stream(dim: int, rounds: int, seed: int) -> Tensor:
    """(T, d): random rows of a random orthogonal matrix, so that no coordinate is special."""
    generator = torch.Generator().manual_seed(seed)
    W, _ = torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64))
    return W[torch.randint(dim, (rounds,), generator=generator)]


def _suffer(learner: Learner, streams: Tensor) -> tuple[Tensor, Tensor]:
    """The regret (P,) on linear losses, and the mass that escaped the sketch in each round (P, T)."""
    suffered, masses = torch.zeros_like(learner.eta[:, 0]), [learner.state_dict()["diagonal"]]
    for g in streams:
        suffered += (learner.point * g).sum(-1)
        learner.update(g)
        masses.append(learner.state_dict()["diagonal"])
    least = -torch.linalg.vector_norm(streams.sum(0), dim=-1)
    return suffered - least, torch.cat(masses, -1).diff(dim=-1).clamp(min=0)


def _growth(name: str, rounds: list[int], pairs: list[tuple[float, float]]) -> Growth:
    bound, suffered = (list(column) for column in zip(*pairs, strict=True))
    return Growth(name, rounds, bound, suffered, _slope(rounds, bound), _slope(rounds, suffered))


def _slope(rounds: list[int], values: list[float]) -> float:
    if min(values) <= 0 or len(values) < 2:
        return math.nan
    t, v = (torch.tensor(x, dtype=torch.float64).log() for x in (rounds, values))
    t = t - t.mean()
    return float((t * (v - v.mean())).sum() / t.square().sum())

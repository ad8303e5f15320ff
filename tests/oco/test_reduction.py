"""Alg. 4 on a small network: any learner finds a point of small gradient of a non-convex loss."""

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.func import functional_call

import sketchy.oco as oco
from sketchy.oco.reduction import Episode, iterates, minimise


class Problem:
    """Digits 0 and 1 through one hidden layer of four, as a function of a flat vector of parameters."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        X, y = load_digits(n_class=2, return_X_y=True)
        self.X, self.y = torch.tensor(X / 16), torch.tensor(y).double()
        self.net = nn.Sequential(nn.Linear(64, 4), nn.Tanh(), nn.Linear(4, 1)).double()
        self.start = nn.utils.parameters_to_vector(self.net.parameters()).detach()
        self.rng = torch.Generator().manual_seed(1)

    def loss(self, w: Tensor, rows: Tensor) -> Tensor:
        shapes = [(name, p.shape) for name, p in self.net.named_parameters()]
        parts = w.split([s.numel() for _, s in shapes])
        named = {name: part.view(s) for (name, s), part in zip(shapes, parts, strict=True)}
        score = functional_call(self.net, named, (self.X[rows],)).squeeze(-1)
        return oco.loss.logistic.value(score, self.y[rows]).mean()

    def gradient(self, w: Tensor) -> Tensor:
        return torch.func.grad(self.loss)(w, torch.arange(len(self.X)))

    def stochastic_gradient(self, w: Tensor) -> Tensor:
        return torch.func.grad(self.loss)(w, torch.randint(len(self.X), (8,), generator=self.rng))


@pytest.mark.parametrize("name", ["s-adagrad", "adagrad", "ogd", "rfd-son"])
def test_any_learner_lowers_the_gradient_of_a_small_network(name: str) -> None:
    problem = Problem()
    eta, delta = {"ogd": (1.0, 0.0), "rfd-son": (0.1, 1.0)}.get(name, (0.1, 0.0))
    learner = oco.make(name, len(problem.start), eta=eta, delta=delta, sketch_size=5)
    oracles = problem.stochastic_gradient, problem.gradient
    best = minimise(learner, problem.start, *oracles, episodes=6, rounds=25, smoothness=0.2)
    before = problem.gradient(problem.start).norm()
    assert best.gradient_norm < 0.5 * before
    assert best.gradient_norm == pytest.approx(float(problem.gradient(best.point).norm()))


def test_an_episode_is_the_mean_of_what_was_played() -> None:
    """f(x) = x²/2 without noise, OGD: the first episode by hand."""
    learner = oco.make("ogd", 1, eta=0.5)
    walk = iterates(learner, torch.ones(1), lambda x: x, lambda x: x, rounds=3, smoothness=0.25)
    first, second = next(walk), next(walk)
    assert isinstance(first, Episode) and first.gradient_norm == 1.0
    x, played = 1.0, []
    for n in range(1, 4):
        played.append(x)
        x -= 0.5 / n**0.5 * (x + 0.5 * (x - 1.0))
    assert second.point.item() == pytest.approx(sum(played) / 3)

"""Every learner's regret under its bound: known beforehand where there is a theorem, afterwards for all."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

import sketchy.oco as oco
from learners import stream
from sketchy.core import regret
from sketchy.oco.domain import Ball, Box, Domain, Everything, Simplex

DIM, RANK, ROUNDS, EPOCH = 5, 3, 50, 5


@dataclass(frozen=True)
class Game:
    """The gradients of a learner with the settings eta and delta, and the distances in its bounds."""

    gradients: Tensor  # (T, d)
    regret: float
    diameter: float
    width: float  # of K's widest side
    eta: float
    delta: float

    @property
    def eigenvalues(self) -> Tensor:
        return torch.linalg.eigvalsh(self.gradients.T @ self.gradients).clamp(min=0)

    @property
    def escaped(self) -> Tensor:
        """ρ_t: what S-AdaGrad's sketch of the same gradients loses in each round."""
        sketch = oco.make("s-adagrad", DIM, eta=1.0, sketch_size=RANK)
        lost = [0.0]
        for g in self.gradients:
            sketch.update(g)
            lost.append(sketch.state_dict()["diagonal"].item())
        return torch.tensor(lost).double().diff().clamp(min=0)

    @property
    def covariances(self) -> list[Tensor]:
        G = self.gradients
        points = [*range(0, len(G), EPOCH), len(G)]
        return [self.delta * torch.eye(DIM).double() + G[:t].T @ G[:t] for t in points]


@dataclass(frozen=True)
class Case:
    """A learner and its bound; ``within``: on some stream, the bound is at most so many times the regret."""

    name: str
    within: float
    bound: Callable[[Game], Tensor] | None = None  # the closed form; None where no guarantee is known
    options: dict[str, Any] = field(default_factory=dict)
    delta: float = 0.0
    eta: Callable[[float, int], float] = lambda D, T: D / math.sqrt(2)
    of_low_rank: bool = False  # the closed form asks for gradients of rank at most l

    def __str__(self) -> str:
        return "-".join([self.name, *map(str, self.options), str(self.delta)])

    def settings(self, diameter: float, rounds: int) -> dict[str, Any]:
        return {"eta": self.eta(diameter, rounds), "delta": self.delta, "sketch_size": RANK, **self.options}

    def observed(self, game: Game, diameter: float) -> float:
        """``diameter`` is the one that the settings were made for."""
        learner = oco.make(self.name, DIM, **self.settings(diameter, len(game.gradients)))
        return float(oco.observed_bound(learner, game.gradients, game.diameter))


KNOWN = [
    Case("ogd", 3.0, lambda g: regret.ogd(g.gradients.norm(dim=-1), g.diameter, g.eta, g.delta), delta=2.0),
    Case("adagrad", 3.0, lambda g: regret.adagrad(g.gradients.square().sum(0), g.width, g.eta, g.delta)),
    Case("full-adagrad", 3.0, lambda g: regret.full_adagrad(g.eigenvalues, g.diameter, g.eta, g.delta)),
    Case("s-adagrad", 3.0, lambda g: regret.s_adagrad_improved(g.eigenvalues, RANK, g.diameter, g.eta)),
    Case(
        "s-adagrad",
        5.0,
        lambda g: regret.s_adagrad_parameter_free(
            g.eigenvalues, RANK, g.diameter, len(g.gradients), g.eta, g.delta
        ),
        {"parameter_free": True},
        delta=1.0,
    ),
    Case(
        "ada-fd",
        4.0,
        lambda g: regret.ada_fd_upper(g.eigenvalues, g.escaped, RANK, g.diameter, g.eta, g.delta),
        delta=2.0,
    ),
    Case("son", 4.0, lambda g: regret.son(g.gradients, g.diameter, g.eta, g.delta), delta=1.0),
    Case("fd-son", 4.0, lambda g: regret.fd_son(g.gradients, RANK, g.diameter, g.eta, g.delta), delta=2.0),
    Case(
        "rfd-son",
        11.0,
        lambda g: regret.rfd_son(g.gradients, RANK, g.diameter, g.eta, g.delta),
        delta=2.0,
        eta=lambda D, T: 2 * D / math.sqrt(T),
    ),
    Case("rfd-son", 5.0, eta=lambda D, T: D / math.sqrt(T)),  # RFD_0: the closed form asks for δ > 0
    Case(
        "ada-lr",
        3.0,
        lambda g: regret.ada_lr(g.eigenvalues, g.diameter, g.eta, g.delta),
        delta=0.1,
        of_low_rank=True,
    ),
    Case("radagrad", 2.0, delta=0.1),
    Case(
        "epoch-adagrad",
        5.0,
        lambda g: regret.epoch_adagrad(g.covariances, g.diameter, g.eta),
        {"update_points": EPOCH},
        delta=0.5,
    ),
    Case(
        "epoch-adagrad",
        5.0,
        lambda g: regret.epoch_adagrad(g.covariances, g.diameter, g.eta, RANK),
        {"update_points": EPOCH, "sketched": True},
        delta=0.5,
    ),
    Case("ggt", 2.0, delta=0.1),
]
CASES = KNOWN + [  # any other registered learner, under the observed bound
    Case(name, math.inf, delta=0.1) for name in oco.LEARNERS if name not in {case.name for case in KNOWN}
]
every_learner = pytest.mark.parametrize("case", CASES, ids=str)
every_known_learner = pytest.mark.parametrize("case", KNOWN, ids=str)
DOMAINS: dict[str, tuple[Domain, float]] = {  # with the width of the widest side
    "ball": (Ball(1.0), 2.0),
    "box": (Box(-1.0, 1.0), 2.0),
    "simplex": (Simplex(1.0), 1.0),
}
KINDS = ("adversarial", "stochastic")


def play(
    case: Case, domain: str, kind: str, *, rounds: int = ROUNDS, low_rank: bool = False, mistake: float = 1.0
) -> Game:
    """Linear losses g_t.x; every step is multiplied by ``mistake``.

    "stochastic" is noise of a decaying spectrum; "adversarial" and "worst" are ±w_i, for orthonormal w_i,
    with the sign that hurts the point played, in turns or along the w_i where it hurts most.
    """
    K, width = DOMAINS[domain]
    D = K.diameter(DIM)
    settings = case.settings(D, rounds)
    learner = oco.make(case.name, DIM, domain=K, **settings)
    if mistake != 1.0:
        right = learner._step
        learner._step = lambda g: mistake * right(g)  # type: ignore[method-assign]
    W = torch.linalg.qr(stream("random", DIM, DIM, seed=7))[0][: RANK if low_rank else DIM]
    noise = stream("decaying", rounds, len(W)) @ W
    G, points = [], []
    for t in range(rounds):
        along = W @ learner.point
        i = t % len(W) if kind == "adversarial" and t % 3 else int(along.abs().argmax())
        g = noise[t] if kind == "stochastic" else W[i] if along[i] >= 0 else -W[i]
        points.append(learner.point)
        learner.update(g)
        G.append(g)
    gradients, played = torch.stack(G), torch.stack(points)
    assert K.contains(played).all()
    total = gradients.sum(0)
    found = (gradients * played).sum() - total @ K.least(total)
    return Game(gradients, float(found), D, width, settings["eta"], case.delta)


@every_learner
@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("kind", KINDS)
def test_regret_stays_under_its_bound(case: Case, domain: str, kind: str) -> None:
    """The observed bound is below the closed form, as in the proof (except for AdaGrad's, with widths)."""
    game = play(case, domain, kind)
    observed = case.observed(game, game.diameter)
    assert game.regret <= observed
    if case.bound and not case.of_low_rank:
        closed = float(case.bound(game))
        assert game.regret <= closed
        assert case.name == "adagrad" or observed <= closed * (1 + 1e-9)


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", [case for case in CASES if case.of_low_rank], ids=str)
def test_regret_stays_under_its_bound_on_streams_of_low_rank(case: Case, domain: str, kind: str) -> None:
    assert case.bound is not None
    game = play(case, domain, kind, low_rank=True)
    assert game.regret <= case.observed(game, game.diameter) <= float(case.bound(game)) * (1 + 1e-9)


@every_known_learner
def test_the_bound_says_something(case: Case) -> None:
    """On some stream it is near the regret, and below D Σ ‖g‖, the trivial bound for any points of K."""

    def bound(game: Game) -> float:
        return float(case.bound(game)) if case.bound else case.observed(game, game.diameter)

    games = [
        play(case, "ball", kind, rounds=100, low_rank=case.of_low_rank) for kind in ("adversarial", "worst")
    ]
    nearest = max(games, key=lambda game: game.regret / bound(game))
    assert bound(nearest) <= case.within * nearest.regret
    assert bound(nearest) < nearest.diameter * float(nearest.gradients.norm(dim=-1).sum())


@every_known_learner
@pytest.mark.parametrize("mistake", [-1.0, 100.0], ids=["wrong-sign", "rate-times-100"])
def test_a_wrong_learner_breaks_the_bound(case: Case, mistake: float) -> None:
    game = play(case, "ball", "worst", rounds=200, low_rank=case.of_low_rank, mistake=mistake)
    bound = float(case.bound(game)) if case.bound else case.observed(game, game.diameter)
    assert game.regret > 1.2 * bound


def test_a_window_gives_no_guarantee() -> None:
    """GGT forgets: on the worst stream its regret grows as T, S-AdaGrad's as √T."""
    growth = {}
    for name in ("ggt", "s-adagrad"):
        case = next(case for case in CASES if case.name == name)
        short, long = (play(case, "ball", "worst", rounds=T).regret for T in (100, 400))
        growth[name] = long / short
    assert growth["ggt"] > 3.6 and growth["s-adagrad"] < 2.4


# -- losses that aren't linear ---------------------------------------------------------------------


def labelled(rounds: int = ROUNDS) -> tuple[Tensor, Tensor]:
    X = stream("random", rounds, DIM, seed=3) / math.sqrt(DIM)
    chance = torch.sigmoid(4 * X @ torch.tensor([1.0, -1.0, 0.5, 0.0, 0.0]).double())
    return X, (torch.rand(rounds, generator=torch.Generator().manual_seed(5)) < chance).double()


def on_losses(case: Case, loss: oco.loss.Loss, X: Tensor, y: Tensor, K: Domain, best: Tensor) -> Game:
    settings = case.settings(2.0, len(X))
    learner = oco.make(case.name, DIM, domain=K, **settings)
    G, points, suffered = [], [], 0.0
    for x, label in zip(X, y, strict=True):
        suffered += float(loss(learner.point, x, label) - loss(best, x, label))
        points.append(learner.point)
        G.append(loss.gradient(learner.point, x, label))
        learner.update(G[-1])
    played = torch.stack(points)
    assert K.contains(played).all()
    D = float((played - best).norm(dim=-1).max()) if isinstance(K, Everything) else K.diameter(DIM)
    return Game(torch.stack(G), suffered, D, D, settings["eta"], case.delta)


@every_learner
@pytest.mark.parametrize("name", ["logistic", "squared", "hinge"])
def test_regret_stays_under_its_bound_on_examples(case: Case, name: str) -> None:
    """Logistic loss on the whole space (D is the observed distance), squared on a ball, hinge on a box."""
    (X, y), loss = labelled(), oco.loss.LOSSES[name]
    K: Domain = {"logistic": Everything(), "squared": Ball(1.0), "hinge": Box(-1.0, 1.0)}[name]
    game = on_losses(case, loss, X, y, K, oco.best_point(loss, X, y, K))
    assert game.regret <= case.observed(game, 2.0)
    if case.bound and not case.of_low_rank:
        assert game.regret <= float(case.bound(game))


@pytest.mark.parametrize(("name", "eta"), [("son", 0.5), ("fd-son", 0.5), ("rfd-son", 0.05)])
def test_curvature_lowers_the_bound_of_the_newton_learners_and_it_still_holds(name: str, eta: float) -> None:
    X, y = labelled(200)
    K, loss = Ball(1.0), oco.loss.squared
    case = Case(name, 0.0, delta=1.0, eta=lambda D, T: eta)
    game = on_losses(case, loss, X, y, K, oco.best_point(loss, X, y, K))
    errors = game.gradients.norm(dim=-1) / X.norm(dim=-1)  # the gradient is the error times x
    sigma = float(1 / errors.square().max())
    ranks = {} if name == "son" else {"rank": RANK}
    bound = getattr(regret, name.replace("-", "_"))
    flat, curved = (
        float(bound(game.gradients, diameter=2.0, eta=eta, delta=1.0, curvature=c, **ranks))
        for c in (0.0, sigma)
    )
    assert game.regret <= curved < 0.9 * flat


def test_a_used_learner_or_one_with_a_domain_is_refused() -> None:
    for learner in (
        oco.make("ogd", 2, eta=1.0, domain=Ball()),
        oco.make("ogd", 2, eta=torch.ones(2)),
    ):
        with pytest.raises(ValueError, match="give a new, plain one"):
            oco.observed_bound(learner, torch.ones(3, 2).double(), 1.0)

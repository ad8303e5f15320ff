"""The rounds: sums by hand, loss before the update, resuming, regret against the best fixed point."""

import os
from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_svmlight_file
from torch import Tensor

import sketchy.oco as oco
from sketchy.oco.domain import Ball, Box, Domain, Simplex


@pytest.fixture(scope="module")
def cancer() -> tuple[Tensor, Tensor]:
    X, y = load_breast_cancer(return_X_y=True)
    X = torch.tensor((X - X.mean(0)) / X.std(0))
    return torch.cat([X, torch.ones(len(X), 1, dtype=X.dtype)], 1), torch.tensor(y).double()


def test_sums_are_those_of_a_plain_loop(cancer: tuple[Tensor, Tensor]) -> None:
    X, y = cancer[0][:50], cancer[1][:50]
    learner, twin = (oco.make("adagrad", X.shape[1], eta=torch.tensor([0.1, 1.0]).double()) for _ in range(2))
    looks = list(oco.play(learner, oco.loss.logistic, X, y, at=[7, 50]))
    total, mistakes = torch.zeros(2).double(), torch.zeros(2).double()
    for t, (x, label) in enumerate(zip(X, y, strict=True), 1):
        total += oco.loss.logistic(twin.point, x, label)  # suffered before the update
        mistakes += (twin.point @ x > 0) != (label > 0)
        twin.update(oco.loss.logistic.gradient(twin.point, x, label))
        if t == 7:
            torch.testing.assert_close(looks[0].loss, total)
    assert [look.round for look in looks] == [7, 50]
    torch.testing.assert_close(looks[1].loss, total)
    assert torch.equal(looks[1].mistakes, mistakes)
    torch.testing.assert_close(looks[1].average_loss, total / 50)
    torch.testing.assert_close(looks[1].error_rate, mistakes / 50)


def test_the_first_round_is_played_at_zero(cancer: tuple[Tensor, Tensor]) -> None:
    first = next(oco.play(oco.make("ogd", 31, eta=1.0), oco.loss.logistic, *cancer, at=[1]))
    assert float(first.loss) == pytest.approx(0.6931471805599453)


@pytest.mark.parametrize("name", ["s-adagrad", "adagrad", "ada-lr"])
def test_resumed_equals_uninterrupted_bit_for_bit(name: str, cancer: tuple[Tensor, Tensor]) -> None:
    X, y = cancer[0][:90], cancer[1][:90]

    def fresh() -> oco.Learner:
        return oco.make(name, 31, eta=torch.tensor([0.1, 1.0]).double(), delta=0.1)

    at = oco.checkpoints(90, 6)
    whole = fresh()
    expected = list(oco.play(whole, oco.loss.logistic, X, y, at=at))
    stopped = fresh()
    rounds = oco.play(stopped, oco.loss.logistic, X, y, at=at)
    for _ in range(3):
        sums = next(rounds)
    state = stopped.state_dict()
    resumed = fresh()
    resumed.load_state_dict(state)
    rest = list(oco.play(resumed, oco.loss.logistic, X, y, at=at, after=sums))
    assert [r.round for r in rest] == at[3:]
    assert torch.equal(rest[-1].loss, expected[-1].loss) and torch.equal(resumed.point, whole.point)


def test_mistakes_of_use_are_named(cancer: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(ValueError, match="for a learner of dim=5"):
        next(oco.play(oco.make("ogd", 5, eta=1.0), oco.loss.logistic, *cancer))
    used = oco.make("ogd", 31, eta=1.0)
    next(oco.play(used, oco.loss.logistic, *cancer, at=[3]))
    with pytest.raises(ValueError, match=r"learner.round=3 but after.round=0"):
        next(oco.play(used, oco.loss.logistic, *cancer))


@pytest.mark.parametrize("loss", [oco.loss.logistic, oco.loss.squared], ids=["logistic", "squared"])
@pytest.mark.parametrize(
    "domain", [None, Ball(0.5), Box(-0.1, 0.1), Simplex()], ids=["all", "ball", "box", "simplex"]
)
def test_no_point_of_the_domain_beats_the_best_point(
    loss: oco.loss.Loss, domain: Domain | None, cancer: tuple[Tensor, Tensor], rng: torch.Generator
) -> None:
    """At the best point the gradient is zero, or moving against it and projecting leads back."""
    X, y = cancer[0][:, :6], cancer[1]  # six features: not separable
    x = oco.best_point(loss, X, y, domain)
    g = X.T @ loss.slope(X @ x, y)
    moved = (x - 1e-3 * g).unsqueeze(0)
    back = moved if domain is None else domain.project(moved, None)
    torch.testing.assert_close(back[0], x, rtol=0, atol=1e-8)


def test_best_points_of_linear_losses_need_a_bounded_domain(cancer: tuple[Tensor, Tensor]) -> None:
    X, y = cancer
    g = X.T @ y
    torch.testing.assert_close(oco.best_point(oco.loss.linear, X, y, Ball(2.0)), -2 * g / g.norm())
    with pytest.raises(ValueError, match="bounded domain"):
        oco.best_point(oco.loss.linear, X, y)


def test_regret_per_round_falls(cancer: tuple[Tensor, Tensor]) -> None:
    X, y = cancer[0][:, :6], cancer[1]
    learner = oco.make("s-adagrad", 6, eta=1.0, sketch_size=3, domain=Ball(2.0))
    looks = list(oco.play(learner, oco.loss.logistic, X, y, at=[100, len(X)]))
    early, late = (
        float(oco.regret(s.loss, oco.loss.logistic, X[: s.round], y[: s.round], Ball(2.0))) for s in looks
    )
    assert 0 < late / len(X) < early / 100


def test_the_first_rows_of_a9a_give_the_known_losses() -> None:
    """2,000 rows; S-AdaGrad at η = 0.1 gives 0.40005768, the value of an independent restatement in numpy."""
    root = Path(os.environ.get("SKETCHY_DATA", Path(__file__).parents[3] / "shared" / "data"))
    if not (root / "libsvm" / "a9a.bz2").exists():
        pytest.skip(f"a9a is not in {root}")
    X, y = load_svmlight_file(str(root / "libsvm" / "a9a.bz2"), n_features=123)
    features = torch.tensor(X[:2000].toarray())
    features = torch.cat([features, torch.ones(2000, 1, dtype=torch.float64)], 1)
    learner = oco.make("s-adagrad", 124, eta=0.1, sketch_size=10)
    *_, last = oco.play(learner, oco.loss.logistic, features, torch.tensor(y[:2000] > 0))
    assert float(last.average_loss) == pytest.approx(0.40005768, abs=1e-8)


def test_observation_2_shows_the_two_rates() -> None:
    found = oco.counterexample.growth((100, 200, 400), dim=10, sketch_size=4, seeds=3)
    assert found["s-adagrad"].exponent == pytest.approx(0.5, abs=0.03)
    assert found["ada-fd"].exponent == pytest.approx(0.75, abs=0.05)
    for growth in found.values():
        assert all(r < b for r, b in zip(growth.regret, growth.bound, strict=True))

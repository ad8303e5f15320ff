"""The best fixed point under the hinge loss, compared with other methods: vertices, SVMs, a grid."""

import sys
from itertools import combinations

import pytest
import torch
from sklearn.svm import LinearSVC
from torch import Tensor

import sketchy.oco as oco
from learners import stream
from sketchy.oco import hinge_best
from sketchy.oco.domain import Ball, Box, Domain, Everything, Simplex

INFINITY = float("inf")
FLAT: dict[str, tuple[Domain, float | None, float | None]] = {  # with their ends
    "everything": (Everything(), None, None),
    "box": (Box(-0.3, 0.5), -0.3, 0.5),
    "half-open box": (Box(0.1, INFINITY), 0.1, None),
    "simplex": (Simplex(1.5), 0.0, None),
}
DOMAINS: dict[str, Domain] = {"ball": Ball(0.7), **{name: case[0] for name, case in FLAT.items()}}


def examples(rounds: int, dim: int, noise: float = 1.0) -> tuple[Tensor, Tensor]:
    X = stream("random", rounds, dim, seed=2)
    score = X @ torch.linspace(-1, 1, dim).double() + noise * stream("random", rounds, 1, seed=3)[:, 0]
    return X, (score > 0).double()


def suffered(X: Tensor, y: Tensor, points: Tensor) -> Tensor:
    """Σ_t of the losses at each row of ``points``."""
    return oco.loss.hinge.value(points @ X.T, y).sum(-1)


def least(X: Tensor, y: Tensor, K: Domain) -> float:
    x = oco.best_point(oco.loss.hinge, X, y, K)
    assert K.contains(x.unsqueeze(0)).all()
    return float(suffered(X, y, x))


@pytest.mark.parametrize("name", FLAT)
def test_on_flat_domains_it_is_the_best_of_all_vertices(name: str) -> None:
    """A piecewise linear function is least where d of its kinks and the domain's faces meet."""
    dim = 3
    K, *ends = FLAT[name]
    X, y = examples(12, dim, noise=2.0)
    identity = torch.eye(dim).double()
    faces = [torch.cat([(2 * y - 1).unsqueeze(-1) * X, torch.ones(12, 1)], 1)]  # rows (a, b): a.x = b
    faces += [
        torch.cat([identity, torch.full((dim, 1), e, dtype=torch.float64)], 1) for e in ends if e is not None
    ]
    if isinstance(K, Simplex):
        faces.append(torch.tensor([[1.0, 1.0, 1.0, K.total]]))
    systems = torch.stack([torch.stack(some) for some in combinations(torch.cat(faces).double(), dim)])
    A, b = systems[..., :dim], systems[..., dim]
    regular = torch.linalg.det(A).abs() > 1e-9
    vertices = torch.linalg.solve(A[regular], b[regular])
    best = suffered(X, y, vertices[K.contains(vertices)]).min()
    assert best > 0.1
    assert least(X, y, K) == pytest.approx(float(best), rel=1e-8)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("penalty", [1e-3, 0.02, 0.5])
def test_on_a_ball_it_is_as_good_as_the_support_vector_machine_of_that_length(penalty: float) -> None:
    """½‖w‖² + C Σ f_t is least at a w that is the best point of the ball of radius ‖w‖."""
    X, y = examples(80, 6)
    machine = LinearSVC(
        loss="hinge", C=penalty, fit_intercept=False, dual=True, tol=1e-10, max_iter=100_000, random_state=0
    ).fit(X.numpy(force=True), y.numpy(force=True))
    w = torch.tensor(machine.coef_[0])
    assert least(X, y, Ball(float(w.norm()))) == pytest.approx(float(suffered(X, y, w)), rel=2e-6)


@pytest.mark.parametrize("name", DOMAINS)
def test_no_point_of_a_fine_grid_in_the_plane_is_better(name: str) -> None:
    K = DOMAINS[name]
    X, y = examples(30, 2)
    side = torch.linspace(-2, 2, 801).double()
    angle = torch.linspace(0, 2 * torch.pi, 10_001).double()
    edges = {
        "ball": 0.7 * torch.stack([angle.cos(), angle.sin()], -1),
        "simplex": torch.stack([share := torch.linspace(0, 1.5, 10_001).double(), 1.5 - share], -1),
    }
    grid = torch.cat([torch.cartesian_prod(side, side), edges.get(name, torch.zeros(1, 2).double())])
    best = float(suffered(X, y, grid[K.contains(grid)]).min())
    assert best - 0.2 < least(X, y, K) <= best * (1 + 1e-6)


@pytest.mark.parametrize(
    "K",
    [Everything(), Ball(1e4), Box(-1e4, 1e4), Box(-INFINITY, 1e4)],
    ids=["everything", "ball", "box", "half-open box"],
)
def test_separable_data_have_no_loss(K: Domain) -> None:
    X, y = examples(60, 4, noise=0.0)
    assert least(X, y, K) <= 1e-9 * len(X)


@pytest.mark.parametrize("label", [0.0, 1.0])
def test_with_one_example_and_one_label_it_goes_as_far_as_the_domain_lets_it(label: float) -> None:
    a = torch.tensor([0.3, -0.4, 0.0]).double()
    X, y = a.repeat(7, 1), torch.full((7,), label)
    furthest = {Ball(1.2): 0.6, Box(-1.0, 1.0): 0.7, Simplex(2.0): 0.6 if label else 0.8, Ball(4.0): 1.0}
    for K, score in {**furthest, Everything(): 1.0}.items():
        assert least(X, y, K) == pytest.approx(7 * (1 - score), rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("name", DOMAINS)
def test_examples_that_say_nothing_or_contradict_each_other_cost_one_each(name: str) -> None:
    X, _ = examples(5, 3)
    zeros, both = torch.zeros(5, 3).double(), torch.cat([0.1 * X, 0.1 * X])
    assert least(zeros, torch.ones(5), DOMAINS[name]) == pytest.approx(5)
    assert least(both, torch.arange(10) // 5, DOMAINS[name]) == pytest.approx(10, rel=1e-6)


@pytest.mark.parametrize("name", ["ball", "everything", "box"])
def test_features_of_different_sizes_and_dependent_ones_are_no_obstacle(name: str) -> None:
    X, y = examples(40, 3)
    wide = torch.cat([X, X[:, :1], torch.ones(40, 1).double(), torch.zeros(40, 1).double()], 1)
    scaled = wide * torch.tensor([1e-4, 1.0, 1e2, 1e-4, 255.0, 1.0]).double()
    assert 0 < least(scaled, y, DOMAINS[name]) < len(X)


@pytest.mark.parametrize("name", DOMAINS)
def test_a_point_that_is_not_best_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = examples(20, 3)
    solver = "_in_ball" if name == "ball" else "_linear_program"
    right = getattr(hinge_best, solver)

    def nearly(margins: Tensor, K: Domain) -> tuple[Tensor, Tensor]:
        x, weights = right(margins, K)
        inside = K.project(torch.full((1, 3), 0.4).double(), None)[0]
        return x + 1e-3 * (inside - x), weights

    monkeypatch.setattr(hinge_best, solver, nearly)
    with pytest.raises(ValueError, match="is known only to"):
        oco.best_point(oco.loss.hinge, X, y, DOMAINS[name])


def test_without_scipy_the_extra_is_named_and_a_ball_still_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    X, y = examples(20, 3)
    with pytest.raises(ImportError, match=r"pip install \'\.\[oco\]\' in a clone"):
        oco.best_point(oco.loss.hinge, X, y)
    assert least(X, y, Ball()) > 0


def test_regret_is_what_was_suffered_beyond_it() -> None:
    X, y = examples(30, 3)
    K = Ball(0.7)
    learner = oco.make("ogd", 3, eta=torch.tensor([0.1, 0.3]), domain=K)
    *_, sums = oco.play(learner, oco.loss.hinge, X, y)
    torch.testing.assert_close(oco.regret(sums.loss, oco.loss.hinge, X, y, K), sums.loss - least(X, y, K))

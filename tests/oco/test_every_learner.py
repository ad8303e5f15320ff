"""The table of learners x the common promises."""

import pytest
import torch

import sketchy.oco as oco
from learners import CASES, DELTA, DIM, ETA, SKETCH_SIZE, STREAMS, Case, stream
from sketchy.core import sketch
from sketchy.core.operator import Compensated
from sketchy.oco.domain import Ball, Box, Domain, Simplex
from sketchy.reference import SAdagrad

every_learner = pytest.mark.parametrize("case", CASES, ids=str)
SKETCHED = ("s-adagrad", "ada-fd", "fd-son", "rfd-son")


def make(case: Case, **options: object) -> oco.Learner:
    return oco.make(
        case.name, DIM, **{"eta": ETA, "delta": DELTA, "sketch_size": SKETCH_SIZE, **case.options, **options}
    )


def run(learner: oco.Learner, G: torch.Tensor) -> torch.Tensor:
    for g in G:
        learner.update(g.expand_as(learner.point))
    return learner.point


@every_learner
@pytest.mark.parametrize("kind", ["random", "decaying", "sparse"])
def test_each_learner_equals_its_dense_form(case: Case, kind: str) -> None:
    if case.rule is None:
        pytest.skip(f"tests/learners.py has no dense form of {case.name}")
    G = stream(kind, 25, DIM)
    learner = make(case)
    for t, g in enumerate(G, 1):
        before = learner.point
        learner.update(g)
        if case.name == "radagrad" and torch.linalg.matrix_rank(G[:t]) < SKETCH_SIZE:
            continue
        step = case.rule(list(G[:t]))
        torch.testing.assert_close(before - learner.point, step, rtol=1e-7, atol=1e-9)


@every_learner
def test_settings_side_by_side_equal_settings_alone(case: Case) -> None:
    etas, deltas = torch.tensor([0.1, 1.0, 0.3]).double(), torch.tensor([0.5, 0.1, 1.0]).double()
    G = stream("random", 40, DIM)
    together = run(make(case, eta=etas, delta=deltas), G)
    for eta, delta, row in zip(etas.tolist(), deltas.tolist(), together, strict=True):
        torch.testing.assert_close(run(make(case, eta=eta, delta=delta), G), row, rtol=1e-9, atol=1e-11)


@every_learner
def test_two_runs_agree_bit_for_bit(case: Case) -> None:
    G = stream("random", 70, DIM)
    first, second = (run(make(case, eta=torch.tensor([0.1, 1.0])), G) for _ in range(2))
    assert torch.equal(first, second)


@every_learner
def test_restoring_the_state_equals_never_having_stopped(case: Case) -> None:
    G = stream("random", 140, DIM)
    whole, stopped = make(case), make(case)
    run(whole, G)
    run(stopped, G[:63])
    state = stopped.state_dict()
    run(stopped, G[63:])  # what happens after must not reach into the saved state
    resumed = make(case)
    resumed.load_state_dict(state)
    assert torch.equal(run(resumed, G[63:]), whole.point)
    assert torch.equal(stopped.point, whole.point)


@every_learner
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e200])
def test_a_diverged_setting_leaves_the_others_alone(case: Case, bad: float) -> None:
    G = stream("random", 30, DIM)
    mixed, sane = make(case, eta=torch.full((3,), ETA)), make(case, eta=torch.full((3,), ETA))
    for t, g in enumerate(G):
        rows = g.expand(3, DIM).clone()
        sane.update(rows)
        if t == 12:
            rows[1] = bad
        mixed.update(rows)
    torch.testing.assert_close(mixed.point[[0, 2]], sane.point[[0, 2]], rtol=1e-9, atol=1e-11)
    assert not torch.isfinite(mixed.point[1]).all() or bad == 1e200


@every_learner
@pytest.mark.parametrize("domain", [Ball(0.5), Box(-0.2, 0.3), Simplex()], ids=["ball", "box", "simplex"])
@pytest.mark.parametrize("delta", [0.0, DELTA])
def test_the_point_stays_in_the_domain(case: Case, domain: Domain, delta: float) -> None:
    learner = make(case, domain=domain, delta=delta, eta=1.0)
    assert domain.contains(learner.point.unsqueeze(0)).all()
    for g in stream("random", 15, DIM):
        learner.update(g)
        assert domain.contains(learner.point.unsqueeze(0), 1e-9).all()


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("delta", [0.0, 0.5])
def test_s_adagrad_at_full_sketch_size_is_full_matrix_adagrad(kind: str, delta: float) -> None:
    sketched = oco.make("s-adagrad", DIM, eta=1.0, delta=delta, sketch_size=DIM)
    full = oco.make("full-adagrad", DIM, eta=1.0, delta=delta)
    for g in stream(kind, 60, DIM):
        sketched.update(g)
        full.update(g)
        torch.testing.assert_close(sketched.point, full.point, rtol=1e-7, atol=1e-7)


def test_s_adagrad_equals_the_reference() -> None:
    ours, theirs = oco.make("s-adagrad", DIM, eta=0.5, sketch_size=4), SAdagrad.start(torch.zeros(DIM), 4)
    for g in stream("random", 60, DIM):
        ours.update(g)
        theirs = theirs.step(g, lr=0.5)
        torch.testing.assert_close(ours.point, theirs.x, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_the_rank_one_update_equals_the_exact_sketch(kind: str, scale: float) -> None:
    """Cold start, repeated, zero, scaled and sparse vectors: against core.sketch with the SVD."""
    dim, rank = 30, 6
    learner = oco.make("s-adagrad", dim, eta=1.0, sketch_size=rank)
    exact, point = sketch.empty(dim, rank, dtype=torch.float64), torch.zeros(dim, dtype=torch.float64)
    for g in scale * stream(kind, 200, dim):
        learner.update(g)
        exact = sketch.update(exact, g.unsqueeze(-1))
        point = point - Compensated.of(exact).apply(g.unsqueeze(-1), -0.5).squeeze(-1)
    torch.testing.assert_close(learner.point, point, rtol=1e-8, atol=1e-9)
    state = learner.state_dict()
    torch.testing.assert_close(
        state["diagonal"].squeeze() / scale**2, exact.escaped_mass / scale**2, rtol=1e-9, atol=1e-12
    )
    torch.testing.assert_close(
        state["eigenvalues"][0].flip(-1) / scale**2, exact.eigenvalues / scale**2, rtol=1e-8, atol=1e-9
    )


@pytest.mark.parametrize("name", SKETCHED)
def test_the_basis_stays_orthonormal(name: str) -> None:
    learner = oco.make(name, 20, eta=0.1, delta=0.1, sketch_size=5)
    run(learner, stream("decaying", 3000, 20))
    U = learner.state_dict()["basis"][0, 1:]
    torch.testing.assert_close(U @ U.T, torch.eye(4).double(), rtol=0, atol=1e-12)


def test_rfd_0_is_rfd_without_delta_and_stands_on_the_relative_threshold() -> None:
    """In the cold start rounding noise must not be inverted: the point stays of the size of the steps."""
    learner = oco.make("rfd-son", 40, eta=0.1, delta=0.0, sketch_size=10)
    for g in stream("sparse", 12, 40):
        learner.update(g)
        assert learner.point.abs().max() < 1e3


def test_fd_son_is_son_while_the_sketch_holds_everything() -> None:
    G = stream("random", 50, 10)[:, :3] @ stream("random", 3, 10, seed=1)
    points = [run(oco.make(name, 10, eta=0.5, delta=0.1, sketch_size=5), G) for name in ("son", "fd-son")]
    torch.testing.assert_close(*points, rtol=1e-9, atol=1e-11)


def test_the_parameter_free_variant_differs_only_where_it_projects() -> None:
    G = stream("random", 40, DIM)
    plain, free = (
        oco.make("s-adagrad", DIM, eta=1.0, sketch_size=4, parameter_free=f) for f in (False, True)
    )
    assert torch.equal(run(plain, G), run(free, G))
    norm = oco.SAdaGrad(DIM, eta=1.0, sketch_size=4, parameter_free=True, domain=Ball())
    run(norm, G)
    state = norm.state_dict()
    U, z = state["basis"][0], state["eigenvalues"][0]
    G_tilde = U.T @ torch.diag(z) @ U + state["diagonal"] * torch.eye(DIM)
    lam, V = torch.linalg.eigh(G_tilde + torch.eye(DIM))
    torch.testing.assert_close(
        norm._norm().dense(DIM)[0], V @ torch.diag(lam.sqrt()) @ V.T, rtol=1e-9, atol=1e-9
    )


# -- mistakes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eta": 0.0}, "eta=0.0: must be positive"),
        ({"eta": 1.0, "delta": -1.0}, "delta=-1.0: must not be negative"),
        ({"eta": torch.ones(2, 2)}, "must be numbers or 1-D"),
        ({"eta": 1.0, "sketch_size": 1}, "sketch_size=1: must be at least 2"),
        ({"eta": 1.0, "start": torch.zeros(3)}, "start has the shape"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        oco.make("s-adagrad", DIM, **options)


def test_unknown_names_wrong_shapes_and_foreign_states_are_refused() -> None:
    with pytest.raises(ValueError, match="name='sgd': must be one of ada-fd"):
        oco.make("sgd", 3, eta=1.0)
    learner = oco.make("adagrad", 3, eta=1.0)
    with pytest.raises(ValueError, match=r"gradient has the shape \(2,\)"):
        learner.update(torch.zeros(2))
    with pytest.raises(ValueError, match="must have exactly"):
        learner.load_state_dict(oco.make("ogd", 3, eta=1.0).state_dict())
    with pytest.raises(ValueError, match="must be"):
        learner.load_state_dict(oco.make("adagrad", 4, eta=1.0).state_dict())


@pytest.mark.parametrize("name", ["s-adagrad", "rfd-son", "fd-son", "ada-fd"])
def test_a_given_diagonal_is_no_noise_however_small(name: str) -> None:
    """After 1e9 in one direction, a step in a new one is divided by delta, not projected out."""
    learner = oco.make(name, 4, eta=1.0, delta=1e-3, sketch_size=2)
    big, small = torch.zeros(4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64)
    big[0], small[1] = 1e9, 1e-6
    learner.update(big)
    before = learner.point.clone()
    learner.update(small)
    assert (learner.point - before)[1] < -1e-6

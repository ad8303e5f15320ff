"""Ranks under a budget: compared with all choices, and estimated spectra with the true ones."""

from itertools import pairwise, product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cases import F64, STREAMS, covariance, stream
from sketchy.core import sketch
from sketchy.core.allocation import Choices, allocated, kinds, ladder, losses, spectrum

ROUNDING = 1e-9


@st.composite
def menus(draw, weights=4, options=5):
    """Choices with any costs and losses, and a budget that the cheapest ones fit."""
    number = st.integers(1, 40)
    found = []
    for _ in range(draw(st.integers(1, weights))):
        costs = draw(st.lists(number, min_size=1, max_size=options))
        found.append(Choices(costs, [draw(st.integers(0, 50)) / 7 for _ in costs]))
    return found, sum(min(w.costs) for w in found) + draw(st.integers(0, 60))


def best(weights, budget):
    """The least loss of all choices within a budget."""
    return min(
        sum(w.losses[i] for w, i in zip(weights, each, strict=True))
        for each in product(*(range(len(w.costs)) for w in weights))
        if sum(w.costs[i] for w, i in zip(weights, each, strict=True)) <= budget
    )


def totals(weights, options):
    return (
        sum(w.costs[i] for w, i in zip(weights, options, strict=True)),
        sum(w.losses[i] for w, i in zip(weights, options, strict=True)),
    )


@given(menus())
def test_no_choice_within_the_budget_is_better_than_the_bound(problem):
    """The bound of the docstring: what is missing is at most the rate times what is left."""
    weights, budget = problem
    found = allocated(weights, budget)
    cost, loss = totals(weights, found.options)
    assert cost <= budget
    assert best(weights, budget) >= loss - found.rate * (budget - cost) - ROUNDING


@given(menus())
def test_where_the_steps_just_fit_the_greedy_choice_equals_brute_force(problem):
    weights, _ = problem
    rates = {w.rate(i, j) for w in weights for i, j in pairwise(w.hull())}
    for rate in {*rates, -1.0}:
        options = [at_rate(w, rate) for w in weights]
        cost, loss = totals(weights, options)
        found = totals(weights, allocated(weights, cost).options)
        assert best(weights, cost) == pytest.approx(loss, abs=ROUNDING)
        assert found == (cost, pytest.approx(loss, abs=ROUNDING))


def at_rate(weight, rate):
    """The option after all steps along the hull that gain more than this rate."""
    hull = weight.hull()
    return hull[sum(weight.rate(i, j) > rate for i, j in pairwise(hull))]


@given(menus(weights=3))
def test_more_budget_never_loses_more(problem):
    weights, budget = problem
    least = sum(min(w.costs) for w in weights)
    found = [totals(weights, allocated(weights, b).options)[1] for b in (least, budget, 10**6)]
    assert found[-1] == pytest.approx(sum(min(w.losses) for w in weights))
    assert found[0] >= found[-1]


def test_too_small_a_budget_is_refused():
    with pytest.raises(ValueError, match="the smallest ranks need 7 bytes, 2 more than the budget"):
        allocated([Choices([3, 9], [1.0, 0.0]), Choices([4], [1.0])], 5)


@given(st.integers(2, 2000), st.integers(2, 64), st.integers(2, 3000))
def test_ladders(dim, least, most):
    found = ladder(dim, least, most)
    assert list(found) == sorted(set(found))
    assert found[0] == min(least, most, dim) and found[-1] == min(most, dim)
    assert all(rank % 8 == 0 for rank in found[1:-1])
    assert all(b <= 1.25 * a + 8 for a, b in pairwise(found))


def values(state):
    return state.eigenvalues, state.escaped_mass, state.error_bound


@pytest.mark.parametrize("kind", STREAMS)
def test_losses_are_estimated_from_the_certificate(kind):
    """To a hundredth of d where a power law goes on, which it does not in two of the streams."""
    matrices = stream(kind, 48, 96, 30)
    state = sketch.empty(48, 8, dtype=F64)
    for A in matrices:
        state = sketch.update(state, A, beta2=0.9, solver="subspace")
    C = covariance(matrices, 0.9)
    true = torch.linalg.eigvalsh(C).flip(-1)
    true = true * (true > 1e-12 * true[0])  # the others are rounding errors
    mu = spectrum(values(state), 48)
    assert (mu.diff() <= 1e-12 * mu[0]).all()
    ranks = ladder(48, 8)
    error = (losses(mu, ranks) - losses(true, ranks)).abs().max()
    assert error <= (0.3 if kind in ("repeated", "geometric") else 0.02), error


def test_the_sum_outside_is_what_was_lost():
    """With ``lost`` it is tr C - tr B Bᵀ, less ρ for each column."""
    matrices = stream("power", 20, 30, 10)
    state = sketch.empty(20, 6, dtype=F64)
    for A in matrices:
        state = sketch.update(state, A, beta2=0.9)
    lost = covariance(matrices, 0.9).trace() - state.eigenvalues.sum()
    outside = spectrum(values(state), 20, lost)[6:].sum()
    torch.testing.assert_close(outside, lost - 6 * state.escaped_mass)


def test_losses_by_hand():
    mu = torch.tensor([16.0, 9.0, 4.0, 4.0])
    assert losses(mu, (2, 3, 4)).tolist() == pytest.approx([0.0, 0.0, 0.0])
    one = 3 - (3 + 2 + 2) / ((9 + 4 + 4) / 3) ** 0.5
    assert losses(mu, (1,)).item() == pytest.approx(one / 4)
    assert losses(torch.zeros(4), (2, 4)).tolist() == [0.0, 0.0]
    assert losses(torch.tensor([5.0, 1.0, 0.0, 0.0]), (1,)).item() == pytest.approx((3 - 3**0.5) / 4)


@given(st.integers(2, 30), st.integers(0, 10**6))
def test_a_loss_is_what_the_cosine_of_both_steps_lacks(d, seed):
    """The docstring, with dense steps: divided by √μ, or by the root mean square outside."""
    g = torch.Generator().manual_seed(seed)
    mu = torch.rand(d, generator=g, dtype=F64).add(1e-3).sort(descending=True).values
    k = seed % d
    shared = torch.cat([mu[:k], mu[k:].mean().expand(d - k)])
    ideal, ours = torch.ones(d, dtype=F64), (mu / shared).sqrt()
    cosine = ideal @ ours / (ideal.norm() * ours.norm())
    assert losses(mu, (k,)).item() == pytest.approx(1 - cosine.item(), abs=1e-12)


def test_few_kinds_are_the_best_ones_if_there_are_enough():
    weights = [Choices([1, 2, 3], values) for values in ([0.0, 5, 5], [0.0, 5, 5], [9.0, 9, 0])]
    assert sorted(kinds(weights, 0.0, 2)) == [0, 2]
    assert kinds(weights[:2], 0.0, 3) == [0]

"""Sketches of another rank: a cut is that of Alg. 1, growth changes nothing, certificates stay valid."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cases import DECAYS, F64, SOLVERS, STREAMS, covariance, stream
from checks import assert_close, assert_psd_leq, dense, norm, orthonormality
from sketchy.core import sketch
from sketchy.core.resize import resized

EXACT = 1e-10


def sketched(matrices, rank, decay=1.0, solver="exact", start=None):
    state = sketch.empty(len(matrices[0]), rank, dtype=F64) if start is None else start
    for A in matrices:
        state = sketch.update(state, A, beta2=decay, solver=solver)
    return state


@st.composite
def problems(draw):
    """A stream, and the ranks of its sketch over time."""
    d = draw(st.integers(3, 14))
    kind, seed = draw(st.sampled_from(STREAMS)), draw(st.integers(0, 10**6))
    matrices = stream(kind, d, draw(st.integers(1, 9)), 8, seed=seed)
    ranks = draw(st.lists(st.integers(2, d - 1), min_size=2, max_size=4))
    return matrices, ranks, draw(st.sampled_from((*DECAYS, 0.5)))


@given(problems(), st.sampled_from(SOLVERS))
def test_certificates_stay_valid(problem, solver):
    """B Bᵀ ⪯ C ⪯ B Bᵀ + bound I, ρ ≤ bound; for the smallest rank so far, l ρ ≤ what was lost."""
    matrices, ranks, decay = problem
    state, seen = sketched(matrices[:2], ranks[0], decay, solver), 2
    least = ranks[0]
    for rank in ranks[1:]:
        state, least = resized(state, rank), min(least, rank)
        for _ in range(2):
            C = covariance(matrices[:seen], decay)
            scale, eye = norm(C), torch.eye(len(C), dtype=F64)
            assert state.rank == rank
            assert orthonormality(state.basis) < 1e-12
            assert (state.eigenvalues.diff() <= 0).all() and state.eigenvalues[-1] >= 0
            assert_psd_leq(dense(state), C, scale=scale, tolerance=EXACT)
            assert_psd_leq(C, dense(state) + state.error_bound * eye, scale=scale, tolerance=EXACT)
            assert state.escaped_mass <= state.error_bound + EXACT * scale
            lost = C.trace() - state.eigenvalues.sum()
            assert least * state.escaped_mass <= lost + EXACT * scale * len(C)
            if seen < len(matrices):
                state, seen = sketched([matrices[seen]], rank, decay, solver, state), seen + 1


@given(problems())
def test_a_cut_is_that_of_a_smaller_sketch_of_the_sketch(problem):
    matrices, ranks, decay = problem
    before = sketched(matrices, max(ranks), decay)
    cut = resized(before, min(ranks))
    fresh = sketch.update(sketch.empty(before.dim, min(ranks), dtype=F64), before.factor())
    scale = norm(dense(before))
    assert_close(dense(cut), dense(fresh), scale=scale, tolerance=EXACT)
    lost = cut.escaped_mass - before.escaped_mass
    assert_close(lost, fresh.escaped_mass, scale=scale, tolerance=EXACT)
    assert_close(cut.error_bound - before.error_bound, lost, scale=scale, tolerance=EXACT)


@given(problems())
def test_growth_changes_nothing(problem):
    matrices, ranks, decay = problem
    before = sketched(matrices, min(ranks), decay)
    after = resized(before, max(ranks))
    l = before.rank
    assert torch.equal(after.basis[:, :l], before.basis)
    assert torch.equal(after.eigenvalues[:l], before.eigenvalues)
    assert not after.eigenvalues[l:].any()
    assert (after.escaped_mass, after.error_bound) == (before.escaped_mass, before.error_bound)


@pytest.mark.parametrize("solver", SOLVERS)
def test_new_columns_are_exact_while_they_fill(solver):
    """A stream of rank 2, then one of rank 3 more: after growth from 3 to 8 nothing escapes."""
    d = 12
    first, second = torch.randn(5, d, 2, dtype=F64), torch.randn(1, d, 3, dtype=F64)
    matrices = [*first[:1].expand(3, -1, -1), *second.expand(3, -1, -1)]
    state = resized(sketched(matrices[:3], 3, solver=solver), 8)
    state = sketched(matrices[3:], 8, solver=solver, start=state)
    C = covariance(matrices)
    assert_close(dense(state), C, scale=norm(C), tolerance=1e-8)
    assert state.escaped_mass <= 1e-8 * norm(C)


@given(problems())
def test_at_full_rank_the_escaped_mass_becomes_part_of_the_covariance(problem):
    matrices, ranks, decay = problem
    before = sketched(matrices, ranks[0], decay)
    full = resized(before, before.dim)
    C, eye = covariance(matrices, decay), torch.eye(before.dim, dtype=F64)
    scale = norm(C)
    assert_close(dense(full), dense(before) + before.escaped_mass * eye, scale=scale, tolerance=EXACT)
    assert full.escaped_mass == 0
    assert norm(C - dense(full)) <= full.error_bound + EXACT * scale

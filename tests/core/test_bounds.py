import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cases import DECAYS, F64, covariance, stream
from checks import assert_close
from sketchy.core import bounds

spectra = st.lists(st.floats(0, 1e6), min_size=1, max_size=12)


@given(spectra, st.integers(1, 14))
def test_lemma_1_is_the_minimum_over_k(spectrum, rank):
    lam = sorted(spectrum, reverse=True)
    rank = min(rank, len(lam))
    literal = min(sum(lam[k:]) / (rank - k) for k in range(rank))
    actual = bounds.escaped_mass_bound(torch.tensor(spectrum, dtype=F64), rank)
    assert_close(actual, torch.tensor(literal, dtype=F64), scale=1 + literal, tolerance=1e-12)


@given(spectra, st.integers(1, 14))
def test_lemma_1_is_at_most_the_tail_sum(spectrum, rank):
    lam = torch.tensor(spectrum, dtype=F64)
    rank = min(rank, len(lam))
    assert bounds.escaped_mass_bound(lam, rank) <= bounds.tail_sum(lam, rank) * (1 + 1e-12)


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("steps", [3, 30])
def test_observation_6_is_lemma_1_on_the_weighted_covariance(decay, steps):
    vectors = stream("power", 10, 1, steps)
    lam = torch.linalg.eigvalsh(covariance(vectors, decay)).clamp(min=0)
    actual = bounds.weighted_escaped_mass_bound(torch.cat(vectors, dim=1), 4, decay)
    assert_close(actual, bounds.escaped_mass_bound(lam, 4), scale=lam.max(), tolerance=1e-12)


def test_bounds_take_batches():
    lam = torch.rand(2, 3, 9, dtype=F64)
    assert bounds.escaped_mass_bound(lam, 4).shape == (2, 3)
    assert bounds.escaped_mass_bound(lam, 4)[1, 2] == bounds.escaped_mass_bound(lam[1, 2], 4)


def test_observation_6_takes_batches_and_ranks_above_the_dimension():
    vectors = torch.stack([torch.cat(stream("power", 6, 1, 7, seed=seed), dim=1) for seed in (1, 2)])
    found = bounds.weighted_escaped_mass_bound(vectors, 9, 0.9)
    expected = torch.stack([bounds.weighted_escaped_mass_bound(each, 6, 0.9) for each in vectors])
    assert_close(found, expected, scale=1, tolerance=1e-12)

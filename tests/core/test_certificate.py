"""Bounds of the error of an update: by traces, by probes, and what rounding adds."""

import math

import pytest
import torch

from cases import F32, F64
from checks import assert_close
from sketchy.core import certificate
from sketchy.core.certificate import norm_bound
from sketchy.core.tasks import run


@pytest.mark.parametrize("spectrum", ["rank-one", "flat", "decaying", "negative"])
@pytest.mark.parametrize("width", [0.01, 1.0, 100.0])
def test_the_norm_bound_fails_no_more_often_than_promised(spectrum, width, rng):
    """At a failure probability of 0.2, where failures can be counted, over 1000 draws of the probes."""
    d, trials, promised = 30, 1000, 0.2
    lam = {
        "rank-one": torch.nn.functional.one_hot(torch.tensor(0), d).double(),
        "flat": torch.ones(d, dtype=F64),
        "decaying": 1.0 / torch.arange(1, d + 1, dtype=F64),
        "negative": -1.0 / torch.arange(1, d + 1, dtype=F64),
    }[spectrum]
    probes = torch.randn(trials, 4, d, generator=rng, dtype=F64)
    widths = torch.full((trials,), width, dtype=F64)
    bound = norm_bound(lambda X: X * lam, probes, widths, promised)
    failures = (bound < lam.abs().max()).double().mean().item()
    assert failures <= promised + 3 * (promised * (1 - promised) / trials) ** 0.5
    if spectrum == "rank-one" and width == 0.01:
        assert failures > 0.02, "the bound is so loose that this test can't fail"


def test_the_bound_by_traces_counts_the_cut_once():
    """If D is c² on all l directions and nothing else, its norm is c², which the bound reaches."""
    kept, cut = torch.tensor([5.0, 2.0, 0.0], dtype=F64), torch.tensor(1.5, dtype=F64)
    mass, top = kept.sum() + 3 * cut, (kept[0] + cut).sqrt()
    assert certificate.loss(mass, top, kept, cut, (0.0, 0.0)) == cut
    assert certificate.loss(mass + 2, top, kept, cut, (0.0, 0.0)) == cut + 2
    assert certificate.loss(mass, top, kept, cut, (0.25, 0.0)) == cut + 0.25 * 6.5
    assert certificate.loss(mass, top, kept, cut, (0.0, 0.5)) == cut + 0.5 * mass
    assert certificate.loss(mass + 2, top, kept, cut, (0.0,)) == cut


def test_the_allowance_for_rounding_grows_with_the_length_of_sums():
    eps = torch.finfo(F64).eps
    square, tall, wide = (
        certificate.rounding(torch.zeros(shape, dtype=F64), shape, traced=True)
        for shape in ((4, 4), (400, 4), (4, 400))
    )
    assert square == (42 * eps, 12 * eps)
    assert (tall[0] - square[0]) / eps == pytest.approx(20 - 2)
    assert wide[0] == tall[0] and (wide[1] - square[1]) / eps == pytest.approx(20 - 2)
    assert certificate.rounding(torch.zeros(400, 4, dtype=F64), (400, 4), traced=False) == (40 * eps,)
    assert certificate.rounding(torch.zeros(900, 4, 4, dtype=F64), (4, 4), traced=True) == square


def test_the_norm_bound_of_a_multiple_of_the_identity_is_its_formula(rng):
    """D = mu I, so W T_2(D) = T_2(2 mu / width - 1) W, with T_2(x) = 2 x² - 1."""
    W, mu, width = torch.randn(4, 9, generator=rng, dtype=F64), 50.0, torch.tensor(1.0, dtype=F64)
    x = 2 * mu - 1
    chi = 2 * (1e-6 * math.gamma(3)) ** 0.5
    ratio = (2 * x**2 - 1) * torch.linalg.matrix_norm(W, 2).item() / chi**0.5
    expected = 0.5 * (1 + math.cosh(math.acosh(ratio) / 2))
    assert norm_bound(lambda X: mu * X, W, width, 1e-6).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, (1 + 0.5**0.5) / 2, 1.0])
def test_the_norm_bound_is_at_least_the_width(share):
    """D = share * width * I: then all of the spectrum lies in [0, width]."""
    W, width = 1e-3 * torch.eye(4, 9, dtype=F64), torch.full((2, 3), 8.0, dtype=F64)
    bound = norm_bound(lambda X: share * 8.0 * X.expand(2, 3, 4, 9), W, width, 1e-2)
    assert_close(bound, width, scale=8, tolerance=1e-12)


@pytest.mark.parametrize("guess", ["escaped", "mean", "rounding"])
def test_probes_start_from_the_largest_guess_of_the_norm(guess, rng):
    """c², or the mean eigenvalue, or what rounding adds; each sketch of a batch has its own."""
    d, l, k, r, batch = 7, 3, 5, 4, (2, 3)
    shapes = ((d, l), (l,), (d, k), (d, l), (l,), (l,))
    U, lam, A, Z, kept, sigma = (torch.rand(*batch, *shape, generator=rng, dtype=F64) for shape in shapes)
    if guess == "escaped":
        sigma = sigma + 20
    if guess == "rounding":
        A, Z, kept, sigma = 0 * A, U, lam, 0 * sigma  # so D = 0
    norm, probes = torch.linalg.matrix_norm(A), torch.randn(r, d, generator=rng, dtype=F64)
    share = 0.0 if guess == "rounding" else 0.25
    D = certificate.Residual(U, lam, A, Z, kept)
    found = certificate.probed_loss(D, norm, sigma, (0.5, share), probes, 1e-6)

    mass = lam.sum(-1) + norm.square()
    trace = (mass - kept.sum(-1)).clamp(min=0) + share * mass
    guesses = {"escaped": sigma[..., -1] ** 2, "mean": trace / d, "rounding": mass * torch.finfo(F64).eps}
    width = guesses.pop(guess)
    assert all((width > other).all() for other in guesses.values())
    dense = U * lam.unsqueeze(-2) @ U.mT + A @ A.mT - Z * kept.unsqueeze(-2) @ Z.mT
    bound = norm_bound(lambda X: X @ dense, probes, width, 1e-6) + sigma[..., 0] ** 2 / 2
    assert_close(found / bound, torch.ones_like(bound), scale=1, tolerance=1e-9)


def test_what_an_exchanged_basis_changes_is_reached_by_a_longer_column():
    """(2 (1 + h))² - 2² = 2 * 2h * 2 + (2h)² for each sketch of a batch."""
    basis, lam = torch.eye(5, 2, dtype=F64).expand(3, 5, 2), torch.tensor([4.0, 1.0], dtype=F64).expand(3, 2)
    h = torch.tensor([0.5, 0.0, 0.25], dtype=F64)
    other = basis.clone()
    other[:, 0, 0] += h
    found = run(certificate.exchange_error(basis, lam, other))
    assert_close(found, (2 * (1 + h)) ** 2 - 4, scale=1, tolerance=1e-14)
    assert_close(run(certificate.exchange_error(basis[0], lam[0], other[0])), found[0], scale=1, tolerance=0)


def test_the_size_of_an_exchange_is_the_largest_row_sum_of_its_gram_matrix():
    E = torch.tensor([[2.0, -1.0], [0.0, 1.0], [0.0, 0.0]], dtype=F64)  # EᵀE = [[4, -2], [-2, 2]]
    zero, one = torch.zeros(3, 2, dtype=F64), torch.ones(2, dtype=F64)
    size = 6**0.5
    assert run(certificate.exchange_error(zero, one, E)).item() == pytest.approx(size * (2 + size), rel=1e-14)


def test_rounding_a_basis_costs_a_few_eps_of_the_largest_eigenvalue():
    lam = torch.tensor([[3.0, 2.0], [5.0, 1.0]], dtype=F64)
    for dtype, share in ((F32, 8 * 2.0**-23), (F64, 40 * 2.0**-52)):
        assert certificate.rounding_error(lam, dtype).tolist() == [3 * share, 5 * share]

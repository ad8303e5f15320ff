import math

import pytest
import torch

from cases import F32, F64
from checks import assert_close, orthonormality
from sketchy.core import certificate, extremes, linalg, tasks
from sketchy.core.certificate import norm_bound
from sketchy.core.tasks import run


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("kind", ["generic", "graded", "dependent", "zero"])
def test_singular_vectors_by_products_equal_the_svd(kind, dtype, rng):
    T = torch.randn(3, 40, 8, generator=rng, dtype=F64)
    if kind == "graded":
        T = T * 0.1 ** torch.arange(8)
    if kind == "dependent":
        T[..., 5:] = T[..., :3]
    if kind == "zero":
        T = T * 0
    T = T.to(dtype)
    U, sigma = run(linalg.left_singular_by_products(T))
    eps = torch.finfo(dtype).eps
    assert orthonormality(U) < 40 * eps
    lam = sigma.double().square()
    scale = torch.linalg.matrix_norm(T, 2).double().square().max()
    assert_close(
        U.double() * lam.unsqueeze(-2) @ U.double().mT,
        T.double() @ T.double().mT,
        scale=scale,
        tolerance=40 * eps,
    )


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("dtype", [F32, F64])
def test_a_gram_factor_is_trusted_by_the_angles_of_columns_and_not_by_their_lengths(scale, dtype):
    def factor(sine: float, shorter: float, plus: float = 0.0):
        """Of two columns with this angle between them, the second of which is shorter."""
        K = torch.tensor([[1.0, (1 - sine**2) ** 0.5], [0.0, sine], [0.0, 0.0]], dtype=F64)
        K = (scale * K * torch.tensor([1.0, shorter])).to(dtype)[None]
        added = torch.full((1, 2), plus * scale**2, dtype=dtype)
        return K, run(linalg.gram_factor(K, plus=added))

    for sine, shorter in ((0.5, 1.0), (0.5, 1e-3), (1.0, 1e-6)):
        K, found = factor(sine, shorter)
        assert found is not None
        assert_close(found[0] @ found[0].mT, K.mT @ K, scale=scale**2, tolerance=1e-6)
        assert found[1] == (shorter**2 < 10 * torch.finfo(dtype).eps)  # graded
    for sine, shorter in ((0.1, 1.0), (0.0, 1.0), (1.0, 1e-10)):
        assert factor(sine, shorter)[1] is None
    K, found = factor(0.1, 1.0, plus=1.0)
    assert found is not None and not found[1]
    assert_close(
        (found[0] @ found[0].mT - K.mT @ K)[0], scale**2 * torch.eye(2), scale=scale**2, tolerance=1e-6
    )


@pytest.mark.parametrize("shape", [(20, 5), (20, 20), (12, 30)])
def test_left_singular_is_the_leading_part_of_the_svd(shape, rng):
    M = torch.randn(2, *shape, generator=rng, dtype=F64)
    U, sigma = linalg.left_singular(M, rank=4)
    expected_U, expected_sigma, _ = torch.linalg.svd(M, full_matrices=False)
    assert_close(sigma, expected_sigma[..., :4], scale=1, tolerance=1e-12)
    projector = expected_U[..., :4] @ expected_U[..., :4].mT
    assert_close(U @ U.mT, projector, scale=1, tolerance=1e-10)


def test_fill_keeps_live_columns_and_stays_orthonormal(rng):
    U = torch.linalg.qr(torch.randn(2, 10, 4, generator=rng, dtype=F64))[0]
    live = torch.tensor([[True, True, False, False], [True, True, True, True]])
    filled = run(linalg.fill(U, live))
    assert orthonormality(filled) < 1e-13
    assert_close(filled[0, :, :2], U[0, :, :2], scale=1, tolerance=1e-13)
    assert_close(filled[1], U[1], scale=1, tolerance=1e-13)


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1.0, 1e20, 1e30])
def test_frobenius_is_right_where_squares_overflow(scale, rng):
    A = (torch.randn(5, 7, generator=rng, dtype=F64) * scale).to(F32)
    assert_close(extremes.frobenius(A), A.double().norm(), scale=scale, tolerance=1e-5)


@pytest.mark.parametrize("fill", ["gaussian", 0.1, 1.3])
@pytest.mark.parametrize("scale", [1.0, 1e25])
def test_frobenius_of_a_large_matrix_is_right_to_a_few_eps(fill, scale, rng):
    """A plain float32 sum over four million squares is off by hundreds of eps."""
    shape = (2000, 2000)
    A = torch.randn(shape, generator=rng) if fill == "gaussian" else torch.full(shape, float(fill))
    A = A * scale
    assert_close(extremes.frobenius(A), A.double().norm(), scale=A.double().norm(), tolerance=2e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_frobenius_of_a_bad_matrix_is_not_finite(bad):
    A = torch.ones(4, 3)
    A[2, 1] = bad
    assert not torch.isfinite(extremes.frobenius(A))


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


@pytest.mark.parametrize("shape", [(7, 3), (200, 50)])
def test_scattered_numbers_fill_the_interval_evenly(shape):
    x = linalg.scattered(*shape, like=torch.empty(0, dtype=F64))
    assert x.shape == shape and -1 <= x.min() < -0.5 and 0.5 < x.max() < 1
    assert len(x.unique()) == x.numel() and x.mean().abs() < 2 / x.numel() ** 0.5
    assert (x.square().mean() - 1 / 3).abs() < 0.2


@pytest.fixture
def blind(monkeypatch):
    """As on an accelerator, where no value is read: float32 is computed by products in float64."""
    monkeypatch.setattr(tasks, "_READABLE", frozenset())


def test_on_an_accelerator_orthonormal_columns_are_gram_schmidts(blind, rng):
    M = torch.randn(2, 30, 6, generator=rng) * torch.tensor([9.0, 1.0, 0.1, 1.0, 5.0, 1.0])
    Q, R = torch.linalg.qr(M.double())
    expected = Q * R.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    assert_close(linalg.orthonormal(M), expected, scale=1, tolerance=1e-5)
    assert_close(linalg.orthonormal(M[0]), expected[0], scale=1, tolerance=1e-5)


@pytest.mark.parametrize("shape", [(2, 30, 6), (9, 9)])
def test_on_an_accelerator_singular_vectors_equal_the_svds(blind, shape, rng):
    T = torch.randn(shape, generator=rng) * 0.5 ** torch.arange(shape[-1])
    U, sigma = run(linalg.left_singular_by_products(T))
    assert_close(sigma, torch.linalg.svdvals(T.double()), scale=sigma.max(), tolerance=1e-6)
    assert orthonormality(U) < 1e-5
    rebuilt = U.double() * sigma.double().square().unsqueeze(-2) @ U.double().mT
    assert_close(rebuilt, T.double() @ T.double().mT, scale=sigma.max() ** 2, tolerance=1e-5)


def test_on_an_accelerator_the_singular_vectors_of_zero_are_finite(blind):
    U, sigma = run(linalg.left_singular_by_products(torch.zeros(8, 3)))
    assert torch.equal(U, torch.zeros(8, 3)) and torch.equal(sigma, torch.zeros(3))


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

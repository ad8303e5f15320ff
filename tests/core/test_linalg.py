import math

import pytest
import torch

from cases import F32, F64
from checks import assert_close, orthonormality
from ranks import cut, on_threads
from sketchy.core import certificate, extremes, linalg, tasks
from sketchy.core.certificate import norm_bound
from sketchy.core.spread import WHOLE, part
from sketchy.core.tasks import gather, run
from sketchy.core.tuned import products


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
    for sine, shorter in ((0.2, 1.0), (0.1, 1.0), (0.0, 1.0), (1.0, 1e-10)):
        assert factor(sine, shorter)[1] is None
    K, found = factor(0.1, 1.0, plus=1.0)
    assert found is not None and not found[1]
    assert_close(
        (found[0] @ found[0].mT - K.mT @ K)[0], scale**2 * torch.eye(2), scale=scale**2, tolerance=1e-6
    )


def test_a_gram_factor_has_no_trace_of_padding(rng):
    K = torch.randn(300, products._POWER, generator=rng, dtype=F64)
    found = run(linalg.gram_factor(K))
    assert found is not None
    assert_close(found[0] @ found[0].mT, K.mT @ K, scale=300, tolerance=1e-12)


def test_one_member_of_a_batch_makes_a_gram_factor_graded_or_not_trusted():
    good, graded, bad = torch.eye(3, 2, dtype=F64), torch.eye(3, 2, dtype=F64), torch.ones(3, 2, dtype=F64)
    graded[1, 1] = 3e-8
    for K, expected in (((good, good), (False,)), ((good, graded), (True,)), ((graded, bad), None)):
        found = run(linalg.gram_factor(torch.stack(K)))
        assert (found is None) if expected is None else found[1:] == expected


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


def test_columns_filled_together_are_those_filled_alone(rng):
    """Bases of all lengths with the same rank share random numbers."""
    bases = [
        torch.linalg.qr(torch.randn(2, *shape, generator=rng))[0] for shape in ((10, 4), (10, 3), (7, 4))
    ]
    lives = [torch.arange(U.shape[-1]).expand(2, -1) < 2 for U in bases]
    tasks = [linalg.fill(U, live) for U, live in zip(bases, lives, strict=True)]
    for found, U, live in zip(run(gather(tasks)), bases, lives, strict=True):
        assert_close(found, run(linalg.fill(U, live)), scale=1, tolerance=1e-6)


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


def test_energies_of_numbers_whose_squares_are_subnormal_have_all_digits():
    A = torch.full((40, 50), 3e-21)
    for found, count in zip(extremes.energies(A), (50, 40), strict=True):
        assert_close(found / (count * 9e-42), torch.ones_like(found), scale=1, tolerance=1e-6)


@pytest.mark.parametrize(
    ("norm", "past", "dtype", "expected"),
    [
        (1e-45, 0.0, F32, 2.0**-126),  # the least normal number
        (3e39, 0.0, F32, 2.0**126),
        (1e-200, 0.0, F64, 2.0**-500),
        (1e200, 0.0, F64, 2.0**500),
        (1e30, 1.0, F32, 2.0**99),
        (1.0, 4.0**41, F32, 2.0**40),  # √(past / 4)
        (2.0**-28, 0.0, F32, 2.0**-28),
        (0.0, 0.0, F32, 1.0),
    ],
)
def test_an_extreme_matrix_is_scaled_by_a_power_of_two_at_or_below_its_norm(norm, past, dtype, expected):
    """And a moderate one beside it is not."""
    norms, pasts = (torch.tensor([x, 1.0], dtype=F64) for x in (norm, past))
    found = run(extremes.extreme_scale(norms, pasts, 0.25, dtype))
    assert found.tolist() == [expected, 1.0]


def test_energies_of_the_largest_number_are_finite():
    most = torch.finfo(F32).max
    assert extremes.row_energy(torch.full((2, 3, 4), most)).tolist() == [[4 * most**2] * 3] * 2


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


def test_scattered_numbers_are_squares_modulo_a_prime():
    prime, expected = 2**31 - 1, []
    for i in range(1, 11):
        x = i
        for multiplier in (48271, 69621, 16807):
            x = (x * x + multiplier * i) % prime
        expected.append(2 * x / prime - 1)
    found = linalg.scattered(5, 2, like=torch.empty(0, dtype=F64)).flatten()
    assert found.tolist() == pytest.approx(expected, rel=1e-12)


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
    T = 1e-4 * torch.randn(shape, generator=rng) * 0.5 ** torch.arange(shape[-1])
    U, sigma = run(linalg.left_singular_by_products(T))
    assert_close(sigma, torch.linalg.svdvals(T.double()), scale=sigma.max(), tolerance=1e-6)
    assert orthonormality(U) < 1e-5
    rebuilt = U.double() * sigma.double().square().unsqueeze(-2) @ U.double().mT
    assert_close(rebuilt, T.double() @ T.double().mT, scale=sigma.max() ** 2, tolerance=1e-5)


@pytest.mark.parametrize("height", [None, 2, 4])
def test_on_an_accelerator_orthonormal_parts_are_gram_schmidts_of_each_matrix(blind, height, rng):
    """Of any size, also below rows that all ranks know."""
    M = torch.randn(2, 9, 4, generator=rng) * torch.tensor([1e6, 1e-6]).reshape(2, 1, 1)
    above = None if height is None else 1e-6 * torch.randn(2, height, 4, generator=rng)
    full = M if above is None else torch.cat([above, M], -2)
    Q, R = torch.linalg.qr(full.double())
    expected = Q * R.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    assert_close(run(linalg.orthonormal_parts(M, WHOLE, above)), expected, scale=1, tolerance=1e-5)
    for i in range(2):
        own = None if above is None else above[i]
        assert_close(run(linalg.orthonormal_parts(M[i], WHOLE, own)), expected[i], scale=1, tolerance=1e-5)


@pytest.mark.parametrize("dependent", [False, True])
@pytest.mark.parametrize("accelerator", [False, True])
def test_matrices_in_parts_are_decomposed_as_whole_ones(accelerator, dependent, rng, request):
    """Their rows lie on two ranks, and those above on both."""
    if accelerator:
        request.getfixturevalue("blind")
    M, above = torch.randn(2, 9, 4, generator=rng), torch.randn(2, 3, 4, generator=rng)
    if dependent:
        M[..., 3] = M[..., 0] + 1e-3 * M[..., 1]
    live = torch.tensor([[True, True, False, False]]).expand(2, -1)
    factor, joined = run(linalg.gram_factor(M)), run(linalg.orthonormal_parts(M, WHOLE, above))
    Q, filled = run(linalg.orthonormal_parts(M, WHOLE)), run(linalg.fill(linalg.orthonormal(M), live))
    U, sigma = run(linalg.left_singular_by_products(M))
    assert (factor is None) == (accelerator or dependent)

    def check() -> None:
        spread = cut(9)
        own, spreads, rows = part(M, spread), (spread, None), spread.here
        found = run(linalg.gram_factor(own, spreads=spreads))
        assert (found is None) == (factor is None)
        if factor is not None:
            assert_close(found[0], factor[0], scale=factor[0].abs().max(), tolerance=1e-6)
        found = run(linalg.orthonormal_parts(own, spreads, above))
        assert_close(found, torch.cat([joined[:, :3], joined[:, 3 + rows]], 1), scale=1, tolerance=1e-4)
        left, values = run(linalg.left_singular_by_products(own, spreads))
        assert_close(values, sigma, scale=sigma.max(), tolerance=1e-6)
        assert_close(
            (left * values.unsqueeze(-2)).abs(),
            (U * sigma.unsqueeze(-2))[:, rows].abs(),
            scale=sigma.max(),
            tolerance=1e-4,
        )
        if not dependent:
            assert_close(run(linalg.orthonormal_parts(own, spreads)), Q[:, rows], scale=1, tolerance=1e-5)
            U0 = part(linalg.orthonormal(M), spread)
            assert_close(run(linalg.fill(U0, live, spreads)), filled[:, rows], scale=1, tolerance=1e-5)

    on_threads(2, check)


@pytest.mark.parametrize("scale", [0.0, 1e-42, 1e-20, 1.0, 1e30])
def test_on_an_accelerator_energies_are_sums_of_squares(blind, scale, rng):
    A = (torch.randn(3, 5, 7, generator=rng, dtype=F64) * scale).to(F32)
    squares = A.double().square()
    for found, dim in ((extremes.row_energy(A), -1), (extremes.column_energy(A), -2)):
        assert_close(found, squares.sum(dim), scale=squares.sum(), tolerance=1e-5)
    for found, dim in zip(extremes.energies(A), (-1, -2), strict=True):
        assert_close(found, squares.sum(dim), scale=squares.sum(), tolerance=1e-5)
    assert extremes.column_energy(A[:, :0]).tolist() == [[0.0] * 7] * 3


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

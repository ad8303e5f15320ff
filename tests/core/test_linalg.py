import pytest
import torch

from cases import F32, F64
from checks import assert_close, orthonormality
from ranks import cut, on_threads
from sketchy.core import linalg
from sketchy.core.spread import WHOLE, part
from sketchy.core.tasks import gather, run
from sketchy.core.tuned import products


@pytest.mark.cpu_only("elsewhere only vectors with large values are orthonormal")
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
    U, sigma, *_ = run(linalg.left_singular_by_products(T))
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


@pytest.mark.cpu_only("it reads values")
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


@pytest.mark.cpu_only("it reads values")
def test_a_gram_factor_has_no_trace_of_padding(rng):
    K = torch.randn(300, products._POWER, generator=rng, dtype=F64)
    found = run(linalg.gram_factor(K))
    assert found is not None
    assert_close(found[0] @ found[0].mT, K.mT @ K, scale=300, tolerance=1e-12)


@pytest.mark.cpu_only("it reads values")
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


def test_on_an_accelerator_orthonormal_columns_are_gram_schmidts(blind, rng):
    M = torch.randn(2, 30, 6, generator=rng) * torch.tensor([9.0, 1.0, 0.1, 1.0, 5.0, 1.0])
    Q, R = torch.linalg.qr(M.double())
    expected = Q * R.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    assert_close(linalg.orthonormal(M), expected, scale=1, tolerance=1e-5)
    assert_close(linalg.orthonormal(M[0]), expected[0], scale=1, tolerance=1e-5)


@pytest.mark.parametrize("shape", [(2, 30, 6), (9, 9)])
def test_on_an_accelerator_singular_vectors_equal_the_svds(blind, shape, rng):
    T = 1e-4 * torch.randn(shape, generator=rng) * 0.5 ** torch.arange(shape[-1])
    U, sigma, *_ = run(linalg.left_singular_by_products(T))
    assert_close(sigma, torch.linalg.svdvals(T.double()), scale=sigma.max(), tolerance=1e-6)
    assert orthonormality(U) < 1e-3
    U = run(linalg.fill(U, sigma > 0))
    assert orthonormality(U) < 5e-6
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


@pytest.mark.cpu_only("its ranks are threads or processes")
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
    U, sigma, *_ = run(linalg.left_singular_by_products(M))
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
        left, values, *_ = run(linalg.left_singular_by_products(own, spreads))
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


def test_on_an_accelerator_the_singular_vectors_of_zero_are_finite(blind):
    U, sigma, *_ = run(linalg.left_singular_by_products(torch.zeros(8, 3)))
    assert torch.equal(U, torch.zeros(8, 3)) and torch.equal(sigma, torch.zeros(3))

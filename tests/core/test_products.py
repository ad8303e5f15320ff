"""Products in faster memory layouts equal the plain products."""

import pytest
import torch

from cases import F32, F64
from checks import assert_close
from sketchy.core.tuned import products

# 1024 float32 or 512 float64 are a page: rows that lie so far apart are multiplied some at a time
SHAPES = [(700, 1024), (1024, 1100), (30, 20), (1030, 512)]


def near(actual: torch.Tensor, expected: torch.Tensor) -> None:
    eps = torch.finfo(actual.dtype).eps
    assert_close(actual.double(), expected, scale=expected.abs().max(), tolerance=100 * eps)


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("rank", [5, 200])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_products_with_a_large_matrix_however_it_lies(shape, transposed, rank, dtype, rng):
    A = torch.randn(2, *(reversed(shape) if transposed else shape), generator=rng, dtype=dtype)
    A = A.mT if transposed else A
    X, Y = (torch.randn(2, size, rank, generator=rng, dtype=dtype) for size in reversed(shape))
    exact = A.double() @ X.double()
    near(products.product(A, X), exact)
    near(products.product(A, products.by_rows(X.mT.contiguous().mT)), exact)
    near(products.add_product_(Y.clone(), A, X), Y.double() + exact)
    near(products.add_product_(Y[0].clone(), A[0], X[0]), (Y.double() + exact)[0])
    if not transposed:
        expected = A.double() + Y.double() @ X.double().mT
        near(products.add_outer_(A.clone(), Y, X), expected)
        near(products.add_outer_(A.clone(), Y, X.mT.contiguous().mT), expected)


@pytest.mark.parametrize("transposed", [False, True])
def test_a_triangle_is_divided_out_in_place_however_the_factor_lies(transposed, rng):
    L = torch.randn(2, 6, 6, generator=rng, dtype=F64).tril() + 4 * torch.eye(6, dtype=F64)
    Y = torch.randn(2, 40, 6, generator=rng, dtype=F64)
    given = Y.mT.contiguous().mT if transposed else Y.clone()
    result = products.solve_transposed_(given, L)
    assert result.data_ptr() == given.data_ptr()
    near(result @ L.mT, Y)


@pytest.mark.parametrize("l", [5, 128, 256])
@pytest.mark.parametrize("batch", [(), (2,)], ids=str)
def test_lower_triangles_of_gram_matrices_are_right_and_padded_by_a_unit_matrix(batch, l, rng):
    K = torch.randn(*batch, 300, l, generator=rng, dtype=F64)
    W, expected = products.lower_gram(K).tril(), K.mT @ K
    size = W.shape[-1]
    padded = torch.eye(size, dtype=F64).repeat(*batch, 1, 1)
    padded[..., :l, :l] = expected.tril()
    near(W, padded)
    L = expected.tril()
    near(products.lower_gram_of_triangle(L).tril(), (L.mT @ L).tril())


def test_narrow_factors_are_the_same_by_rows(rng):
    for shape in ((3, 1, 4), (1, 4, 3), (3, 4, 1), (4, 3), (2, 3, 4)):
        X = torch.randn(shape, generator=rng, dtype=F64)
        for given in (X, X.mT.contiguous().mT):
            found = products.by_rows(given)
            assert torch.equal(found, X) and found.is_contiguous()

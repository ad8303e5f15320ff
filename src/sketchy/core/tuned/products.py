"""Products of a large matrix with a thin one, in the order and memory layout that is fastest in BLAS.

Each equals ``@`` up to rounding. Everything is batched over leading dimensions.
"""

import torch
from torch import Tensor

# If the distance between rows is a multiple of a page, the rows share cache sets. With few columns a product
# reads each row once, and the cache conflicts cost a fourth of its time. A few hundred rows at a time don't
# conflict.
_PAGE = 4096
_FEW = 128
_ROWS = 512

# If the distance between columns is a power of two, they share few cache sets. With a longer stride a
# Cholesky factor takes half the time.
_POWER = 128
_PADDING = 8


def product(A: Tensor, X: Tensor) -> Tensor:
    """A @ X for a large A and a thin X. If A is stored transposed, this computes (Xᵀ Aᵀ)ᵀ."""
    return _from_left_(X, A.mT).mT if _transposed(A) else A @ X


def by_rows(X: Tensor) -> Tensor:
    """X, stored by rows if it is narrow: `product` with such a right factor is up to a fifth faster."""
    return _contiguous(X) if X.shape[-1] <= _FEW else X


def add_product_(Y: Tensor, A: Tensor, X: Tensor) -> Tensor:
    """Y + A @ X, computed as in `product`. Y may be overwritten."""
    if not A.dim() == X.dim() == Y.dim() == 3:
        return Y + product(A, X)
    if _transposed(A) and X.shape[-1] <= _FEW:  # with more columns, copying Yᵀ costs more than it saves
        return _from_left_(X, A.mT, plus=_contiguous(Y.mT)).mT
    return Y.baddbmm_(A, X)


def add_outer_(A: Tensor, X: Tensor, Y: Tensor) -> Tensor:
    """A += X @ Yᵀ for a large A (S, m, n) and thin X (S, m, l), Y (S, n, l)."""
    return A.baddbmm_(X, (_contiguous(Y) if _collides(A, X.shape[-1]) else Y).mT)


def solve_transposed_(Y: Tensor, L: Tensor) -> Tensor:
    """Y L⁻ᵀ for a lower triangle L (..., l, l), written into Y (..., d, l)."""
    if _transposed(Y):
        return torch.linalg.solve_triangular(L.mT, Y, upper=True, left=False, out=Y)
    rows = Y.mT  # torch works in place only if input and output are the same tensor
    return torch.linalg.solve_triangular(L, rows, upper=False, out=rows).mT


def lower_gram(K: Tensor) -> Tensor:
    """KᵀK (..., l, l); only its lower triangle is valid. For some l it is padded by a unit matrix."""
    l = K.shape[-1]
    if l % _POWER:
        return K.mT @ K
    W = K.new_empty(*K.shape[:-2], l + _PADDING, l + _PADDING)
    W[..., l:, :] = 0.0
    W.diagonal(dim1=-2, dim2=-1)[..., l:] = 1.0
    half = l // 2  # three quarters of the product are enough
    W[..., :l, :half] = K.mT @ K[..., :half]
    W[..., half:l, half:l] = K[..., half:].mT @ K[..., half:]
    return W


def lower_gram_of_triangle(L: Tensor) -> Tensor:
    """LᵀL for a lower triangle L (..., l, l); only the lower triangle of the result is valid."""
    l = L.shape[-1]
    if l % _POWER:
        return L.mT @ L
    W, half = L.new_empty(L.shape), l // 2  # half of the product is enough
    W[..., :half, :half] = L[..., :half].mT @ L[..., :half]
    W[..., half:, :] = L[..., half:, half:].mT @ L[..., half:, :]
    return W


def _from_left_(X: Tensor, A: Tensor, plus: Tensor | None = None) -> Tensor:
    """Xᵀ @ A, plus ``plus`` if given, for a thin X (..., m, l) and a large A (..., m, n) stored by rows."""
    if A.dim() == X.dim() == 3 and A.shape[-2] > _ROWS and _collides(A, X.shape[-1]):
        first, *others = zip(X.split(_ROWS, -2), A.split(_ROWS, -2), strict=True)
        total = _from_left_(*first, plus)
        for x, a in others:
            total.baddbmm_(x.mT, a)
        return total
    return X.mT @ A if plus is None else plus.baddbmm_(X.mT, A)


def _contiguous(X: Tensor) -> Tensor:
    """X stored by rows. Torch copies a single transposed matrix in half the time of a stack of one."""
    return X[0].contiguous().unsqueeze(0) if X.dim() == 3 and X.shape[0] == 1 else X.contiguous()


def _collides(A: Tensor, columns: int) -> bool:
    """Whether rows of A conflict in the cache during a product with ``columns`` columns."""
    return A.device.type == "cpu" and columns <= _FEW and A.stride(-2) * A.element_size() % _PAGE == 0


def _transposed(A: Tensor) -> bool:
    """Whether A is stored by columns."""
    return A.stride(-1) != 1 and A.stride(-2) == 1

"""Products of a large matrix with a thin one, in the orders and layouts that BLAS is fastest in.

The same numbers up to rounding as ``@`` gives. Everything is batched over leading dimensions.
"""

import torch
from torch import Tensor

# Rows that lie a multiple of a page apart share cache sets. With few columns, where a product reads each
# row once, that costs a fourth of its time; some hundred rows at a time don't collide.
_PAGE = 4096
_FEW = 128
_ROWS = 512

# Of float32 products, by torch's names for what they may be rounded to: TF32, bfloat16.
_COARSE = dict.fromkeys(("tf32", "high"), 2.0**-10) | dict.fromkeys(("bf16", "medium"), 2.0**-7)


def multiply(A: Tensor, B: Tensor) -> Tensor:
    """A @ B for equally many matrices, without what `matmul` asks and does to tensors of other dimensions."""
    return torch.bmm(A, B) if A.dim() == B.dim() == 3 else A @ B


def multiply_into(out: Tensor, A: Tensor, B: Tensor) -> None:
    """A @ B into memory that is there, whatever it holds."""
    if A.dim() == B.dim() == out.dim() == 3:
        out.baddbmm_(A, B, beta=0.0)
    else:
        out.copy_(A @ B)


def product(A: Tensor, X: Tensor) -> Tensor:
    """A @ X for a large A and a thin X: one that lies transposed in memory is multiplied from the left."""
    return _from_left(X, A.mT).mT if _transposed(A) else multiply(A, X)


def by_rows(X: Tensor) -> Tensor:
    """X as `product` is fastest with it: narrow right factors that lie by rows take up to a fifth off it."""
    return _contiguous(X) if X.shape[-1] <= _FEW else X


def add_product(Y: Tensor, A: Tensor, X: Tensor) -> Tensor:
    """Y + A @ X as `product` has it; Y may be overwritten."""
    if not A.dim() == X.dim() == Y.dim() == 3:
        return Y + product(A, X)
    if _transposed(A) and X.shape[-1] <= _FEW:  # with more columns Yᵀ by rows costs more than it saves
        return _from_left(X, A.mT, plus=_contiguous(Y.mT)).mT
    return Y.baddbmm_(A, X)


def add_outer_(A: Tensor, X: Tensor, Y: Tensor) -> Tensor:
    """A += X @ Yᵀ for a large A (S, m, n) and thin X (S, m, l) and Y (S, n, l)."""
    return A.baddbmm_(X, (_contiguous(Y) if _collides(A, X.shape[-1]) else Y).mT)


def over_transposed(Y: Tensor, L: Tensor) -> Tensor:
    """Y L⁻ᵀ for a lower triangle L (..., l, l), in the memory of Y (..., d, l), however that lies."""
    if _transposed(Y):
        return torch.linalg.solve_triangular(L.mT, Y, upper=True, left=False, out=Y)
    rows = Y.mT  # torch copies unless it is given one and the same tensor
    return torch.linalg.solve_triangular(L, rows, upper=False, out=rows).mT


def product_eps(x: Tensor) -> float:
    """The eps of matrix products with x: its dtype's, unless `torch.set_float32_matmul_precision` lowered it.

    Whether this device makes use of the permission is not asked.
    """
    eps = torch.finfo(x.dtype).eps
    if x.dtype != torch.float32:
        return eps
    backend = torch.backends.mkldnn if x.device.type == "cpu" else torch.backends.cuda
    # torch's newer setting, one a backend; the older one may not be read once this was used
    setting = getattr(getattr(backend, "matmul", None), "fp32_precision", None)
    return _COARSE.get(setting or torch.get_float32_matmul_precision(), eps)


def _from_left(X: Tensor, A: Tensor, plus: Tensor | None = None) -> Tensor:
    """Xᵀ @ A for a thin X (..., m, l) and a large A (..., m, n) by rows; onto ``plus``, if given."""
    if A.dim() == X.dim() == 3 and A.shape[-2] > _ROWS and _collides(A, X.shape[-1]):
        first, *others = zip(X.split(_ROWS, -2), A.split(_ROWS, -2), strict=True)
        total = _from_left(*first, plus)
        for x, a in others:
            total.baddbmm_(x.mT, a)
        return total
    return multiply(X.mT, A) if plus is None else plus.baddbmm_(X.mT, A)


def _contiguous(X: Tensor) -> Tensor:
    """X by rows; torch transposes a single matrix in half the time of a stack of one."""
    return X[0].contiguous().unsqueeze(0) if X.dim() == 3 and X.shape[0] == 1 else X.contiguous()


def _collides(A: Tensor, columns: int) -> bool:
    """Whether the rows of A would push each other out of the cache in a product with so many columns."""
    return A.device.type == "cpu" and columns <= _FEW and A.stride(-2) * A.element_size() % _PAGE == 0


def _transposed(A: Tensor) -> bool:
    """Whether columns lie together in memory."""
    return A.stride(-1) != 1 and A.stride(-2) == 1

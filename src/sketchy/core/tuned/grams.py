"""Gram matrices of which only the lower triangle is needed: KᵀK and LᵀL, in layouts that factorise fast."""

from torch import Tensor

from sketchy.core.tuned.products import multiply, multiply_into_

# Columns that lie a power of two apart share few cache lines. With a longer stride a Cholesky factor takes
# half the time.
_POWER = 128
_PADDING = 8


def lower_gram(K: Tensor) -> Tensor:
    """KᵀK (..., l, l), of which the lower triangle counts; for some l bordered by a unit matrix."""
    l = K.shape[-1]
    if l % _POWER:
        return multiply(K.mT, K)
    W = K.new_empty(*K.shape[:-2], l + _PADDING, l + _PADDING)
    W[..., l:, :] = 0.0
    W.diagonal(dim1=-2, dim2=-1)[..., l:] = 1.0
    half = l // 2  # three quarters of the product are enough
    multiply_into_(W[..., :l, :half], K.mT, K[..., :half])
    multiply_into_(W[..., half:l, half:l], K[..., half:].mT, K[..., half:])
    return W


def lower_gram_of_triangle(L: Tensor) -> Tensor:
    """LᵀL of a lower triangle (..., l, l), of which the lower triangle counts."""
    l = L.shape[-1]
    if l % _POWER:
        return multiply(L.mT, L)
    W, half = L.new_empty(L.shape), l // 2  # half of the product is enough
    multiply_into_(W[..., :half, :half], L[..., :half].mT, L[..., :half])
    multiply_into_(W[..., half:, :], L[..., half:, half:].mT, L[..., half:, :])
    return W

"""Grafts: another rule's step lends its length to a preconditioned direction (Sec. 5, App. C).

The step of a rule for x (S, *block), and its length, from the second moments that the rule keeps: by entries
(`core.moments`), by rows, or by rows and columns (*factored*: Adam's step from m + n numbers).
"""

import torch
from torch import Tensor

from sketchy.core.axes import as_matrix
from sketchy.core.extremes import as_weights, frobenius, row_energy
from sketchy.core.moments import factored_inverse_roots, inverse_root, like
from sketchy.core.tuned.panels import panels

# In eigenbases steps are short where gradients have few directions. On the first plateau of an autoencoder
# the length by rows was 2 to 500 times a step's own one; after that, and on a character model, 0.4 to 2
# times.
FLOOR = 0.5
# Where one entry outshines its row and its column, moments by both are far too small for all others. Adam's
# own entries are at most (1 - β₁) / √(1 - β₂), 3.2 by default.
_LONGEST = 4.0


def row_roots(rows: Tensor, filled: Tensor, eps: float, entries: int) -> Tensor:
    """a (S, m): the inverse roots of the rows' mean second moments.

    ``rows``: (S, m), sums over each row. ``filled``: (S,), see `moments.correction`. ``entries``: of a block.
    """
    mean = rows * (rows.shape[-1] / entries)
    return inverse_root(mean, eps) * filled.sqrt().unsqueeze(-1)


def step_by_rows(x: Tensor, a: Tensor) -> Tensor:
    """x (S, *block) with its rows multiplied by a (S, m)."""
    return (as_matrix(x) * as_weights(a.unsqueeze(-1), x)).reshape(x.shape)


def length_by_rows(x: Tensor, a: Tensor) -> Tensor:
    """The length (S,) of `step_by_rows`, float64."""
    return (row_energy(as_matrix(x)).sqrt() * a).square().sum(-1).sqrt()


def factored_roots(rows: Tensor, columns: Tensor, filled: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """a (S, m, 1) and b (S, 1, n): a_i b_j is the inverse root of the factored second moment."""
    a, b = factored_inverse_roots(rows, columns, eps)
    return a * filled.sqrt().reshape(-1, 1, 1), b


def factored_step(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """a x b, no longer than `clipped` allows."""
    y = as_matrix(x) * as_weights(a, x) * as_weights(b, x)
    return (y * like(ratio(clipped(frobenius(y), x), y), y)).reshape(x.shape)


def factored_length(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """The length (S,) of a x b, float64, panel by panel."""
    X, weight = as_matrix(x), as_weights(b, x)
    rows = torch.empty_like(a.squeeze(-1))
    for stack, piece in panels(X):
        rows[piece] = row_energy(X[piece] * weight[stack])
    return (rows.sqrt() * a.squeeze(-1)).square().sum(-1).sqrt()


def clipped(length: Tensor, x: Tensor) -> Tensor:
    """The length (S,) of a factored step for x, at most some times the root of its entries."""
    return length.clamp(max=_LONGEST * (x.numel() / len(x)) ** 0.5)


def ratio(wanted: Tensor, direction: Tensor) -> Tensor:
    """What to multiply a direction (S, *block) by to give it the ``wanted`` length (S,); zero stays zero."""
    length = frobenius(as_matrix(direction))
    return torch.where(length > 0, wanted / length, 0.0)

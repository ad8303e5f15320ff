"""The leading directions of C' = β₂ B Bᵀ + A Aᵀ (Alg. 1, lines 3-4): by an SVD, or by one power step.

`POWER` has the ways to find the directions that a power step has reached, by the name of the solver.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sketchy.core.cholesky_qr import Singular, left_singular_by_sweeps, orthonormal_below
from sketchy.core.extremes import divide
from sketchy.core.linalg import (
    gram_factor,
    left_singular,
    left_singular_by_products,
    orthonormal_parts,
    unread,
)
from sketchy.core.spread import WHOLE, Spread, Spreads, total
from sketchy.core.tasks import Task, launch
from sketchy.core.tuned.products import add_product_, by_rows, product, solve_transposed_

if TYPE_CHECKING:
    from sketchy.core.whitening import Whitened

POWER: Mapping[str, Callable[[Tensor, Spreads], Task[Singular]]] = {
    "subspace": left_singular_by_products,
    "sweeps": left_singular_by_sweeps,
}


def exact(U: Tensor, root: Tensor, A: Tensor, spreads: Spreads) -> Singular:
    """The leading left singular vectors and values of M = [U√λ, A] (Sec. 6). A Aᵀ would square the errors."""
    assert spreads == WHOLE, "only power steps work on parts"
    return Singular(*left_singular(torch.cat([U * root.unsqueeze(-2), A], dim=-1), U.shape[-1]))


def power_step(
    U: Tensor,
    weights: Tensor,
    root: Tensor,
    A: Tensor,
    whitened: "Whitened | None",
    spreads: Spreads,
    over: Tensor | None,
) -> Task[tuple[Tensor, Tensor | None]]:
    """T (..., d, l): one warm-started block power step and a projection for M Mᵀ (as Sec. 6 hopes for).

    Return T and the doubt of `cholesky_qr`; None: there is none.

    The projection is in the row space. Let Q be an orthonormal basis of Mᵀ U. The new factor is T = M Q,
    whose columns span C' U, the result of the power step. T Tᵀ is the Nyström approximation of C' from U.
    M Q Qᵀ Mᵀ ⪯ C' holds for any Q, so B Bᵀ ⪯ C still holds, and the error can be bounded by its trace.
    """
    own, columns = spreads
    # K: the lower rows of Mᵀ U; the upper ones are diag(√λ). A right is the lower part of M Mᵀ U.
    if whitened is None:
        K = by_rows((yield from total(product(A.mT, U), own)))
        K = right = K if over is None else (yield from launch(divide, K, over))
    elif unread(U):
        K = right = yield from whitened.W.apply(whitened.product)
    else:
        K, right = yield from whitened.W.twice(whitened.product)
    if unread(K):
        above, Q, doubt = yield from orthonormal_below(K, root, (columns, own))
        return (yield from _projected(U, root, A, whitened, above, Q, columns, over)), doubt
    found = yield from gram_factor(K, weights, (columns, own))  # of Uᵀ C' U
    if found is not None:
        assert over is None, "values of A are only known where A was divided"
        T = yield from _add_product(U * weights.unsqueeze(-2), A, right, columns)
        return solve_transposed_(T, found[0]), None  # C' U L⁻ᵀ
    l = U.shape[-1]
    Q = yield from orthonormal_parts(K, (columns, own), torch.diag_embed(root))
    T = yield from _projected(U, root, A, whitened, Q[..., :l, :], Q[..., l:, :], columns, over)
    return T, None


def _projected(
    U: Tensor,
    root: Tensor,
    A: Tensor,
    whitened: "Whitened | None",
    above: Tensor,
    lower: Tensor,
    columns: Spread | None,
    over: Tensor | None,
) -> Task[Tensor]:
    """M Q = U diag(root) above + A lower, for Q = [above; lower]. With ``whitened``, A W takes A's place."""
    lower = lower if whitened is None else (yield from whitened.W.apply(lower))
    lower = lower if over is None else (yield from launch(divide, lower, over))
    new = yield from total(A @ lower, columns)
    return (yield from launch(_added, new, U, root, above))


def _added(new: Tensor, U: Tensor, root: Tensor, above: Tensor) -> Tensor:
    return new + U @ (root.unsqueeze(-1) * above)


def _add_product(Y: Tensor, A: Tensor, X: Tensor, columns: Spread | None) -> Task[Tensor]:
    """Y + A X, where the columns of A may be spread. Y may be overwritten."""
    if columns is None:
        return add_product_(Y, A, X)
    return Y.add_((yield from total(product(A, X), columns)))

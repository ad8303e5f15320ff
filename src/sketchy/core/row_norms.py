"""Row norms (ours, after NorMuon): rows of a direction get similar lengths, and the direction keeps its own.

The rows may lie on several ranks: ``spreads`` are those of the axes of a block (`core.spread`).
"""

import torch
from torch import Tensor

from sketchy.core.axes import as_matrix
from sketchy.core.moments import correction, entries
from sketchy.core.padded import padded
from sketchy.core.spread import WHOLE, Spreads, row_lengths, size, total
from sketchy.core.tasks import Task, gather, launch

# Rows of zeros have no inverse norm: this share of the mean norm is added to all norms.
_ROW_EPS = 1e-3
_LEAST = 1e-100  # of the scale of a direction, where it is squared


def normalize_rows_(
    direction: Tensor,
    scale: Tensor,
    moment: Tensor,
    decay: float,
    count: Tensor,
    spreads: Spreads = WHOLE,
) -> Task[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """Divide the rows of scale * direction by their running root mean square; the length stays the same.

    With D = scale * direction, (S,) times (S, *block): v_i ← decay v_i + (1 - decay) mean_j D_ij², and row i
    is divided by a_i + _ROW_EPS mean(a), a_i = √(v_i / (1 - decay^count)). ``moment``: v (S, m). ``count``:
    (S,), directions so far with this one; where it is 0, nothing changes. Returns the new direction (in the
    memory of the old one if possible), v, scale, and the energy (S,) of the new direction.
    """
    X, rows = as_matrix(direction), spreads[0]
    columns = float(entries(direction[:, :1], (None, *spreads[1:])))
    lengths = yield from row_lengths(X, *spreads[1:])
    moment, a, sums, weight = yield from padded(
        _observed_rows, lengths, moment, scale, count, numbers=(columns,), decay=decay
    )
    sums = yield from total(sums, rows)
    m = float(size(X.shape[1], rows))
    weights, before, after = yield from padded(_row_weights, lengths, a, sums, weight, numbers=(m,))
    X.mul_(weights.to(X).unsqueeze(-1))
    before, after = yield from gather((total(before, rows), total(after, rows)))
    return X.reshape(direction.shape), moment, (yield from launch(_renormalised, scale, before, after)), after


def _observed_rows(
    lengths: Tensor, moment: Tensor, scale: Tensor, count: Tensor, columns: float | Tensor, *, decay: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """v and a (S, m) of `normalize_rows_`, the sums of a (S,), and the weights (S,) of new squares."""
    # squares must stay in the range of float64: with four axes and exponent 1, tiny gradients give 1e160
    unit = scale.clamp(_LEAST, 1 / _LEAST) * (scale > 0)
    factor, weight = unit.square() / columns, (1 - decay) * (count > 0).double()
    moment = torch.lerp(moment, lengths.square() * factor.unsqueeze(-1), weight.unsqueeze(-1))
    a = (moment / correction(count.clamp(min=1), decay).unsqueeze(-1)).sqrt_()
    return moment, a, a.sum(-1), weight


def _row_weights(
    lengths: Tensor, a: Tensor, sums: Tensor, weight: Tensor, m: float | Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """What rows are multiplied by (S, m), and the energies (S,) of the direction before and after it."""
    mean = (sums / m).unsqueeze(-1)
    # over the mean, so that weights are moderate; a direction of zeros stays as it is
    weights = (mean / torch.add(a, mean, alpha=_ROW_EPS)).masked_fill_(mean * weight.unsqueeze(-1) == 0, 1.0)
    energy = lengths.square()
    return weights, energy.sum(-1), torch.linalg.vecdot(energy, weights.square())


def _renormalised(scale: Tensor, before: Tensor, after: Tensor) -> Tensor:
    """The scale of a direction whose energy changed."""
    return scale * (before / after).sqrt().masked_fill_(after == 0, 1.0)

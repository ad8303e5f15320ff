"""Average precision, the score of ogbg-molpcba."""

import torch
from torch import Tensor


def average_precision(scores: Tensor, positive: Tensor) -> float:
    """Σ (recall_i - recall_{i-1}) precision_i over the distinct scores, from the highest: scikit-learn's.

    ``scores``: (n,). ``positive``: (n,), bool, with at least one True.

    >>> average_precision(torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([False, False, True, True]))
    0.8333333333333333
    """
    order = scores.argsort(descending=True, stable=True)
    ranked, found = scores[order], positive[order].double().cumsum(0)
    last = torch.ones_like(positive)  # of a group of equal scores
    last[:-1] = ranked[1:] != ranked[:-1]
    taken = torch.arange(1, len(scores) + 1, dtype=torch.float64, device=scores.device)[last]
    found = found[last]
    gained = found.diff(prepend=found.new_zeros(1))
    return float((gained * found / taken).sum() / found[-1])


def mean_average_precision(scores: Tensor, labels: Tensor, *, least: int = 1) -> float:
    """The mean over assays that have both classes, each over the molecules that were tested in it.

    ``scores``: (molecules, assays). ``labels``: the same shape, 1 (positive), 0, or below 0 (untested).
    ``least``: positives that an assay must have to count. nan if no assay counts.
    """
    found = []
    for assay in range(labels.shape[1]):
        tested = labels[:, assay] >= 0
        positive = labels[tested, assay] == 1
        if least <= int(positive.sum()) < len(positive):
            found.append(average_precision(scores[tested, assay], positive))
    return sum(found) / len(found) if found else float("nan")

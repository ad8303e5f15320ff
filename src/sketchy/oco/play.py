"""The loop of online learning: in each round play a point, suffer the loss, update. And its running sums."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sketchy.oco.learner import Learner
from sketchy.oco.loss import Loss


@dataclass(frozen=True)
class Sums:
    """The cumulative losses and mistakes of a learner after ``round`` rounds, one number per setting."""

    round: int
    loss: Tensor  # Σ f_t(x_t): (P,), or () for a single setting
    mistakes: Tensor  # rounds with a score of the wrong sign, the same shape; 0 if the loss does not classify

    @property
    def average_loss(self) -> Tensor:
        return self.loss / max(self.round, 1)

    @property
    def error_rate(self) -> Tensor:
        return self.mistakes / max(self.round, 1)


def checkpoints(rounds: int, count: int = 100) -> list[int]:
    """At most ``count`` evenly spaced rounds; the last is ``rounds``.

    >>> checkpoints(10, 4)
    [2, 5, 7, 10]
    """
    return sorted({rounds * (i + 1) // count for i in range(count)} - {0})


@torch.no_grad()
def play(
    learner: Learner,
    loss: Loss,
    X: Tensor,
    y: Tensor,
    *,
    at: Sequence[int] | None = None,
    after: Sums | None = None,
) -> Iterator[Sums]:
    """Play the examples (X (T, d), y (T,)) in order; yield the running sums after each round in ``at``.

    In round t the learner plays x_t and suffers its loss. Only then does it get the gradient. ``at`` are
    rounds in ascending order, `checkpoints(T)` by default.

    To resume, restore the learner's state and pass the last yielded sums as ``after``, with the same ``at``.
    The rounds before are skipped, and the results are the same as without a stop, bit for bit.
    """
    if X.ndim != 2 or X.shape[1] != learner.dim or y.shape != X.shape[:1]:
        raise ValueError(
            f"X is {tuple(X.shape)} and y is {tuple(y.shape)}: must be (T, {learner.dim}) and (T,), "
            f"for a learner of dim={learner.dim}"
        )
    y = y.to(learner.dtype)
    none = torch.zeros(learner.point.shape[:-1], dtype=learner.dtype)
    sums = after or Sums(0, none, none)
    if learner.round != sums.round:
        raise ValueError(
            f"learner.round={learner.round} but after.round={sums.round}: must be equal "
            "(load the learner's state of that round, or start with a new learner)"
        )
    for stop in at if at is not None else checkpoints(len(X)):
        if stop <= sums.round:
            continue
        scores = []
        rows = X[sums.round : stop].to(learner.dtype)  # converted in slices: X may be large, and uint8
        for x, label in zip(rows, y[sums.round : stop], strict=True):
            score = learner.point @ x
            scores.append(score)
            learner.update(loss.slope(score, label).unsqueeze(-1) * x)
        seen, labels = torch.stack(scores, -1), y[sums.round : stop]
        wrong = (seen > 0) != (labels > 0) if loss.classifies else torch.zeros_like(seen)
        sums = Sums(
            stop,
            sums.loss + loss.value(seen, labels).sum(-1),
            sums.mistakes + wrong.to(seen).sum(-1),
        )
        yield sums

"""CTC: the loss of logits for pieces, greedy decoding, and the word error rate. Piece 0 is the blank."""

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor
from torch.nn import functional

BLANK = 0


def ctc_losses(logits: Tensor, lengths: Tensor, targets: Tensor, counts: Tensor) -> Tensor:
    """The loss of each row (rows,), float32, summed over its pieces.

    ``logits``: (rows, frames, pieces), of which ``lengths`` frames count. ``targets``: (rows, most pieces),
    of which ``counts`` count. A row with more pieces than its frames can hold has the loss 0.
    """
    scores = functional.log_softmax(logits.float(), 2).transpose(0, 1)
    return functional.ctc_loss(
        scores, targets, lengths, counts, blank=BLANK, reduction="none", zero_infinity=True
    )


def greedy(logits: Tensor, lengths: Tensor) -> list[list[int]]:
    """The best piece of each frame, without repetitions and blanks."""
    rows = logits.argmax(2).tolist()
    found = []
    for row, length in zip(rows, lengths.tolist(), strict=True):
        path = [BLANK, *row[:length]]
        found.append([piece for before, piece in pairwise(path) if piece not in (before, BLANK)])
    return found


def edit_distance(one: Sequence[object], other: Sequence[object]) -> int:
    """The number of insertions, deletions and substitutions that make one sequence the other.

    >>> edit_distance("the cat sat".split(), "cat sat down".split())
    2
    """
    costs = list(range(len(other) + 1))
    for i, x in enumerate(one, 1):
        above, costs[0] = costs[0], i
        for j, y in enumerate(other, 1):
            above, costs[j] = costs[j], min(costs[j] + 1, costs[j - 1] + 1, above + (x != y))
    return costs[-1]


def word_errors(found: Sequence[str], expected: Sequence[str]) -> tuple[int, int]:
    """Errors, and words that were expected, of several texts."""
    pairs = [(one.split(), other.split()) for one, other in zip(found, expected, strict=True)]
    return sum(edit_distance(*pair) for pair in pairs), sum(len(other) for _, other in pairs)

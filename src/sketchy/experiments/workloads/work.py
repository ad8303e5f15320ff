"""Do the pieces of a search that nobody else does."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from sketchy.experiments.workloads import folder
from sketchy.experiments.workloads.claims import claimed
from sketchy.experiments.workloads.ranks import Ranks
from sketchy.experiments.workloads.search import Piece


def work(pieces: Sequence[Piece], ranks: Ranks, do: Callable[[Piece], bool]) -> bool:
    """Call ``do`` for every piece that has not ended and that no living process has claimed.

    ``do`` returns False if it was asked to stop: then this returns False, too. All ranks of a process group
    work on the same piece.
    """
    for piece in pieces:
        with _free(piece, ranks) as free:
            if free and not do(piece):
                return False
    return True


@contextmanager
def _free(piece: Piece, ranks: Ranks) -> Iterator[bool]:
    if not ranks.first:
        yield ranks.from_first(None)
        return
    if folder.ended(piece.folder) is not None:
        yield ranks.from_first(False)
        return
    with claimed(piece.folder) as mine:  # another may have ended it just before we claimed it
        yield ranks.from_first(mine and folder.ended(piece.folder) is None)

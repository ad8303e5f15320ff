"""How a program reports a mistake of its user."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def user_mistakes(command: str) -> Iterator[None]:
    """Print an error that the user can correct as one sentence, and exit with status 2.

    For the code that checks options and reads files, where a ValueError or OSError is such an error.
    """
    try:
        yield
    except (ValueError, OSError) as error:
        print(f"{command}: {error}", file=sys.stderr)
        raise SystemExit(2) from error

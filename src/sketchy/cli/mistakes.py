"""How commands speak of the user's mistakes: the message alone, and exit code 2."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def user_mistakes(command: str) -> Iterator[None]:
    """Where options are checked and data is read: a ValueError there is the user's to mend."""
    try:
        yield
    except ValueError as error:
        print(f"{command}: {error}", file=sys.stderr)
        raise SystemExit(2) from None

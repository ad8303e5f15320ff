"""How commands speak of the user's mistakes: the message alone, and exit code 2."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def user_mistakes(command: str) -> Iterator[None]:
    """Where options are checked and data is read: errors there are the user's to mend."""
    try:
        yield
    except (ValueError, OSError) as error:
        print(f"{command}: {error}", file=sys.stderr)
        raise SystemExit(2) from None

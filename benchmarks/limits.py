"""A time limit for what may take forever."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def at_most(seconds: float, message: str) -> Iterator[None]:
    """Raise TimeoutError after so many seconds, between two operations."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"{message} {seconds:g} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

"""What the outside asks of a run: SIGTERM and Ctrl-C to save and stop, SIGUSR1 to save and go on."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sketchy.experiments.pool import stop_by_signal


@contextmanager
def listening() -> Iterator[Callable[[], tuple[bool, bool]]]:
    """A function that tells whether to stop, and whether a save was asked for since it was called last."""
    save = threading.Event()
    before = signal.signal(signal.SIGUSR1, lambda *_: save.set())
    try:
        with stop_by_signal() as stop:

            def asked() -> tuple[bool, bool]:
                wanted = save.is_set()
                save.clear()
                return stop.is_set(), wanted

            yield asked
    finally:
        signal.signal(signal.SIGUSR1, before)

"""Ctrl-C ends a command within two seconds, whatever it is doing."""

import atexit
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from select import select
from types import FrameType
from typing import NoReturn

PATIENCE = 1.2  # seconds
STOPPED = 130  # the exit status


@contextmanager
def patience(last_word: str) -> Iterator[None]:
    """After a Ctrl-C, give a command some time to save and to stop; then say a last word and end it.

    A long call of a library delays the exception that Python raises, and some code swallows it. So a thread
    listens to the signal itself. Files are written whole or not at all, so earlier ones stay.
    """
    if os.name != "posix" or threading.current_thread() is not threading.main_thread():
        yield
        return
    ear, mouth = os.pipe()
    os.set_blocking(mouth, False)
    before, handler = signal.set_wakeup_fd(mouth), signal.getsignal(signal.SIGINT)
    threading.Thread(target=_listen, args=(ear, last_word), daemon=True).start()
    if handler is signal.default_int_handler:  # nobody ignores it
        signal.signal(signal.SIGINT, partial(_raise, last_word))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        signal.set_wakeup_fd(before)
        os.close(mouth)  # the thread reads the end of the pipe


def _raise(last_word: str, number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, but not out of an import: C++ code may crash, and there is nothing to save."""
    caller = frame
    while caller is not None:
        if caller.f_code.co_filename.startswith("<frozen importlib"):
            _leave(last_word)
        caller = caller.f_back
    signal.default_int_handler(number, frame)


def _listen(ear: int, last_word: str) -> None:
    limit = None
    while select([ear], [], [], None if limit is None else max(0.0, limit - time.monotonic()))[0]:
        heard = os.read(ear, 1)
        if not heard:  # the command has ended
            os.close(ear)
            return
        if heard[0] == signal.SIGINT and limit is None:
            limit = time.monotonic() + PATIENCE
    _kill_workers()
    tidy = threading.Thread(target=atexit._run_exitfuncs, daemon=True)  # remove temporary directories
    tidy.start()
    tidy.join(0.2)
    _leave(last_word)


def _leave(last_word: str) -> NoReturn:
    print(last_word, file=sys.stderr, flush=True)
    os._exit(STOPPED)


def _kill_workers() -> None:
    if "multiprocessing" in sys.modules:
        from multiprocessing import active_children

        for worker in active_children():
            worker.kill()

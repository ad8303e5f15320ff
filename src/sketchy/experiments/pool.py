"""Named pieces of work, run in several processes. They report their progress and stop when asked."""

import math
import multiprocessing
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import torch

GRACE = 0.8  # seconds
Report = Callable[[str, int], None]  # called with the name of a piece and its progress
Stopped = Callable[[], bool]  # whether to save and stop
Work = Callable[[str, Report, Stopped], bool]  # does the named piece; returns whether it was finished


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread: small products are faster, and results don't depend on the number of cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def spread(work: Work, names: Sequence[str], processes: int, report: Report, stopped: Stopped) -> bool:
    """Do all pieces, ``processes`` at a time with one thread each. Returns whether all were finished.

    ``work`` is sent to other processes, so it must pickle. If a piece raises an error, it is raised here
    after all other pieces have ended. Once ``stopped`` returns True, processes have GRACE seconds to save.
    """
    if processes == 1 or len(names) == 1:
        with one_thread():
            return all(work(name, report, stopped) for name in names)
    context = multiprocessing.get_context("spawn")  # a fork of a process with torch's threads may hang
    reports, stop = context.Queue(), context.Event()
    with ProcessPoolExecutor(min(processes, len(names)), context, _begin, (reports, stop)) as pool:
        with _deaf_children():
            pieces: list[Future[bool]] = [pool.submit(_do, work, name) for name in names]
        limit = math.inf
        while not all(piece.done() for piece in pieces) and time.monotonic() < limit:
            if stopped() and not stop.is_set():
                stop.set()
                limit = time.monotonic() + GRACE
            with suppress(queue.Empty):
                report(*reports.get(timeout=0.1))
        if stop.is_set():  # some are still being started, or have much to save: the last save counts
            finished = all(piece.done() and not piece.exception() and piece.result() for piece in pieces)
            for worker in list(pool._processes.values()):
                worker.kill()
            return finished
        with suppress(queue.Empty):
            while True:
                report(*reports.get(timeout=0.1))
        try:
            return all(piece.result() for piece in pieces)
        except BrokenProcessPool as error:
            raise RuntimeError("a worker process died (out of memory?); run it again to resume") from error


@contextmanager
def stop_by_signal() -> Iterator[threading.Event]:
    """An event that is set by the first Ctrl-C (or SIGTERM). The second has its usual effect."""
    stop = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, frame: FrameType | None) -> None:
        stop.set()
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, ask)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _deaf_children() -> Iterator[None]:
    """Processes started inside ignore Ctrl-C: the parent receives it and tells them when to stop."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_parent: dict[str, Any] = {}  # a worker's connections to its parent


def _begin(reports: Any, stop: Any) -> None:
    torch.set_num_threads(1)
    reports.cancel_join_thread()  # this process must be able to end even if the parent reads no more
    _parent.update(reports=reports, stop=stop)


def _do(work: Work, name: str) -> bool:
    parent = multiprocessing.parent_process()
    assert parent is not None

    def report(name: str, done: int) -> None:
        _parent["reports"].put((name, done))

    def stopped() -> bool:
        return bool(_parent["stop"].is_set()) or not parent.is_alive()

    return not stopped() and work(name, report, stopped)

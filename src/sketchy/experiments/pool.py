"""Named pieces of work spread over processes that report how far they are and stop when asked."""

import multiprocessing
import queue
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import torch

Report = Callable[[str, int], None]  # told the name of a piece and how far it is
Stopped = Callable[[], bool]  # whether to save and stop
Work = Callable[[str, Report, Stopped], bool]  # does the named piece; whether it came to its end


@contextmanager
def one_thread() -> Iterator[None]:
    """Small products are faster on one thread, and their digits don't depend on how many there are."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def spread(work: Work, names: Sequence[str], processes: int, report: Report, stopped: Stopped) -> bool:
    """Do all pieces, ``processes`` at a time, one thread each; whether all came to their end.

    ``work`` is sent to other processes, so it must pickle. It is left to finish everywhere before an
    error of one piece is raised here.
    """
    if processes == 1 or len(names) == 1:
        with one_thread():
            return all(work(name, report, stopped) for name in names)
    context = multiprocessing.get_context("spawn")  # a fork of a process with torch's threads may hang
    reports, stop = context.Queue(), context.Event()
    with ProcessPoolExecutor(min(processes, len(names)), context, _begin, (reports, stop)) as pool:
        with _deaf_children():
            pieces: list[Future[bool]] = [pool.submit(_do, work, name) for name in names]
        while not all(piece.done() for piece in pieces):
            if stopped():
                stop.set()
            with suppress(queue.Empty):
                report(*reports.get(timeout=0.1))
        with suppress(queue.Empty):
            while True:
                report(*reports.get(timeout=0.1))
        try:
            return all(piece.result() for piece in pieces)
        except BrokenProcessPool as error:
            raise RuntimeError("a worker process died (out of memory?); run again to go on") from error


@contextmanager
def stop_by_signal() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C (or SIGTERM) sets; the second acts as ever."""
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
    """Processes started within don't hear Ctrl-C: the parent does, and tells them when to stop."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_parent: dict[str, Any] = {}  # a worker's lines to its parent


def _begin(reports: Any, stop: Any) -> None:
    torch.set_num_threads(1)
    reports.cancel_join_thread()  # a parent that listens no more must not keep this process from ending
    _parent.update(reports=reports, stop=stop)


def _do(work: Work, name: str) -> bool:
    parent = multiprocessing.parent_process()
    assert parent is not None

    def report(name: str, done: int) -> None:
        _parent["reports"].put((name, done))

    def stopped() -> bool:
        return bool(_parent["stop"].is_set()) or not parent.is_alive()

    return not stopped() and work(name, report, stopped)

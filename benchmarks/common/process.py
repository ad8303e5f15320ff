"""What a run must not depend on: code that takes forever, instructions that kill, what was freed before."""

import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import torch


@contextmanager
def at_most(seconds: float, message: str) -> Iterator[None]:
    """Raise TimeoutError after so many seconds of CPU time, between two operations."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"{message} {seconds:g} s of CPU time")

    before = signal.signal(signal.SIGPROF, stop)
    # and again: what is raised in a destructor or a weak reference's callback goes nowhere
    signal.setitimer(signal.ITIMER_PROF, seconds, 0.5)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def keep_freed_memory() -> None:
    """Let what a step frees stay with the process, for everybody alike.

    glibc maps large blocks anew each time and gives memory back, by what it has seen freed before: a step on
    one 1024 x 1024 weight had 0 or 2,300 page faults, AdamW's on ResNet-50 16,000, most of its time on a
    virtual machine where a fault takes 13 microseconds.
    """
    trim_threshold, mmap_max = -1, -4  # of malloc.h
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # no glibc
        return
    mallopt(trim_threshold, 2**31 - 1)
    mallopt(mmap_max, 0)


def only_legal_instructions() -> None:
    """Some virtual machines name AMX among their instructions and die of it: a bfloat16 product tells.

    There oneDNN is told to do without, before its first use in this process.
    """
    if not hasattr(os, "fork") or "ONEDNN_MAX_CPU_ISA" in os.environ:
        return
    child = os.fork()
    if child == 0:
        A = torch.ones(256, 256, dtype=torch.bfloat16)
        os._exit(int((A @ A)[0, 0] != 256))
    if os.waitpid(child, 0)[1] != 0:
        os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_BF16"


def pin() -> None:
    """One thread on one core: the last, since the first has the interrupts."""
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

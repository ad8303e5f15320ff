"""Settings of a process that measures: its core, its memory allocator, its instructions, time limits."""

import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import torch


@contextmanager
def at_most(seconds: float, message: str) -> Iterator[None]:
    """Raise TimeoutError after ``seconds`` of CPU time, when the current operation is done."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"{message} {seconds:g} s of CPU time")

    before = signal.signal(signal.SIGPROF, stop)
    # Repeated, because Python ignores what is raised in a destructor or in the callback of a weak reference.
    signal.setitimer(signal.ITIMER_PROF, seconds, 0.5)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def keep_freed_memory() -> None:
    """Keep memory that a step frees in the process, for all optimizers alike.

    By default glibc returns large blocks to the system and maps them again, depending on what was freed
    before. Then a step on one 1024 x 1024 weight had either 0 or 2,300 page faults. AdamW's step on ResNet-50
    had 16,000, which was most of its time on a virtual machine where a fault takes 13 microseconds.
    """
    trim_threshold, mmap_max = -1, -4  # of malloc.h
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # no glibc
        return
    mallopt(trim_threshold, 2**31 - 1)
    mallopt(mmap_max, 0)


def only_legal_instructions() -> None:
    """Do without AMX instructions where they crash.

    Some virtual machines list AMX among their instructions but don't support it. A child process tries a
    bfloat16 product. If it crashes, oneDNN is told not to use AMX, before its first use in this process.
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
    """Use one thread on one core: the last one, because the first handles interrupts."""
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

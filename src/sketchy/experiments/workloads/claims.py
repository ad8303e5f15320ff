"""Who does which piece of work, if many processes on many machines share one folder.

A claim is a file in the folder of a piece: ``claim-0``, or ``claim-(g + 1)`` where the owner of ``claim-g``
has stopped or died. Only one process can make a file, so each piece has one owner. While it works, a thread
touches its file. Ages are measured by the clock of the file system, because those of machines differ.
"""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

BEAT = 10.0  # seconds between two touches
DEAD = 90.0  # seconds without one


@contextmanager
def claimed(folder: Path, *, beat: float = BEAT, dead: float = DEAD) -> Iterator[bool]:
    """Whether the piece in this folder is ours: for the length of the block, or until another takes over."""
    folder.mkdir(parents=True, exist_ok=True)
    mine = _take(folder, dead)
    if mine is None:
        yield False
        return
    ended = threading.Event()
    beating = threading.Thread(target=_beat, args=(mine, ended, beat), daemon=True)
    beating.start()
    try:
        yield True
    finally:
        ended.set()
        beating.join()
        with suppress(OSError):
            os.utime(mine, (0, 0))  # free: it counts as dead


def _take(folder: Path, dead: float) -> Path | None:
    """A new claim; None if another process has a living one."""
    newest = max((_number(path) for path in folder.glob("claim-*")), default=-1)
    if newest >= 0 and _age(folder / f"claim-{newest}") < dead:
        return None
    mine = folder / f"claim-{newest + 1}"
    try:
        with mine.open("x") as file:
            file.write(f"{socket.gethostname()} {os.getpid()}\n")
    except FileExistsError:  # another was faster
        return None
    return mine


def _number(path: Path) -> int:
    return int(path.name.removeprefix("claim-"))


def _age(path: Path) -> float:
    """Seconds since the file was touched, by the clock of its file system."""
    with NamedTemporaryFile(dir=path.parent, prefix=".clock-") as now:
        return os.fstat(now.fileno()).st_mtime - path.stat().st_mtime


def _beat(mine: Path, ended: threading.Event, beat: float) -> None:
    while not ended.wait(beat):
        with suppress(OSError):
            os.utime(mine)

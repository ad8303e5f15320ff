"""Our files on disk: they are written whole or not at all, and a damaged one is named with what to do."""

import io
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

Row = TypeVar("Row")

START_AGAIN = "remove it to start again"
_LONGEST_NUMBER = 300  # digits: longer ones are beyond the range of a float


# ---- writing


def write(path: Path, content: str | bytes) -> None:
    """Write a file atomically: if this fails, the old file is unchanged and no other is left behind."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with part.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    torch.save(state, content)
    write(path, content.getvalue())


def append(path: Path, *rows: dict[str, Any]) -> None:
    """Append JSON lines: all of them, or none if this fails (as on a full disk).

    Other processes may append to the same file. If a killed process left an incomplete line, it is removed.
    """
    content = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    with path.open("a+b", buffering=0) as file, _locked(file):
        size = _end_last_line(file)
        try:
            rest = memoryview(content)
            while rest:  # a full disk accepts a part, and only the next write fails
                rest = rest[os.write(file.fileno(), rest) :]
        except BaseException:
            file.truncate(size)
            raise


@contextmanager
def _locked(file: io.FileIO) -> Iterator[None]:
    """No other process appends to the file meanwhile. Closing the file ends it."""
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX)
    yield


def _end_last_line(file: io.FileIO) -> int:
    """Complete or remove a last line that does not end; returns the size of the file."""
    size = file.seek(0, os.SEEK_END)
    if not size or (file.seek(size - 1), file.read(1)) == (size - 1, b"\n"):
        return size
    file.seek(0)
    content = file.read()
    if _complete(content[content.rfind(b"\n") + 1 :]):
        return size + os.write(file.fileno(), b"\n")
    return file.truncate(content.rfind(b"\n") + 1)


# ---- reading


def load(path: Path, *keys: str) -> dict[str, Any] | None:
    """Read a checkpoint that has these keys; None if there is no file."""
    if not path.exists():
        return None
    with damaged(str(path), START_AGAIN):
        return _object(torch.load(path, weights_only=True), keys)


def read_object(path: Path, *keys: str) -> dict[str, Any]:
    """The options of a run directory, or another object in a JSON file of ours; it has these keys."""
    with damaged(str(path), "remove its directory to start again"):
        return _object(parse(path.read_bytes()), keys)


def rows(path: Path, *keys: str) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file, which have these keys. If there is no file, there are none."""
    return read_rows(path, lambda row: _object(row, keys)) if path.exists() else []


def read_rows(path: Path, read: Callable[[dict[str, Any]], Row]) -> list[Row]:
    """``read`` of each object of a JSON-lines file. A last line that a killed process left is left out."""
    *lines, last = path.read_bytes().split(b"\n")
    if _complete(last):
        lines.append(last)
    found = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            with damaged(f"{path}, line {number}", "remove this line, or the file to start again"):
                found.append(read(_object(parse(line))))
    return found


def parse(text: str | bytes) -> Any:
    """A JSON value. Integers beyond the range of a float are refused, because no result of ours has them."""
    return json.loads(text, parse_int=_int)


@contextmanager
def damaged(what: str, remedy: str) -> Iterator[None]:
    """Around code that reads ``what``: any failure means that it is damaged, and is told in one sentence."""
    try:
        yield
    except OSError:
        raise  # it names the file itself
    except Exception as error:
        raise ValueError(f"{what}: damaged ({told(error)}); {remedy}") from error


def told(error: Exception) -> str:
    """An error in a few words."""
    first = str(error).strip().partition("\n")[0][:200]
    if isinstance(error, KeyError):
        return f"{first} is missing"
    return first if isinstance(error, ValueError) else f"{type(error).__name__}: {first}".rstrip(": ")


def _int(digits: str) -> int:
    if len(digits) > _LONGEST_NUMBER:
        raise ValueError(f"a number of {len(digits)} digits: must have at most {_LONGEST_NUMBER}")
    return int(digits)


def _complete(line: bytes) -> bool:
    """Whether a line that does not end is whole, as some editors leave it."""
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _object(value: Any, keys: tuple[str, ...] = ()) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"a {type(value).__name__}, not an object with names")
    for key in keys:
        if key not in value:
            raise ValueError(f"{key!r} is missing")
    return value

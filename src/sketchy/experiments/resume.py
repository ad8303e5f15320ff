"""Work that was stopped goes on: files that are whole or not there, checkpoints, lines of finished runs."""

import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch

import sketchy

Piece = TypeVar("Piece")


def write(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_bytes(content.encode() if isinstance(content, str) else content)
    part.replace(path)


def save(path: Path, state: dict[str, Any]) -> None:
    """A checkpoint, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    torch.save(state, content)
    write(path, content.getvalue())


def load(path: Path) -> dict[str, Any] | None:
    """A checkpoint, where there is one."""
    return torch.load(path, weights_only=True) if path.exists() else None


def refuse_others(directory: Path, theirs: dict[str, Any], mine: dict[str, Any]) -> None:
    """Raise where ``directory`` holds work of other options than mine, and say of which."""
    differing = [
        f"{name} is {theirs.get(name)} there and {mine.get(name)} here"
        for name in {**mine, **theirs}
        if theirs.get(name) != mine.get(name)
    ]
    if differing:
        raise ValueError(
            f"out={str(directory)!r}: has results of other options ({'; '.join(differing)}); "
            "choose another directory, or remove this one"
        )


def rows(path: Path) -> list[dict[str, Any]]:
    """All whole lines of a file; one that was cut off while written is left out."""
    found = []
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            found.append(json.loads(text))
        except json.JSONDecodeError:
            continue
    return found


def append(path: Path, row: dict[str, Any]) -> None:
    """Add a line by one write, so that those of two processes don't mix and an interrupt leaves it whole."""
    with path.open("ab", buffering=0) as file:
        file.write(f"{json.dumps(row)}\n".encode())


def finished(
    planned: Sequence[Piece], path: Path, do: Callable[[Piece], Any], *, anew: bool = True
) -> Iterator[tuple[Piece, Any]]:
    """Each planned piece (a dataclass) with its result: a line of ``path``, or done now and added there.

    ``do`` gives what JSON can hold, or None where it was stopped. That is the end here too, and the next call
    goes on from there. A plan that is through is begun anew, unless ``anew`` is False. Lines of other plans
    and versions stay.
    """
    versions = {"sketchy": sketchy.__version__, "torch": torch.__version__}  # other code, other numbers
    keys = [json.dumps(asdict(piece) | versions) for piece in planned]  # type: ignore[call-overload]
    done = {json.dumps(row["run"]): row["result"] for row in rows(path)}
    if anew and done.keys() >= set(keys):
        done = {key: result for key, result in done.items() if key not in keys}
    lines = ({"run": json.loads(key), "result": result} for key, result in done.items())
    write(path, "".join(f"{json.dumps(line)}\n" for line in lines))  # without one that was cut off
    for key, piece in zip(keys, planned, strict=True):
        if key not in done:
            result = do(piece)
            if result is None:
                return
            done[key] = result
            append(path, {"run": json.loads(key), "result": result})
        yield piece, done[key]

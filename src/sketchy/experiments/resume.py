"""To resume work that was stopped: atomic files, checkpoints, and a line for each finished run."""

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
    """Write a file atomically."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_bytes(content.encode() if isinstance(content, str) else content)
    part.replace(path)


def save(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = io.BytesIO()
    torch.save(state, content)
    write(path, content.getvalue())


def load(path: Path) -> dict[str, Any] | None:
    """Read a checkpoint; None if there is none."""
    return torch.load(path, weights_only=True) if path.exists() else None


def refuse_others(directory: Path, theirs: dict[str, Any], mine: dict[str, Any]) -> None:
    """Raise ValueError if ``directory`` holds results of other options; name the differences."""
    differing = [
        f"{name} was {theirs.get(name)} and is now {mine.get(name)}"
        for name in {**mine, **theirs}
        if theirs.get(name) != mine.get(name)
    ]
    if differing:
        raise ValueError(
            f"out={str(directory)!r}: holds results of other options ({'; '.join(differing)}); "
            "choose another directory, or remove this one"
        )


def rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSON-lines file. Incomplete lines (of an interrupted write) are left out."""
    found = []
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            found.append(json.loads(text))
        except json.JSONDecodeError:
            continue
    return found


def append(path: Path, row: dict[str, Any]) -> None:
    """Append a line in a single write, so that neither another process nor an interrupt can split it."""
    with path.open("ab", buffering=0) as file:
        file.write(f"{json.dumps(row)}\n".encode())


def finished(
    planned: Sequence[Piece], path: Path, do: Callable[[Piece], Any], *, anew: bool = True
) -> Iterator[tuple[Piece, Any]]:
    """Each planned piece (a dataclass) with its result, read from ``path`` or computed and added there.

    ``do`` returns the result as JSON types, or None if it was stopped. Then the iteration ends, and the next
    call resumes there. If all results are in ``path`` already, they are computed again, unless ``anew`` is
    False. Lines of other plans and versions are kept.
    """
    versions = {"sketchy": sketchy.__version__, "torch": torch.__version__}  # results may depend on them
    keys = [json.dumps(asdict(piece) | versions) for piece in planned]  # type: ignore[call-overload]
    done = {json.dumps(row["run"]): row["result"] for row in rows(path)}
    if anew and done.keys() >= set(keys):
        done = {key: result for key, result in done.items() if key not in keys}
    lines = ({"run": json.loads(key), "result": result} for key, result in done.items())
    write(path, "".join(f"{json.dumps(line)}\n" for line in lines))  # drops an incomplete line
    for key, piece in zip(keys, planned, strict=True):
        if key not in done:
            result = do(piece)
            if result is None:
                return
            done[key] = result
            append(path, {"run": json.loads(key), "result": result})
        yield piece, done[key]

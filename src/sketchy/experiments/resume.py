"""To resume work that was stopped: the options of a directory, and a line for each finished run."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch

import sketchy
from sketchy.files import append as append
from sketchy.files import read_object, read_rows
from sketchy.files import rows as rows
from sketchy.files import write as write

Piece = TypeVar("Piece")

OPTIONS = "options.json"


def refuse_others(directory: Path, mine: dict[str, Any], *, results: str) -> None:
    """Raise ValueError if ``directory`` holds results of other options; name the differences.

    ``results`` is the name of the file or folder with results. They may be there without their options.
    """
    path = directory / OPTIONS
    if not path.exists():
        if _holds_something(directory / results):
            raise ValueError(
                f"out={str(directory)!r}: holds {results} but not its {OPTIONS}, so the run that wrote it is "
                "not known; choose another directory, or remove this one"
            )
        return
    mine, theirs = json.loads(json.dumps(mine)), read_object(path)
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


def claim(directory: Path, mine: dict[str, Any], *, results: str) -> None:
    """Write the options of a run into its directory, after `refuse_others`."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        refuse_others(directory, mine, results=results)
        if not (directory / OPTIONS).exists():
            write(directory / OPTIONS, json.dumps(mine, indent=2) + "\n")
    except OSError as error:
        raise ValueError(f"out={str(directory)!r}: cannot be used: {error.strerror}") from error


def _holds_something(path: Path) -> bool:
    return any(path.iterdir()) if path.is_dir() else path.exists() and path.stat().st_size > 0


def finished(
    planned: Sequence[Piece],
    path: Path,
    do: Callable[[Piece], Any],
    *,
    read: Callable[[Any], Any] = lambda result: result,
    anew: bool = True,
) -> Iterator[tuple[Piece, Any]]:
    """Each planned piece (a dataclass) with its result, read from ``path`` or computed and added there.

    ``do`` returns the result as JSON types, or None if it was stopped. Then the iteration ends, and the next
    call resumes there. ``read`` makes what is yielded of it. If all results are in ``path`` already, they are
    computed again, unless ``anew`` is False. Lines of other plans and versions are kept. A damaged file
    raises at once.
    """
    versions = {"sketchy": sketchy.__version__, "torch": torch.__version__}  # results may depend on them
    keys = [json.dumps(asdict(piece) | versions) for piece in planned]  # type: ignore[call-overload]

    def known(row: dict[str, Any]) -> tuple[str, Any]:
        key, result = json.dumps(row["run"]), row["result"]
        if key in keys:
            read(result)  # raises if it is damaged
        return key, result

    done = dict(read_rows(path, known)) if path.exists() else {}
    if anew and done.keys() >= set(keys):
        done = {key: result for key, result in done.items() if key not in keys}
    lines = ({"run": json.loads(key), "result": result} for key, result in done.items())
    write(path, "".join(f"{json.dumps(line)}\n" for line in lines))  # drops an incomplete line

    def pieces() -> Iterator[tuple[Piece, Any]]:
        for key, piece in zip(keys, planned, strict=True):
            if key not in done:
                result = do(piece)
                if result is None:
                    return
                done[key] = result
                append(path, {"run": json.loads(key), "result": result})
            yield piece, read(done[key])

    return pieces()

"""Benchmarks that can be interrupted: finished pieces are kept until all are done."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from rich.console import Console
from rich.table import Table

from benchmarks.common.provenance import code
from sketchy.experiments.mistakes import user_mistakes
from sketchy.experiments.resume import finished
from sketchy.files import read_rows, write

Measure = Callable[[str], Any]  # measures the named piece; the result must fit into JSON


@dataclass(frozen=True)
class Piece:
    """A part of a benchmark that is measured together, and what its numbers depend on."""

    name: str
    options: dict[str, Any]
    code: str


@contextmanager
def resumable(
    command: str, names: Iterable[str], options: Any, out: Path, measure: Measure
) -> Iterator[Iterator[tuple[str, Any]]]:
    """All pieces with their results, measured now or before a Ctrl-C.

    Results are kept in a file beside ``out`` until the block ends. A Ctrl-C ends the process at once, and the
    next call measures the interrupted piece again. Results of other options stay in the file for the command
    that they belong to. Results of other code are deleted.
    """
    given = json.loads(json.dumps(asdict(options), default=str))
    this_code = code()
    planned = [Piece(name, given, this_code) for name in dict.fromkeys(names)]
    part = out.with_name(f".{out.name}.part")
    with user_mistakes(command):
        if out.is_dir():
            raise ValueError(f"out={str(out)!r}: is a directory; give a file")
        out.parent.mkdir(parents=True, exist_ok=True)
        _keep(part, [row for row in _pieces(part) if row["run"]["code"] == this_code])
    now = set()

    def do(piece: Piece) -> Any:
        now.add(piece.name)
        return measure(piece.name)

    def pieces() -> Iterator[tuple[str, Any]]:
        for piece, result in finished(planned, part, do, anew=False):
            if piece.name not in now:
                print(f"{piece.name}: already measured, kept in {part}", file=sys.stderr)
            yield piece.name, result

    try:
        yield pieces()
    except KeyboardInterrupt:
        kept = _pieces(part)  # a piece may have been written just before
        _keep(part, kept)
        done = [p for p in planned if any(asdict(p).items() <= row["run"].items() for row in kept)]
        share = f"{len(done)} of {len(planned)} pieces are done"
        print(f"{command}: stopped; the same command continues from here ({share})", file=sys.stderr)
        raise SystemExit(130) from None
    _keep(part, [row for row in _pieces(part) if row["run"]["options"] != given])


def _pieces(part: Path) -> list[dict[str, Any]]:
    """The lines of finished pieces."""

    def checked(row: dict[str, Any]) -> dict[str, Any]:
        row["result"], row["run"]["code"], row["run"]["options"]  # raises if one is missing
        return row

    return read_rows(part, checked) if part.exists() else []


def _keep(part: Path, lines: Sequence[dict[str, Any]]) -> None:
    """Write the lines; without lines there is no file."""
    write(part, "".join(f"{json.dumps(line)}\n" for line in lines))
    if not lines:
        part.unlink()


class Sheet(TypedDict):
    """A table that fits into JSON."""

    title: str
    columns: Sequence[str]
    lines: Sequence[Sequence[str]]  # an empty one is drawn as a separator
    caption: NotRequired[str]


def show(command: str, sheets: Mapping[str, Callable[[], Sheet]], options: Any, console: Console) -> None:
    """Measure and print one table after the other; after a Ctrl-C the finished ones are kept in runs/."""
    kept = Path("runs") / command
    with resumable(command, sheets, options, kept, lambda name: sheets[name]()) as measured:
        for _, sheet in measured:
            table = Table(*sheet["columns"], title=sheet["title"], caption=sheet.get("caption"))
            for line in sheet["lines"]:
                if line:
                    table.add_row(*line)
                else:
                    table.add_section()
            console.print(table)

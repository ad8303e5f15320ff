"""Read the files of run directories and build one page of them."""

from collections.abc import Iterable
from pathlib import Path

from sketchy.experiments.page import Page, Section
from sketchy.experiments.sections import KINDS, Unread
from sketchy.experiments.summary import ResultRow
from sketchy.files import parse, read_rows, told

# Files that commands write in addition to their rows: pictures, checkpoints and the like. They are skipped.
COMPANIONS = {".png", ".md", ".pt", ".html"}
COMPANION_NAMES = (
    "options.json",
    "record.json",
    "gaussian.jsonl",
    "runs.jsonl",
    "control.jsonl",
    "events.out.tfevents",
)


def collect(runs: Iterable[Path]) -> Page:
    """A page with a section for each file of a known kind, and a list of the other files."""
    sections: list[Section] = []
    strange: dict[str, str] = {}
    for path in dict.fromkeys(path for run in runs for path in _files(run)):
        try:
            rows = _read(path)
            kind = next(kind for kind in KINDS if kind.recognises(rows))
            title, blocks = kind.build(path, rows)
            section = Section(title, str(path), [block for block in blocks if not isinstance(block, Unread)])
            Page([section]).body()  # values of a wrong kind may fail only here
        except StopIteration:
            strange[str(path)] = "unknown kind of rows"
        except Exception as error:  # a file may hold anything; the others are still shown
            strange[str(path)] = told(error)
        else:
            sections.append(section)
            strange |= {str(block.path): block.why for block in blocks if isinstance(block, Unread)}
    if not sections:
        named = ", ".join(f"{path} ({why})" for path, why in strange.items())
        raise ValueError(f"there is nothing to show; unsupported files: {named}")
    return Page(sections, strange)


def _files(run: Path) -> list[Path]:
    if run.is_file():
        return [run]
    if not run.is_dir():
        raise ValueError(f"{run}: no such file or directory")
    inside = (path for path in run.rglob("*") if path.is_file())
    shown = [path for path in inside if not any(part.startswith(".") for part in path.relative_to(run).parts)]
    found = [p for p in shown if p.suffix not in COMPANIONS and not p.name.startswith(COMPANION_NAMES)]
    if not found:
        raise ValueError(f"{run}: holds no results of a run")
    return sorted(found)


def _read(path: Path) -> list[ResultRow]:
    """The rows of a .jsonl file, without a last one that was cut off, or the one object of a .json file."""
    if path.suffix not in (".json", ".jsonl"):
        raise ValueError("not a .json or .jsonl file")
    rows = [parse(path.read_bytes())] if path.suffix == ".json" else read_rows(path, lambda row: row)
    if not all(isinstance(row, dict) for row in rows):
        raise ValueError("not an object with names")
    rows = [row for row in rows if row.keys() != {"budget"}]  # the first line of a quality file
    if not rows:
        raise ValueError("no rows")
    return rows

"""Read the files of run directories and build one page of them."""

import json
from collections.abc import Iterable
from pathlib import Path

from sketchy.experiments.page import Page, Section
from sketchy.experiments.sections import KINDS
from sketchy.experiments.summary import ResultRow

# Files that commands write in addition to their rows: pictures, checkpoints and the like. They are skipped.
COMPANIONS = {".png", ".md", ".pt", ".html"}
COMPANION_NAMES = ("options.json", "runs.jsonl", "control.jsonl", "events.out.tfevents")


def collect(runs: Iterable[Path]) -> Page:
    """A page with a section for each file of a known kind, and a list of the other files."""
    sections, strange = [], {}
    for path in dict.fromkeys(path for run in runs for path in _files(run)):
        try:
            rows = _read(path)
            kind = next(kind for kind in KINDS if kind.recognises(rows))
            title, blocks = kind.build(path, rows)
        except StopIteration:
            strange[str(path)] = "unknown kind of rows"
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            strange[str(path)] = (
                f"{error}" if isinstance(error, ValueError) else f"a missing or wrong value: {error!r}"
            )
        else:
            sections.append(Section(title, str(path), blocks))
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
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        rows = [json.loads(text)]
    else:
        whole = text.splitlines() if text.endswith("\n") else text.splitlines()[:-1]
        rows = [json.loads(line) for line in whole if line.strip()]
    # the first line of a quality file is its budget
    rows = [row for row in rows if not (isinstance(row, dict) and row.keys() == {"budget"})]
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise ValueError("no rows" if not rows else "rows are not objects")
    return rows

"""Measured rows on disk, as JSON lines."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from sketchy.files import read_rows, write

Rows = list[dict[str, Any]]
RESULTS = Path(__file__).parents[1] / "results"
QUICK = Path("runs/quick")  # results of --quick


def load(path: Path, by: str) -> Rows:
    """The rows of a speed benchmark; ``by`` is the field that names what was measured."""
    if not (found := read_rows(path, partial(_checked, by))):
        raise ValueError(f"{path}: has no rows; run the benchmark again")
    return found


def _checked(by: str, row: dict[str, Any]) -> dict[str, Any]:
    if not {by, "samples"} <= row.keys():
        raise ValueError(f"expected only rows of this benchmark, with the fields {by} and samples")
    return row


def save(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, "".join(json.dumps(row) + "\n" for row in rows))

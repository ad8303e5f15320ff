"""Measured rows on disk, as JSON lines."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sketchy.experiments.resume import write

Rows = list[dict[str, Any]]
RESULTS = Path(__file__).parents[1] / "results"
QUICK = Path("runs/quick")  # results of --quick


def load(path: Path, by: str) -> Rows:
    """The rows of a speed benchmark; ``by`` is the field that names what was measured."""
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: not a file of JSON lines ({error})") from None
    if not rows or not all(isinstance(row, dict) and {by, "samples"} <= row.keys() for row in rows):
        raise ValueError(f"{path}: expected only rows of this benchmark, with the fields {by} and samples")
    return rows


def save(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, "".join(json.dumps(row) + "\n" for row in rows))

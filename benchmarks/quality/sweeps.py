"""Losses with ``solver="sweeps"``, beside those with eigenproblems: a table for the docs.

python -m benchmarks.quality charlm --optimizers sketchy_soap_sweeps sketchy_shampoo_sweeps --ranks 32
    --rates 1 --out benchmarks/results/sweeps-charlm.jsonl
"""

import math
import statistics
from pathlib import Path

from sketchy.analysis import markdown
from sketchy.experiments import names, quality
from sketchy.experiments.quality import Tuned, Variant
from sketchy.experiments.quality_table import around

TASKS = ("charlm", "autoencoder")
RANK = 32


def table(directory: Path) -> str:
    """A row for each task and optimizer; without results, a sentence."""
    lines = []
    for task in TASKS:
        files = (directory / f"{kind}-{task}.jsonl" for kind in ("quality", "sweeps"))
        results = {run: record for file in files for run, record in quality.load(file).items()}
        found = {each.variant: each for each in quality.tuned(results)}
        for kind in ("sketchy_soap", "sketchy_shampoo"):
            usual, swept = found.get(Variant(kind, RANK)), found.get(Variant(f"{kind}_sweeps", RANK))
            if usual is not None and swept is not None and usual.records and swept.records:
                lines.append([task, names.shown(kind, RANK), *_cells(usual, swept)])
    if not lines:
        return "No results yet. The docstring of `benchmarks/quality/sweeps.py` has the command."
    header = ["task", "optimizer", "eigenproblems", "sweeps", "difference", "seeds"]
    return markdown.table(header, lines, left=("task", "optimizer"))


def _cells(usual: Tuned, swept: Tuned) -> list[str]:
    """Losses, mean and standard deviation; their mean difference over common seeds and its standard error."""
    digits = 3 if max(swept.losses) < 10 else 1
    more = quality.differences(swept.records, usual.records)
    error = statistics.stdev(more) / math.sqrt(len(more)) if len(more) > 1 else math.nan
    difference = f"{statistics.mean(more):+.{digits}f} ± {error:.{digits}f}"
    return [around(usual.losses, digits), around(swept.losses, digits), difference, str(len(more))]

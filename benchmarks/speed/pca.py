"""Measure PCA of the same rows by ours, IncrementalPCA and randomized SVDs: time, memory, error, certificate.

    python -m benchmarks.speed.pca [--rows N] [--rounds N] [--quick]
    python -m benchmarks.speed.pca --table benchmarks/results/pca.jsonl

The rows are image patches, float32, in a file. In each round every method reads and fits them in a process of
its own, on one core. Memory is what that process needed beyond its libraries. Errors are against the dense
covariance of all rows. Rows go to benchmarks/results/pca.jsonl. After a Ctrl-C the same command continues
with the round that was interrupted. Needs Linux, for the memory.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from rich.console import Console
from rich.progress import track

from benchmarks.common.arguments import at_least
from benchmarks.common.provenance import ROOT, machine
from benchmarks.common.results import QUICK, RESULTS, load, save
from benchmarks.common.resumable import resumable
from benchmarks.speed.frequent_directions import image_rows
from benchmarks.speed.pca_worker import FEW_COLUMNS
from benchmarks.speed.step_table import about
from sketchy.analysis.markdown import table
from sketchy.experiments.mistakes import user_mistakes
from sketchy.experiments.summary import ResultRow, quartiles

COMMAND, FILE = "benchmarks.speed.pca", "pca.jsonl"
FEW = 300  # rows of the fit that is not measured
NAMES = {
    "exact": "FrequentDirectionsPCA",
    "subspace": 'FrequentDirectionsPCA, solver="subspace"',
    "incremental": "IncrementalPCA",
    "incremental_rank": "IncrementalPCA, as many components as our sketch has",
    "randomized": 'PCA, svd_solver="randomized"',
    "truncated": "TruncatedSVD of centred rows",
}
WHOLE = ("randomized", "truncated")  # they hold all rows in memory


@dataclass(frozen=True)
class Options:
    """Measure PCA by several methods on the same rows."""

    rows: int = 19_500
    """Image patches, of 1,000 pixels each; there are 19,516."""
    components: int = 20
    """Components of each PCA."""
    rank: int = 64
    """Rank of our sketches."""
    batch: int = 255
    """Rows of a batch; at least the rank, as IncrementalPCA needs."""
    rounds: int = 5
    """Rounds, each with all methods."""
    quick: bool = False
    """Few rows, one round; the results go to runs/quick."""
    out: Path | None = None
    """The file of the results; benchmarks/results/pca.jsonl by default."""
    table: Path | None = None
    """Print the results of this file as a Markdown table, and measure nothing."""


@dataclass(frozen=True)
class Truth:
    """The covariance of all rows, its eigenvalues, and how far a result is from it."""

    covariance: Any
    variances: Any  # descending

    @classmethod
    def of(cls, rows: Any) -> "Truth":
        covariance = np.cov(rows.astype(np.float64), rowvar=False)
        return cls(covariance, np.linalg.eigvalsh(covariance)[::-1])

    def errors(self, components: Any, variances: Any, bounds: Any = None) -> dict[str, Any]:
        """The share of the variance that the best components hold and these miss; the largest error of a
        variance, and what is certified of it, over the largest variance.
        """
        best, V = self.variances[: len(variances)], np.linalg.qr(components.T.astype(np.float64))[0]
        missed = 1 - np.trace(V.T @ self.covariance @ V) / best.sum()
        error = np.abs(variances - best).max() / best[0]
        if bounds is None:
            return {"missed": missed, "error": error, "certified": None, "holds": None}
        certified = np.maximum(bounds[1] - variances, variances - bounds[0]).max() / best[0]
        return {"missed": missed, "error": error, "certified": certified, "holds": holds(bounds, best)}


def holds(bounds: Any, variances: Any) -> bool:
    return bool((bounds[0] <= variances).all() and (variances <= bounds[1]).all())


def measured(method: str, path: Path, options: Options, columns: int, truth: Truth) -> dict[str, Any]:
    """One fit, in a process of its own."""
    sizes = map(str, (columns, options.components, options.rank, options.batch))
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.speed.pca_worker", method, str(path), *sizes],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found = json.loads(ended.stdout)
    with np.load(found.pop("result")) as result:
        names = {"components_": "components", "explained_variance_": "variances"}
        return found | truth.errors(**{names.get(name, name): value for name, value in result.items()})


def measure(options: Options) -> dict[str, Any]:
    """One round: all methods."""
    rows = image_rows(options.rows).numpy()
    truth = Truth.of(rows)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows"
        rows.tofile(path)
        rows[:FEW, : FEW_COLUMNS * options.rank].tofile(path.with_name("few"))
        methods = track(NAMES, "methods", transient=True)
        return {name: measured(name, path, options, rows.shape[1], truth) for name in methods}


ERRORS = ("missed", "error", "certified", "holds")


def rows_of(rounds: Sequence[dict[str, Any]], options: Options) -> list[ResultRow]:
    """A row for each method; its errors are the same in all rounds."""
    sizes = {name: getattr(options, name) for name in ("rows", "components", "rank", "batch")}
    found = []
    for method in NAMES:
        own = [results[method] for results in rounds]
        samples = [
            {"round": i, **{k: v for k, v in one.items() if k not in ERRORS}} for i, one in enumerate(own)
        ]
        found.append({"method": method, **sizes, **{k: own[0][k] for k in ERRORS}, "samples": samples})
    return found


COLUMNS = (
    "method",
    "rows in memory",
    "CPU s",
    "memory, MB",
    "variance missed",
    "error of a variance",
    "certified",
)


def lines(rows: Sequence[ResultRow]) -> Iterator[list[str]]:
    for row in rows:
        seconds = quartiles([sample["cpu"] for sample in row["samples"]])
        memory = quartiles([sample["bytes"] / 1e6 for sample in row["samples"]])[1]
        yield [
            NAMES[row["method"]],
            "all" if row["method"] in WHOLE else "a batch",
            "{1:.2f} ({0:.2f} to {2:.2f})".format(*seconds),
            f"{memory:,.0f}",
            f"{max(0.0, row['missed']):.1e}",
            f"{row['error']:.1e}",
            "none"
            if row["certified"] is None
            else f"{row['certified']:.1e}" + (" (FAILED)" * (not row["holds"])),
        ]


def markdown(rows: Sequence[ResultRow]) -> str:
    first = rows[0]
    found = (
        f"{first['rows']:,} image patches of 1,000 pixels, float32; {first['components']} components, "
        f"rank {first['rank']}, batches of {first['batch']}"
    )
    return f"{table(COLUMNS, lines(rows), left=COLUMNS[:2])}\n\n{found}; {about(first)}"


def page(path: Path) -> str:
    """The table of the docs; a sentence if there are no results."""
    return (
        markdown(load(path, "method"))
        if path.exists()
        else f"No results yet. `python -m {COMMAND}` makes them."
    )


def main(arguments: Sequence[str] | None = None) -> None:
    options = tyro.cli(Options, prog=f"python -m {COMMAND}", args=arguments)
    with user_mistakes(COMMAND):
        if options.table is not None:
            print(markdown(load(options.table, "method")))
            return
        at_least(1, rounds=options.rounds, components=options.components)
        at_least(options.components + 1, rank=options.rank)
        at_least(options.rank, batch=options.batch)
        at_least(FEW, rows=options.rows)
    if options.quick:
        options = Options(rows=2040, rounds=1, quick=True, out=options.out)
    path = options.out or (QUICK if options.quick else RESULTS) / FILE
    names = [f"round {i + 1}" for i in range(options.rounds)]
    with resumable(COMMAND, names, options, path, lambda name: measure(options)) as rounds:
        rows = [{**row, **machine()} for row in rows_of([results for _, results in rounds], options)]
        save(path, rows)
    Console(width=170).print(markdown(rows), f"\nrows: {path}", markup=False)


if __name__ == "__main__":
    main()

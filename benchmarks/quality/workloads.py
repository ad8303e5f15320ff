"""The paper's training runs in the docs: their rows in benchmarks/results, tables and pictures.

    python -m benchmarks.quality.workloads gnn runs/gnn-quarter

RUN is a folder of `sketchy tune` and `sketchy train --best`, or one with spectra. See docs/paper_runs.md.
"""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from tyro.conf import Positional

from benchmarks.common.results import RESULTS, save
from sketchy.analysis import markdown
from sketchy.experiments import plot
from sketchy.experiments.mistakes import user_mistakes
from sketchy.experiments.page import Table
from sketchy.experiments.workloads import report
from sketchy.experiments.workloads.registry import workload
from sketchy.experiments.workloads.search_table import FINAL_ROWS, TRIAL_ROWS
from sketchy.experiments.workloads.watched import CONTROL, SPECTRA
from sketchy.files import rows

FOLDER = RESULTS / "workloads"
WORKLOADS = ("gnn", "resnet50", "conformer")


def finals_table(name: str) -> str:
    """Final results and the picture of their curves; a sentence if there are none."""
    found = rows(FOLDER / name / FINAL_ROWS)
    if not found:
        return (
            f"No results yet. [These commands](paper_runs.md#search-finals-report) make them, with `{name}`."
        )
    return (
        f"{_table(report.finals(found)[1][0])}\n\n![{name}: test curves of five seeds](workload-{name}.png)"
    )


def trials_table(name: str) -> str:
    """What each optimizer spent and found; nothing if there are no trials."""
    found = rows(FOLDER / name / TRIAL_ROWS)
    return _table(report.trials(found)[1][0]) if found else ""


def picture(name: str) -> bytes:
    """Test error, test loss and training loss against steps: mean of seeds, ± 1.96 standard errors."""
    found = rows(FOLDER / name / FINAL_ROWS)
    metric, by_optimizer = workload(name).metric, report.by_optimizer_of(found)
    panels: dict[str, Any] = {}
    for title, of in (
        (f"test {report.error_name(metric)}", lambda look: report.as_error(metric, look.test_metric)),
        ("test loss", lambda look: look.test_loss),
        ("training loss", lambda look: look.train_loss),
    ):
        panels[title] = {}
        for optimizer, records in by_optimizer.items():
            steps, means = report.at_looks(records, of)
            curve = steps, [mean.value for mean in means]
            panels[title][report.SHOWN.get(optimizer, optimizer)] = curve, [mean.half for mean in means]
    return plot.bands(panels, title=f"{name}. {report.about(found[0])}", x="step")


def drawable(name: str) -> bool:
    return bool(rows(FOLDER / name / FINAL_ROWS))


def _table(table: Any) -> str:
    assert isinstance(table, Table)
    text = markdown.table(list(table.header), [list(row) for row in table.rows], left=(table.header[0], "at"))
    return f"{text}\n\n{table.caption}"


def copied(name: str, run: Path) -> list[Path]:
    """The files that were written: the rows of a run, of spectra those of the largest side only."""
    written = []
    for file in (FINAL_ROWS, TRIAL_ROWS, SPECTRA, CONTROL):
        if found := rows(run / file):
            if file == SPECTRA:
                longest = max(row["dim"] for row in found)
                found = [row for row in found if row["dim"] == longest]
            if wrong := [row for row in found if row.get("workload", name) != name]:
                raise ValueError(f"{run / file}: has rows of {wrong[0]['workload']}, not of {name}")
            save(FOLDER / name / file, found)
            written.append(FOLDER / name / file)
    if not written:
        raise ValueError(f"{run}: has none of {FINAL_ROWS}, {TRIAL_ROWS} and {SPECTRA}")
    return written


def main(
    name: Positional[Literal["gnn", "resnet50", "conformer"]],
    run: Positional[Annotated[Path, tyro.conf.arg(metavar="RUN")]],
) -> None:
    """Copy the rows of a run into benchmarks/results/workloads; then `python -m benchmarks.pages` shows them.

    Args:
        name: The workload.
        run: The folder of the run.
    """
    with user_mistakes("benchmarks.quality.workloads"):
        print(json.dumps([str(path) for path in copied(name, run)]))


if __name__ == "__main__":
    tyro.cli(main, prog="python -m benchmarks.quality.workloads")

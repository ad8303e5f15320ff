"""The comparison of a budget with equal ranks: runs, tables and the picture."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tyro")
pytest.importorskip("matplotlib")
pytest.importorskip("sklearn")

from benchmarks.quality import budget
from benchmarks.quality.budget import BUDGET, EQUAL, SHAPES

from sketchy.experiments import quality
from sketchy.experiments.quality import Run, Variant
from sketchy.experiments.training import Look, Record
from sketchy.files import append


def row(name: str, seed: int, loss: float, seconds: float) -> dict[str, Any]:
    record = Record("charlm", seed, 400, 400, [Look(400, loss, None)], optimizer_bytes=2_000_000)
    record.seconds, record.optimizer_seconds, record.cpu_seconds = 10.0, seconds, 8.0
    return quality.line(Run(Variant(name, 8), 0.004, seed, 400), record)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    losses = {EQUAL: (2.0, 2.2, 2.1), BUDGET: (1.9, 2.0, 2.0), SHAPES: (1.95, 2.2, 2.0)}
    for name, own in losses.items():
        for seed, loss in enumerate(own):
            append(budget.file(tmp_path, "charlm"), row(name, seed, loss, 6.0 if name == BUDGET else 5.0))
    for name, step, rank, error in ((EQUAL, 400, 16, 0.5), (BUDGET, 100, 16, 0.5), (BUDGET, 400, 24, 0.25)):
        axes = [["w", "left", rank, 0.75, error], ["w", "right", 4, 0.5, error]]
        key = {"task": "charlm", "optimizer": name, "rank": 16}
        append(tmp_path / budget.WATCHED, {**key, "step": step, "axes": axes})
    return tmp_path


def test_differences_are_over_common_seeds(results: Path) -> None:
    line = budget.table(budget.load(results)).splitlines()[-1]
    assert [cell.strip() for cell in line.strip("|").split("|")] == [
        *("charlm", "8", "2.00", "2.100 ± 0.100", "2.050 ± 0.132", "1.967 ± 0.058"),
        *("-0.050 ± 0.029", "-0.133 ± 0.033", "1.20x"),
    ]


def test_errors_are_sums_over_all_sketches_at_the_end(results: Path) -> None:
    line = budget.errors_table(budget.watched(results / budget.WATCHED)).splitlines()[-1]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells == ["charlm", "16", "1.25", "1.25", "1.00", "0.50", "4 to 24"]


def test_the_page_has_the_picture_if_its_run_was_watched(results: Path, tmp_path: Path) -> None:
    assert "ranks.png" in budget.page(results)
    assert budget.picture(results).startswith(b"\x89PNG")
    assert budget.page(tmp_path / "nothing").startswith("No results yet.")


def test_runs_continue_where_they_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The three have about the same bytes, and a second command does nothing."""
    monkeypatch.chdir(tmp_path)
    arguments = ["digits", "--quick", "--ranks", "8", "--steps", "3"]
    budget.main(arguments)
    path = budget.file(tmp_path / "runs/quick", "digits")
    found = {run.variant.optimizer: r.optimizer_bytes for run, r in quality.load(path).items()}
    assert set(found) == {EQUAL, BUDGET, SHAPES}
    assert 0.95 * found[EQUAL] < found[BUDGET] <= found[EQUAL]
    before = path.read_text(), (tmp_path / "runs/quick" / budget.WATCHED).read_text()
    budget.main(arguments)
    assert (path.read_text(), (tmp_path / "runs/quick" / budget.WATCHED).read_text()) == before


def test_unknown_names_are_refused() -> None:
    with pytest.raises(SystemExit):
        budget.main(["charlm", "--optimizers", "adamw"])

"""Rows of the paper's training runs become tables and pictures of the docs."""

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.quality import workloads

from sketchy.experiments.workloads.report import Mean, about


def final(seed: int, test_loss: float, **settings: Any) -> dict[str, Any]:
    """A run with two looks after the first."""
    looks = [
        {"step": step, "train_loss": 0.5, "lr": 0.0, "gradient_norm": 1.0, "validation_loss": 0.4}
        | {"validation_metric": 0.3, "test_loss": loss, "test_metric": 0.25}
        for step, loss in ((0, 0.7), (50, test_loss - 0.1), (100, test_loss))
    ]
    record = {"steps": 100, "step": 100, "looks": looks, "ended": "finished", "cpu_seconds": 2.0}
    run = {"workload": "gnn", "scale": "quarter", "data": "tox21", "optimizer": "adamw", "seed": seed}
    return run | {"settings": settings, "record": record | {"optimizer_bytes": 10**6}}


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(workloads, "FOLDER", tmp_path / "results")
    rows = [final(1, 0.5), final(2, 0.7)]
    (tmp_path / "finals.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spectra = [{"dim": dim, "step": 1} for dim in (8, 4, 8)]
    (tmp_path / "spectra.jsonl").write_text("".join(json.dumps(row) + "\n" for row in spectra))
    workloads.copied("gnn", tmp_path)
    return tmp_path


def test_the_table_has_means_of_seeds_with_their_intervals_and_the_lowest_test_loss(copied: Path) -> None:
    line = workloads.finals_table("gnn").splitlines()[2].split(" | ")
    half = 1.96 * 0.1 * 2**0.5 / 2**0.5  # s of 0.5 and 0.7 is 0.1 √2, and n is 2
    assert line[1:3] == ["2 of 2", "0.7500 ± 0.0000"]
    assert line[4:7] == [f"0.6000 ± {half:.4f}", f"0.5000 ± {half:.4f}", "50"]
    assert workloads.picture("gnn").startswith(b"\x89PNG")
    assert Mean.of([3.0]) == Mean(3.0, 0.0)


def test_of_spectra_only_the_largest_side_is_copied(copied: Path) -> None:
    rows = (copied / "results" / "gnn" / "spectra.jsonl").read_text().splitlines()
    assert [json.loads(row)["dim"] for row in rows] == [8, 8]


def test_rows_of_another_workload_and_empty_folders_are_refused(copied: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has rows of gnn, not of conformer"):
        workloads.copied("conformer", copied)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="has none of"):
        workloads.copied("gnn", tmp_path / "empty")


def test_a_caption_names_what_was_changed_beside_the_scale() -> None:
    said = about(final(1, 0.5, steps=60, lr=0.5, width=64))
    assert said.startswith("Differs from the paper: Tox21") and said.endswith("But here steps=60.")
    assert "But here" not in about(final(1, 0.5, steps=1000))
    assert about(final(1, 0.5) | {"data": "pcba"}).endswith("But here data: pcba.")

"""PCA by several methods: errors are those against the covariance, and a fit in a process is measured."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.speed import pca
from benchmarks.speed.pca_worker import METHODS


def rows() -> Any:
    """The exact covariance diag(9, 4, 1)."""
    corners = np.array([[a, b, c] for a in (-1, 1) for b in (-1, 1) for c in (-1, 1)]) * (7 / 8) ** 0.5
    return corners * [3, 2, 1] + 5


def test_errors_are_those_against_the_covariance() -> None:
    truth, axes = pca.Truth.of(rows()), np.eye(3)
    exact = truth.errors(axes[:2], np.array([9.0, 4.0]))
    assert exact["missed"] == pytest.approx(0) and exact["error"] == pytest.approx(0, abs=1e-12)
    assert exact["certified"] is None and exact["holds"] is None
    wrong = truth.errors(axes[[0, 2]], np.array([9.0, 1.0]), np.array([[8.0, 1.0], [9.0, 3.9]]))
    assert wrong["missed"] == pytest.approx(3 / 13) and wrong["error"] == pytest.approx(3 / 9)
    assert wrong["certified"] == pytest.approx(2.9 / 9) and wrong["holds"] is False
    assert truth.errors(axes[:1], np.array([9.0]), np.array([[8.9], [9.1]]))["holds"] is True


def test_a_bound_that_fails_is_told_in_the_table() -> None:
    one = {
        "cpu": 1.0,
        "wall": 1.0,
        "bytes": 10**7,
        "missed": 0.0,
        "error": 0.1,
        "certified": 0.05,
        "holds": False,
    }
    found = pca.rows_of([dict.fromkeys(pca.NAMES, one)] * 2, pca.Options())
    assert [len(row["samples"]) for row in found] == [2] * len(METHODS) and METHODS.keys() == pca.NAMES.keys()
    first = next(pca.lines(found))
    assert first[-1] == "5.0e-02 (FAILED)" and first[2:4] == ["1.00 (1.00 to 1.00)", "10"]


def test_without_results_the_page_says_how_to_make_them(tmp_path: Path) -> None:
    assert pca.page(tmp_path / "pca.jsonl") == "No results yet. `python -m benchmarks.speed.pca` makes them."


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")
@pytest.mark.parametrize("method", ["exact", "randomized"])
def test_a_fit_in_a_process_of_its_own_is_measured(method: str, tmp_path: Path) -> None:
    options = pca.Options(rows=20_000, components=3, rank=8, batch=50)
    X = (
        np.random.default_rng(0).standard_normal((20_000, 100), dtype=np.float32)
        * np.arange(100, 0, -1) ** -1.0
    )
    X = X.astype(np.float32)
    X.tofile(tmp_path / "rows")
    X[:300, :16].tofile(tmp_path / "few")
    found = pca.measured(method, tmp_path / "rows", options, 100, pca.Truth.of(X))
    assert found["cpu"] > 0 and found["missed"] < 0.01
    assert (found["bytes"] > X.nbytes) == (method == "randomized")
    assert found["holds"] is (True if method == "exact" else None)

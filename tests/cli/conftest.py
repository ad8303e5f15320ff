"""A directory of runs that the tests of the report share."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of every kind."""
    for package in ("tyro", "sklearn", "matplotlib", "plotly"):
        pytest.importorskip(package)
    from report_runs import write_runs

    root = tmp_path_factory.mktemp("runs")
    write_runs(root)
    return root

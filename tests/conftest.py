"""One thread: the matrices are small, and results then repeat to the bit. Seeds are a fixture."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in a shell's background job; tests send Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)
examples = int(os.environ.get("SKETCHY_EXAMPLES", "100"))  # of a property; fewer for mutants
settings.register_profile(
    "default", deadline=None, max_examples=examples, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("default")


@pytest.fixture
def seed() -> int:
    """The seed of all tests; `SKETCHY_SEED=7 make test` uses another."""
    return int(os.environ.get("SKETCHY_SEED", "0"))


@pytest.fixture
def rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def blind() -> Iterator[None]:
    """The code path of accelerators, where no value is read."""
    from sketchy.core.tasks import without_reading

    with without_reading():
        yield


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with runs of every kind that the report knows."""
    for package in ("tyro", "sklearn", "matplotlib", "plotly"):
        pytest.importorskip(package)
    from report_runs import write_runs

    root = tmp_path_factory.mktemp("runs")
    write_runs(root)
    return root

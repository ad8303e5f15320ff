"""One thread: the matrices are small, and results then repeat to the bit. Seeds are a fixture.

`SKETCHY_DEVICE=cuda make test` builds the tensors of the optimizers', the sketch's and the learners' tests on
another device. "standin" is one for machines without: see `stand_in`.
"""

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings
from torch.overrides import TorchFunctionMode

torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in a shell's background job; tests send Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)
examples = int(os.environ.get("SKETCHY_EXAMPLES", "100"))  # of a property; fewer for mutants
settings.register_profile(
    "default", deadline=None, max_examples=examples, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("default")

DEVICE = os.environ.get("SKETCHY_DEVICE", "cpu")
HERE = Path(__file__).parent
ON_DEVICE = ("core/", "optim/", "oco/", "test_frequent_directions")
if DEVICE == "standin":
    import stand_in

    stand_in.register()


class DrawnByTheHost(TorchFunctionMode):
    """Random numbers of a generator are drawn by the host and copied: they are the same on all devices."""

    def __torch_function__(
        self, function: Any, types: Sequence[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("generator") is None or kwargs.get("device") is not None:
            return function(*args, **kwargs)
        return function(*args, **kwargs, device="cpu").to(DEVICE)


@contextmanager
def on_device(path: Path) -> Iterator[None]:
    """Inside, tensors are made on the device, if this file has tests for it."""
    here = path.is_relative_to(HERE) and path.relative_to(HERE).as_posix().startswith(ON_DEVICE)
    if DEVICE == "cpu" or not here:
        yield
        return
    with torch.device(DEVICE), DrawnByTheHost():
        yield


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Any:
    with on_device(collector.path):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Any:
    with on_device(item.path):
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`cpu_only(reason)`: skip a test on other devices."""
    for item in items:
        if DEVICE != "cpu" and (mark := item.get_closest_marker("cpu_only")):
            item.add_marker(pytest.mark.skip(reason=f"on the CPU only: {mark.args[0]}"))


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

"""The growth of a step: exponents are those of the sizes that were changed."""

from typing import Any

import pytest
from benchmarks.speed import scaling


def row(size: int, cpu: float, memory: int, error: str | None = None) -> dict[str, Any]:
    samples = [{"round": i, "cpu": cpu * factor, "wall": cpu} for i, factor in enumerate((0.9, 1, 1.2))]
    known = {"optimizer": "peer", "variable": "m", "profile": None, "error": error}
    return {**known, "size": size, "samples": samples, "state_bytes": memory}


def test_exponents_of_time_and_memory_are_fitted_apart() -> None:
    rows = [row(size, 1e-6 * size**2, 3 * size) for size in (64, 128, 256)]
    ((_, _, sizes, _, time, last, _, memory, _),) = scaling.fits(rows)
    assert (sizes, time, last, memory) == ("64, 128, 256", "2.00", "2.00", "1.00")


def test_one_that_fails_has_its_message_for_an_answer() -> None:
    ((_, name, message, *_),) = scaling.fits([row(64, 1.0, 1), row(128, 1.0, 1, error="too large")])
    assert (name, message) == ("peer", "too large")


@pytest.mark.parametrize(
    ("variable", "shape"), [("m", (64, 1024)), ("n", (1024, 64)), ("rank", (1024, 1024))]
)
def test_one_size_is_changed_at_a_time(variable: str, shape: tuple[int, int]) -> None:
    ((_, weight),) = scaling.problem(variable, 64).parameters()
    assert tuple(weight.shape) == shape

"""Long runs: bases stay orthonormal, certificates hold, memory stays flat, and the loss is near AdamW's."""

import pytest
from benchmarks.common.results import RESULTS, load
from benchmarks.quality import soak
from benchmarks.quality.soak import BETA2, DTYPES, OPTIMIZERS, growth, worst

from sketchy.experiments.summary import ResultRow

ORTHONORMAL = 20  # largest entry of UᵀU - I, in eps of the stored dtype
FLAT = (0, 8, 256)  # growth of tensors, blocks and bytes: a few Python numbers
LOSS = 4  # times AdamW's, or AdaGrad's for β₂ = 1; our steps are about twice as long, and noise counts more


def check(row: ResultRow, flat: tuple[int, ...] = FLAT) -> None:
    assert row["finite"]
    assert worst(row, "orthonormality") <= ORTHONORMAL
    assert worst(row, "error") <= 1  # ‖C - B Bᵀ‖ / error_bound, with the dense C
    assert all(grown <= most for grown, most in zip(growth(row), flat, strict=False)), growth(row)


def check_loss(row: ResultRow) -> None:
    assert row["loss"] <= LOSS * row["peer_loss"], row["loss"]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("beta2", BETA2)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_twenty_thousand_steps(name: str, dtype: str, beta2: float) -> None:
    row = soak.soak(name, dtype, beta2)
    check(row)
    check_loss(row)


def test_the_results_are_within_the_limits() -> None:
    if not (RESULTS / soak.FILE).exists():
        pytest.skip("no results yet; python -m benchmarks.quality.soak makes them")
    for row in load(RESULTS / soak.FILE, "optimizer"):
        check(row)
        check_loss(row)


@pytest.mark.cpu_only("it measures the memory of the CPU")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_short_run_has_the_same_checks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "PERIOD", 10)
    row = soak.soak(name, "bfloat16", 0.999, steps=200)
    check(row, FLAT[:1])  # other tests in this process use Python's memory, too
    assert row["traced"][0] > 0 and all(sample["bound"] > 0 for sample in row["samples"])

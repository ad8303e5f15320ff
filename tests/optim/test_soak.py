"""Long runs: bases stay orthonormal, certificates hold, memory stays flat, and the loss is near AdamW's."""

import pytest
from benchmarks.quality import soak
from benchmarks.quality.soak import BETA2, DTYPES, OPTIMIZERS, growth, worst

from sketchy.experiments.summary import ResultRow

ORTHONORMAL = 20  # largest entry of UᵀU - I, in eps of the stored dtype
FLAT = (
    0,
    8,
    256,
)  # tensors and blocks of the second half, bytes of the last twentieth: a few numbers of Python


def check(row: ResultRow) -> None:
    assert row["finite"]
    assert worst(row, "orthonormality") <= ORTHONORMAL
    assert worst(row, "error") <= 1  # ‖C - B Bᵀ‖ / error_bound, with the dense C
    assert all(grown <= most for grown, most in zip(growth(row), FLAT, strict=True)), growth(row)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("beta2", BETA2)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_twenty_thousand_steps(name: str, dtype: str, beta2: float) -> None:
    check(soak.soak(name, dtype, beta2))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_short_run_has_the_same_checks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "PERIOD", 20)
    row = soak.soak(name, "bfloat16", 0.999, steps=400)
    check(row)
    assert row["traced"][0] > 0 and all(sample["bound"] > 0 for sample in row["samples"])

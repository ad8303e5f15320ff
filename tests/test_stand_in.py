"""Tests that run again on a device with values, though without hardware: `stand_in`."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SAMPLE = (
    "on_stand_in.py::test_the_device_refuses_what_a_gpu_refuses_and_notes_what_makes_a_host_wait",
    "on_stand_in.py::test_after_the_first_one_a_step_copies_nothing_and_no_step_reads_a_value",
    "core/test_operator.py",
    "optim/test_grafts.py",
    "oco/test_loss.py",
    "oco/test_every_learner.py::test_two_runs_agree_bit_for_bit",
)
WHOLE = (
    "on_stand_in.py",
    "core",
    "optim",
    "oco",
    *(f"test_frequent_directions{x}.py" for x in ("", "_state")),
)


@pytest.mark.parametrize("tests", [SAMPLE, pytest.param(WHOLE, marks=pytest.mark.slow)], ids=["some", "all"])
def test_they_pass_on_a_device_with_values(tests: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", HERE.parent]
    ran = subprocess.run(
        [*command, *(HERE / name for name in tests)],
        env={**os.environ, "SKETCHY_DEVICE": "standin", "SKETCHY_EXAMPLES": "5"},
        cwd=HERE.parent,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout[-10_000:] + ran.stderr

"""Ctrl-C in a terminal: every long command saves, says how to resume, and exits with 130."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("tyro")
pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")

# a command that would take long, and the file in which its first results appear
LONG = {
    "demo": ("demo --steps 40 --seeds 500", "runs.jsonl"),
    "spectra": ("spectra --steps 100000 --every 1", "spectra.jsonl"),
    "control": ("spectra --control --trials 500", "control.jsonl"),
}


@pytest.mark.parametrize("name", LONG)
def test_ctrl_c_leaves_whole_lines_and_says_how_to_go_on(name: str, tmp_path: Path) -> None:
    words, file = LONG[name]
    command = [sys.executable, "-c", "from sketchy.cli import main; main()", *words.split(), "--out", "out"]
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    lines, until = tmp_path / "out" / file, time.monotonic() + 240
    while not (lines.exists() and lines.stat().st_size) and time.monotonic() < until:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    shown, errors = process.communicate(timeout=240)
    assert process.returncode == 130, errors
    assert (shown + errors).count("stopped") == 1 and "run the same command to resume" in shown + errors
    assert "Traceback" not in errors
    assert lines.read_text().endswith("}\n")

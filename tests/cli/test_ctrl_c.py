"""Ctrl-C in a terminal: a command ends within two seconds, a long one has saved and says how to resume."""

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
    command = [sys.executable, "-m", "sketchy", *words.split(), "--out", "out"]
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


ENDLESS = {  # commands that would take long
    "demo": "demo --steps 400 --seeds 500",
    "memory": "memory --model sketchy.experiments.architectures:gpt2_xl --budget 8GiB --shards 8",
    "sketch": "sketch --ranks 4 8 16 32 48 60 63 64",
    "spectra": "spectra --steps 100000 --every 1",
    "control": "spectra --control --trials 500",
    "oco": "oco --data digits --learners full-adagrad ggt",
    "counterexample": "counterexample --rounds 40000 80000",
    "doctor": "doctor --device cpu",
    "report": "report RESULTS --out report.html",
    "bench": "bench frequent_directions",
    "train": "train gnn --scale tiny --set steps=1000000 look_every=1000000",
    "tune": "tune gnn --scale tiny --trials 1000",
}
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def ended_after(code: str, words: list[str], delay: float, cwd: Path) -> tuple[float, int, str]:
    """Seconds from a Ctrl-C to the end of a process, its status (of a signal: negative), and its words."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
    )
    time.sleep(delay)
    began = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    said = process.communicate(timeout=60)[0]
    return time.monotonic() - began, process.returncode, said


def test_every_command_is_in_the_table() -> None:
    from sketchy.cli import COMMANDS

    assert {words.split()[0] for words in ENDLESS.values()} == set(COMMANDS)


@pytest.mark.parametrize("name", ENDLESS)
@pytest.mark.parametrize(
    "delay", [0.5, *(pytest.param(delay, marks=pytest.mark.slow) for delay in (0.3, 1, 2, 3, 5, 8))]
)
def test_a_command_ends_within_two_seconds_at_any_stage(name: str, delay: float, tmp_path: Path) -> None:
    words = ENDLESS[name].replace("RESULTS", str(RESULTS)).split()
    code = "from sketchy.cli import program; program()"
    seconds, code_of_exit, said = ended_after(code, words, delay, tmp_path)
    if code_of_exit == 0:  # it was faster
        pytest.skip("it had ended before")
    assert seconds < 2, said
    assert code_of_exit in (130, -signal.SIGINT), said  # the latter before it begins, or after its end


@pytest.mark.parametrize("stubborn", ["except KeyboardInterrupt: pass", "finally: time.sleep(20)"])
def test_what_swallows_or_delays_a_ctrl_c_is_ended_with_its_workers(stubborn: str, tmp_path: Path) -> None:
    code = (
        "import multiprocessing, time\n"
        "from sketchy.cli.mistakes import last_words\n"
        "from sketchy.cli.patience import patience\n"
        "with last_words('x', debug=False), patience('x: stopped while it was busy'):\n"
        "    worker = multiprocessing.get_context('fork').Process(target=time.sleep, args=(60,))\n"
        "    worker.start()\n"
        "    open('worker', 'w').write(str(worker.pid))\n"
        "    while True:\n"
        "        try: time.sleep(20)\n"
        f"        {stubborn}\n"
    )
    seconds, status, said = ended_after(code, [], 2, tmp_path)
    assert 0.5 < seconds < 2 and status == 130
    assert said.splitlines()[-1] == "x: stopped while it was busy"
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "worker").read_text()), 0)


def test_a_command_that_ends_by_itself_is_left_alone(tmp_path: Path) -> None:
    code = (
        "import time\n"
        "from sketchy.cli.patience import PATIENCE, patience\n"
        "try:\n"
        "    with patience('never said'): time.sleep(20)\n"
        "except KeyboardInterrupt: time.sleep(2 * PATIENCE); raise SystemExit(7)\n"
    )
    assert ended_after(code, [], 1, tmp_path)[1:] == (7, "")

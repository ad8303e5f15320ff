"""`sketchy oco`: its files, its error messages, and Ctrl-C."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sketchy.cli.oco import learner_names, oco
from sketchy.oco import LEARNERS

# The real command, which sends itself (and its workers, as a terminal does) a real SIGINT on the way.
INTERRUPTED = """
import os, signal
import tyro
from sketchy.cli.oco import oco
from sketchy.experiments import sweep

run = sweep.run

def interrupted(*args, report, **options):
    sent = []
    def report_and_interrupt(name, rounds):
        report(name, rounds)
        if rounds >= 640 and not sent:
            sent.append(os.killpg(os.getpid(), signal.SIGINT))
    return run(*args, report=report_and_interrupt, **options)

if __name__ == "__main__":
    sweep.run = interrupted
    tyro.cli(oco)
"""


def rows(out: Path) -> list[dict[str, object]]:
    found = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    for row in found:
        assert row.pop("seconds") > 0
    return found


def test_help_lists_the_learners() -> None:
    assert learner_names() == list(LEARNERS)


def test_it_writes_options_rows_table_and_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "deep" / "out"
    oco("digits", out, learners=("ogd,adagrad",), rows=150, grid=5, processes=1)
    assert json.loads((out / "options.json").read_text())["learners"] == ["ogd", "adagrad"]
    found = rows(out)
    assert [row["learner"] for row in found] == ["ogd"] * 5 + ["adagrad"] * 5
    assert {row["rows"] for row in found} == {150}
    assert (out / "table.md").read_text().count("\n| ") == 4
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert not list(out.rglob(".*"))  # no half-written files
    assert "adagrad" in capsys.readouterr().out
    oco("digits", out, learners=("ogd", "adagrad"), rows=150, grid=5, processes=1)  # again: the same, at once
    assert rows(out) == found


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data": "nothing"}, "data='nothing': no such file or known data set; known are a9a"),
        ({"learners": ("sgd",)}, "learners='sgd': must be distinct ones of ada-fd, ada-lr"),
        ({"rows": 0}, "rows=0: must be from 1 to 1797"),
        ({"grid": 0}, "grid=0: must be at least 1"),
        ({"processes": 0}, "processes=0: must be at least 1"),
        ({"out": Path(__file__)}, "cannot be used"),
        ({"data_dir": Path(__file__), "data": "a9a"}, "is not a directory"),
        ({"sketch_size": 1, "learners": ("s-adagrad",)}, "sketch_size=1"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: dict[str, object], message: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        oco(**{"data": "digits", "out": tmp_path / "out", "learners": ("ogd",), **options})  # type: ignore[arg-type]
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("sketchy oco: ")
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_other_options_for_the_same_directory_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    oco("digits", tmp_path, learners=("ogd",), rows=100, grid=2, processes=1)
    with pytest.raises(SystemExit) as caught:
        oco("digits", tmp_path, learners=("ogd",), rows=100, grid=3, processes=1)
    assert caught.value.code == 2
    assert "grid was 2 and is now 3" in capsys.readouterr().err


@pytest.mark.parametrize("processes", ["2", pytest.param("1", marks=pytest.mark.slow)])
def test_interrupted_by_a_signal_and_resumed_equals_uninterrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: str
) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((12_000, 5)).round(3), rng.choice([-1, 1], 12_000)
    lines = (
        f"{label} " + " ".join(f"{i}:{v}" for i, v in enumerate(x, 1)) + "\n"
        for x, label in zip(X, y, strict=True)
    )
    (tmp_path / "data").write_text("".join(lines))
    (tmp_path / "command.py").write_text(INTERRUPTED)

    options = {"data": "data", "learners": ("ogd", "adagrad"), "grid": 3}
    words = ("--data", "data", "--learners", "ogd", "adagrad", "--grid", "3", "--processes", processes)
    command = (sys.executable, "command.py", *words, "--out", "stopped")
    stopped = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, start_new_session=True)
    assert stopped.returncode == 130, stopped.stderr
    assert "run the same command to resume" in stopped.stdout
    assert not (tmp_path / "stopped" / "table.md").exists()
    monkeypatch.chdir(tmp_path)
    oco(**options, out=Path("stopped"), processes=1)  # type: ignore[arg-type]
    oco(**options, out=Path("whole"), processes=1)  # type: ignore[arg-type]
    assert rows(Path("stopped")) == rows(Path("whole"))

"""`sketchy train` and `sketchy tune` from outside: signals, torchrun, dry runs, finals."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tyro")

from sketchy.cli import main

TINY = ("gnn", "--scale", "tiny", "--optimizer", "sketchy-soap", "--set", "steps=40", "look_every=5")


def run(*words: str) -> int:
    try:
        main(words)
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def curve(folder: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl, without times."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def test_sigterm_saves_and_the_same_command_ends_with_the_numbers_of_a_whole_run(tmp_path: Path) -> None:
    stopped, whole = tmp_path / "stopped", tmp_path / "whole"
    process = subprocess.Popen(
        [sys.executable, "-m", "sketchy", "train", *TINY, "--out", str(stopped)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    metrics = stopped / "metrics.jsonl"
    while not (metrics.exists() and metrics.read_text().count("\n") >= 3):
        assert process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "run the same command to resume" in said
    (checkpoint,) = stopped.glob("checkpoint-*.pt")
    assert 10 <= int(checkpoint.stem.partition("-")[2]) < 40
    for folder in (stopped, whole):
        assert run("train", *TINY, "--out", str(folder)) == 0
    assert curve(stopped) == curve(whole)
    assert not list(stopped.glob("*.pt"))


@pytest.mark.slow
def test_torchrun_gives_the_numbers_of_one_process(tmp_path: Path) -> None:
    two, one = tmp_path / "two", tmp_path / "one"
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    words = ("gnn", "--scale", "tiny", "--optimizer", "adamw", "--set", "steps=6", "look_every=2")
    subprocess.run([*launch, "sketchy", "train", *words, "--out", str(two)], check=True, timeout=300)
    assert run("train", *words, "--out", str(one)) == 0
    for ours, theirs in zip(curve(two), curve(one), strict=True):
        assert ours["validation_loss"] == pytest.approx(theirs["validation_loss"], rel=1e-5)
    tuned = tmp_path / "tuned"
    search = ("gnn", "--scale", "tiny", "--optimizers", "adamw", "--trials", "2", "--out", str(tuned))
    subprocess.run([*launch, "sketchy", "tune", *search], check=True, timeout=300)
    assert len((tuned / "trials.jsonl").read_text().splitlines()) == 2


def test_a_dry_run_counts_and_trains_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "gnn", "--data", "synthetic", "--optimizer", "adamw", "--dry-run") == 2
    said = capsys.readouterr()
    assert "there are only 80 rows" in said.err  # a batch has 1024
    assert run("train", "gnn", "--scale", "tiny", "--dry-run", "--out", str(tmp_path / "x")) == 0
    said = capsys.readouterr()
    assert "synthetic: 80 rows to train, 20 to validate, 20 to test" in " ".join(said.out.split())
    assert "weights" in said.out and "KiB" in said.out
    assert not list(tmp_path.iterdir())


def test_finals_need_a_search_with_a_common_trial(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "--best", str(tmp_path)) == 2
    assert "holds no search" in capsys.readouterr().err


def test_finals_of_another_workload_or_with_searched_settings_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    search = ("gnn", "--scale", "tiny", "--optimizers", "adamw", "--trials", "1", "--set", "tuning_steps=1")
    assert run("tune", *search, "--out", str(tmp_path)) == 0
    assert run("train", "conformer", "--best", str(tmp_path)) == 2
    assert "is a search of gnn, not of conformer" in capsys.readouterr().err
    assert run("train", "gnn", "--best", str(tmp_path), "--lr", "0.1") == 2
    assert "lr: was searched" in capsys.readouterr().err


def test_a_run_that_diverged_has_status_1_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--optimizer", "adamw", "--lr", "1e30", "--set", "warmup=0", "--out", str(tmp_path / "run"))
    assert run("train", "gnn", "--scale", "tiny", *words) == 1
    assert "diverged" in capsys.readouterr().err


def test_the_help_names_all_optimizers_and_workloads(capsys: pytest.CaptureFixture[str]) -> None:
    from sketchy.experiments.workloads.optimizers import OPTIMIZERS
    from sketchy.experiments.workloads.registry import PLACES

    for command in ("train", "tune"):
        assert run(command, "--help") == 0
        said = capsys.readouterr().out
        assert all(name in said for name in (*OPTIMIZERS, *PLACES))

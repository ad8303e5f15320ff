"""`sketchy bench`: finds the benchmarks of a checkout and passes their options on."""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("tyro")

from sketchy.cli import main

ROOT = Path(__file__).parents[2]
COMMAND = (sys.executable, "-c", "from sketchy.cli import main; main()", "bench")
TOY = '''"""A toy that shows what it was given.

More words.
"""
import json, os, sys, time

def main():
    print(json.dumps({"words": sys.argv[1:], "at": os.getcwd()}), flush=True)
    if "wait" in sys.argv:
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            time.sleep(0.5)
            print("saved", flush=True)
            sys.exit(130)
    sys.exit(7)

if __name__ == "__main__":
    main()
'''


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """A checkout with one benchmark and one helper."""
    (tmp_path / "src" / "sketchy").mkdir(parents=True)
    (tmp_path / "benchmarks" / "speed").mkdir(parents=True)
    (tmp_path / "benchmarks" / "__init__.py").touch()
    (tmp_path / "benchmarks" / "speed" / "toy.py").write_text(TOY)
    (tmp_path / "benchmarks" / "speed" / "helper.py").write_text('"""No benchmark."""\n')
    return tmp_path


def test_the_list_has_the_benchmarks_of_this_checkout_with_a_line_each(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT / "tests")
    main(["bench", "--json"])
    known = json.loads(capsys.readouterr().out)
    assert set(known) >= {
        "frequent_directions",
        "online_learning",
        "step_time",
        "scaling",
        "quality",
        "front",
    }
    assert "timing" not in known and all(len(line) > 20 for line in known.values())
    main(["bench"])
    assert "step_time" in capsys.readouterr().out


def test_words_after_two_dashes_and_the_exit_status_are_passed_on(toy: Path) -> None:
    below = toy / "src" / "sketchy"
    ended = subprocess.run(
        [*COMMAND, "toy", "--", "--quick", "--debug", "x y"], cwd=below, capture_output=True
    )
    assert ended.returncode == 7, ended.stderr
    assert json.loads(ended.stdout) == {"words": ["--quick", "--debug", "x y"], "at": str(toy)}


def test_ctrl_c_waits_for_what_the_benchmark_saves(toy: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "toy", "--", "wait"], cwd=toy, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout and process.stdout.readline()
    time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    said, _ = process.communicate(timeout=120)
    assert said == "saved\n" and process.returncode == 130


def test_outside_a_checkout_it_says_where_benchmarks_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    installed = tmp_path / "lib" / "site-packages" / "sketchy" / "cli" / "bench.py"
    monkeypatch.setattr(importlib.import_module("sketchy.cli.bench"), "__file__", str(installed))
    with pytest.raises(SystemExit) as stop:
        main(["bench"])
    assert stop.value.code == 2
    assert capsys.readouterr().err == (
        "sketchy bench: the benchmarks are in the repository, not in the package; run this in a clone of it\n"
    )

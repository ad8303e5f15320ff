"""Interrupted benchmarks resume: finished pieces are kept, if options and code are the same."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("tyro")

from benchmarks.common import resumable as pieces
from benchmarks.speed import frequent_directions as fd
from benchmarks.speed import online_learning as oco

ROOT = Path(__file__).parents[2]
NAMES = ("a", "b", "c")


@dataclass(frozen=True)
class Options:
    rounds: int = 3
    out: Path | None = None


PLAIN = Options()


class Bench:
    """Measures lengths; Ctrl-C comes while ``stop_at`` is measured."""

    def __init__(self, out: Path) -> None:
        self.out, self.part = out, out.with_name(f".{out.name}.part")
        self.measured: list[str] = []

    def __call__(self, options: Options = PLAIN, stop_at: str = "") -> dict[str, int]:
        self.measured = []

        def measure(name: str) -> int:
            if name == stop_at:
                signal.raise_signal(signal.SIGINT)
            self.measured.append(name)
            return len(name)

        with pieces.resumable("benchmarks.toy", NAMES, options, self.out, measure) as results:
            return dict(results)

    def stop(self, options: Options, stop_at: str) -> None:
        with pytest.raises(SystemExit) as ended:
            self(options, stop_at)
        assert ended.value.code == 130


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(pieces, "code", lambda: "this")
    return Bench(tmp_path / "new" / "rows.jsonl")


def test_a_stopped_benchmark_goes_on_and_a_finished_one_measures_anew(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.stop(Options(), "c")
    assert bench.measured == ["a", "b"]
    stopped = "benchmarks.toy: stopped; the same command continues from here (2 of 3 pieces are done)\n"
    assert capsys.readouterr().err == stopped
    assert bench() == dict.fromkeys(NAMES, 1) and bench.measured == ["c"]
    assert capsys.readouterr().err == "".join(
        f"{name}: already measured, kept in {bench.part}\n" for name in "ab"
    )
    assert not bench.part.exists()
    assert bench() and bench.measured == list(NAMES)


def test_what_is_stopped_or_fails_after_its_last_piece_measures_nothing_again(bench: Bench) -> None:
    with (
        pytest.raises(OSError, match="no space"),
        pieces.resumable("benchmarks.toy", NAMES, Options(), bench.out, len) as results,
    ):
        assert len(list(results)) == 3
        raise OSError("no space")
    assert bench() == dict.fromkeys(NAMES, 1) and bench.measured == []


def test_what_is_stopped_in_its_first_piece_leaves_no_file(bench: Bench) -> None:
    bench.stop(Options(), "a")
    assert not list(bench.out.parent.iterdir())


def test_other_options_measure_for_themselves_and_leave_what_waits(bench: Bench) -> None:
    bench.stop(Options(), "c")
    bench(Options(rounds=4))
    assert bench.measured == list(NAMES)
    bench()
    assert bench.measured == ["c"] and not bench.part.exists()


def test_other_code_takes_nothing_over_and_drops_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.stop(Options(), "c")
    monkeypatch.setattr(pieces, "code", lambda: "another")
    bench()
    assert bench.measured == list(NAMES) and not bench.part.exists()


def test_an_output_that_cannot_be_written_is_told_before_anything_is_measured(
    bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    for out in (tmp_path, tmp_path / "file" / "rows.jsonl"):
        bench.out = out
        with pytest.raises(SystemExit) as ended:
            bench()
        assert ended.value.code == 2 and capsys.readouterr().err.startswith("benchmarks.toy: ")
    assert bench.measured == []


@pytest.mark.parametrize(
    "junk", ["[]", "{}", '{"run": 3, "result": 1}', '{"run": {}, "result": 1}', "{", "\x80"]
)
def test_damaged_pieces_are_named_before_anything_is_measured(
    junk: str, bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    bench.part.parent.mkdir()
    bench.part.write_text(f"{junk}\n")
    with pytest.raises(SystemExit) as ended:
        bench()
    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.startswith(f"benchmarks.toy: {bench.part}, line 1: damaged (")
    assert said.endswith("; remove this line, or the file to start again\n") and bench.measured == []


def test_a_change_of_code_is_other_code(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.common import provenance

    changes = iter(["", "x = 1", "x = 2", "x = 1"])
    monkeypatch.setattr(provenance, "commit", lambda: "abc")
    monkeypatch.setattr(provenance, "_git", lambda *words: next(changes))
    clean, one, two, again = (provenance.code() for _ in range(4))
    assert clean == "abc" and one == again and len({clean, one, two}) == 3


def sheets(module: ModuleType, names: tuple[str, ...], patch: pytest.MonkeyPatch, calls: list[str]) -> None:
    """Tables that need no time."""

    def made(name: str) -> Callable[..., pieces.Sheet]:
        def table(*arguments: object) -> pieces.Sheet:
            calls.append(name)
            if name == names[-1] and calls.count(name) == 1:
                signal.raise_signal(signal.SIGINT)
            return {"title": name, "columns": ("x",), "lines": [[f"cell of {name}"], [], ["2"]]}

        table.__name__ = name
        return table

    for name in names:
        patch.setattr(module, name, made(name))


@pytest.mark.parametrize(
    ("module", "names", "words"),
    [
        (fd, ("one_update", "growth", "streaming"), []),
        (oco, ("whole_table", "growth", "one_by_one"), ["--data", "digits"]),
    ],
)
def test_tables_are_printed_again_but_not_measured_again(
    module: ModuleType,
    names: tuple[str, ...],
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pieces, "code", lambda: "this")
    calls: list[str] = []
    sheets(module, names, monkeypatch, calls)
    with pytest.raises(SystemExit) as ended:
        module.main(words)
    assert ended.value.code == 130
    capsys.readouterr()
    module.main(words)
    assert calls == [*names, names[-1]]
    shown = capsys.readouterr().out
    assert all(f"cell of {name}" in shown for name in names)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("module", "words", "sentence"),
    [
        (fd, "--rounds 2", "benchmarks.speed.frequent_directions: rounds=2: must be at least 3\n"),
        (fd, "--threads 0", "benchmarks.speed.frequent_directions: threads=0: must be at least 1\n"),
        (oco, "--rounds 1", "benchmarks.speed.online_learning: rounds=1: must be at least 2\n"),
        (oco, "--data nowhere", "benchmarks.speed.online_learning: data='nowhere': no such file"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(
    module: ModuleType, words: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        module.main(words.split())
    shown = capsys.readouterr()
    assert ended.value.code == 2 and shown.err.startswith(sentence) and not shown.out


# The real programs at small sizes, whose second piece takes forever if it is to be stopped. As somebody may
# change the code between two calls, it is given a name.
TINY = """
import os, sys, time
from benchmarks.common import provenance
provenance.code = lambda: "this"
from benchmarks.registry import problems
from benchmarks.speed import scaling, step_time

small = problems.matrix(256, 128)

def second():
    time.sleep(600 if "FOREVER" in os.environ else 0)
    return small.parameters()

slow = problems.Problem("the second", second)
problems.PROBLEMS.update(matrix=small, block=slow)
scaling.problem = lambda variable, size: slow if variable == "rank" else small
scaling.SIZES = {"m": (16, 32), "rank": (2, 4)}
{"step_time": step_time, "scaling": scaling}[sys.argv[1]].main(sys.argv[2:])
"""
WORDS = {
    "step_time": "--problems matrix block --optimizers adamw sketchy_shampoo --ranks 4 --rounds 2",
    "scaling": "--optimizers sketchy_shampoo --rounds 2",
}
FIRST = {"step_time": ("problem", "matrix"), "scaling": ("variable", "m")}


def start(name: str, at: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", TINY, name, *WORDS[name].split(), "--out", "rows.jsonl"],
        cwd=at,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.parametrize("name", WORDS)
def test_a_real_ctrl_c_keeps_the_first_piece_and_the_same_command_measures_the_rest(
    name: str, tmp_path: Path
) -> None:
    part, out, until = tmp_path / ".rows.jsonl.part", tmp_path / "rows.jsonl", time.monotonic() + 240
    stopped = start(name, tmp_path, FOREVER="yes")
    while not lines(part) and stopped.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    os.killpg(stopped.pid, signal.SIGINT)  # as a terminal does
    _, said = stopped.communicate(timeout=240)
    assert stopped.returncode == 130 and said.count("\n") == 1, said
    assert said.endswith("stopped; the same command continues from here (1 of 2 pieces are done)\n")
    (first,) = lines(part)

    resumed = start(name, tmp_path)
    _, said = resumed.communicate(timeout=240)
    key, value = FIRST[name]
    assert resumed.returncode == 0 and said == f"{value}: already measured, kept in {part.name}\n", said
    assert not part.exists()
    rows = lines(out)
    assert [row for row in rows if row[key] == value] == first["result"]
    assert len({row[key] for row in rows}) == 2

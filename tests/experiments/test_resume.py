"""Pieces of work in a file of lines: each is done once, can be resumed, and can be started again."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

import sketchy
from sketchy.experiments.resume import claim, finished, rows


@dataclass(frozen=True)
class Square:
    number: int
    name: str = "a"


class Worker:
    def __init__(self, stop_at: int | None = None) -> None:
        self.done: list[int] = []
        self.stop_at = stop_at

    def __call__(self, piece: Square) -> int | None:
        if piece.number == self.stop_at:
            return None
        self.done.append(piece.number)
        return piece.number**2


PLAN = [Square(i) for i in range(5)]
RESULTS = [(piece, piece.number**2) for piece in PLAN]


def test_a_stopped_plan_goes_on_and_a_finished_one_begins_anew(tmp_path: Path) -> None:
    path, first, second = tmp_path / "runs.jsonl", Worker(stop_at=3), Worker()
    assert list(finished(PLAN, path, first)) == RESULTS[:3]
    assert list(finished(PLAN, path, second)) == RESULTS
    assert (first.done, second.done) == ([0, 1, 2], [3, 4])
    again = Worker(stop_at=1)
    assert list(finished(PLAN, path, again)) == RESULTS[:1]
    assert [row["run"]["number"] for row in rows(path)] == [0]


def test_other_plans_and_other_versions_share_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, other = tmp_path / "runs.jsonl", [Square(i, "b") for i in range(5)]
    list(finished(PLAN, path, Worker(stop_at=2)))
    worker = Worker()
    list(finished(other, path, worker))
    assert worker.done == [0, 1, 2, 3, 4]
    with monkeypatch.context() as patched:
        patched.setattr(sketchy, "__version__", "another")
        list(finished(PLAN, path, worker := Worker()))
    assert worker.done == [0, 1, 2, 3, 4]
    list(finished(PLAN, path, worker := Worker()))
    assert worker.done == [2, 3, 4]


def test_a_line_that_was_cut_off_is_done_again_and_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    list(finished(PLAN, path, Worker(stop_at=3)))
    path.write_text(path.read_text()[:-9])
    worker = Worker()
    assert list(finished(PLAN, path, worker)) == RESULTS and worker.done == [2, 3, 4]
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_a_piece_that_is_planned_twice_is_done_once(tmp_path: Path) -> None:
    worker = Worker()
    assert list(finished([*PLAN, *PLAN], tmp_path / "runs.jsonl", worker)) == RESULTS * 2
    assert worker.done == [0, 1, 2, 3, 4]


JUNK = {
    "empty line": (b"x", "line 2"),
    "truncated": (b'{"run": 3', "line 2"),
    "a missing key": (b'{"run": {}}', "line 2: damaged ('result' is missing)"),
    "a list": (b"[]", "line 2: damaged (a list, not an object with names)"),
    "binary": (b"\x80\x02\xff", "line 2"),
    "deep": (b'{"a":' * 100_000, "line 2: damaged (RecursionError"),
    "a long number": (b'{"run": ' + b"9" * 401 + b"}", "line 2: damaged (a number of 401 digits"),
    "a result that is none": (None, "line 1: damaged (could not convert"),
}


@pytest.mark.parametrize("name", JUNK)
def test_a_damaged_line_is_named_with_what_to_do_and_the_file_is_unchanged(name: str, tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    list(finished(PLAN, path, Worker(stop_at=2)))
    first, second = path.read_bytes().splitlines(keepends=True)
    junk, says = JUNK[name]
    before = first + junk + b"\n" + second if junk else first.replace(b'"result": 0', b'"result": "no"')
    path.write_bytes(before)
    with pytest.raises(ValueError, match="remove this line, or the file to start again") as caught:
        finished(PLAN, path, Worker(), read=float)
    assert f"{path}, {says}" in str(caught.value) and "\n" not in str(caught.value)
    assert path.read_bytes() == before


@pytest.mark.parametrize("options", ["", "[]", "{", "\udcff"])
def test_damaged_options_of_a_directory_are_named(options: str, tmp_path: Path) -> None:
    (tmp_path / "options.json").write_text(options, errors="surrogateescape")
    with pytest.raises(ValueError, match=r"options.json: damaged .*; remove its directory to start again"):
        claim(tmp_path, {"a": 1}, results="rows.jsonl")


def test_results_without_their_options_are_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").touch()
    claim(tmp_path, {"a": 1}, results="rows.jsonl")
    (tmp_path / "rows.jsonl").write_text("{}\n")
    claim(tmp_path, {"a": 1}, results="rows.jsonl")
    (tmp_path / "options.json").unlink()
    with pytest.raises(ValueError, match=r"holds rows.jsonl but not its options.json.*choose another"):
        claim(tmp_path, {"a": 1}, results="rows.jsonl")

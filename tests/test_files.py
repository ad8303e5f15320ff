"""Our files: written whole or not at all, also on a full disk; damaged ones are named with what to do."""

import json
import multiprocessing
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from sketchy import files


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """No file can grow beyond a size: the system writes what fits, and only the next write fails."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("room", [0, 1, 7, 11])
def test_a_line_that_does_not_fit_on_the_disk_raises_and_leaves_the_file_as_it_was(
    room: int, tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    files.append(path, {"a": 1})
    before = path.read_bytes()
    with full_disk(len(before) + room), pytest.raises(OSError, match="too large"):
        files.append(path, {"b": 2}, {"c": 3})
    assert path.read_bytes() == before
    files.append(path, {"d": 4})
    assert files.rows(path) == [{"a": 1}, {"d": 4}]


@pytest.mark.parametrize("portion", [1, 5])
def test_short_writes_are_continued_until_the_whole_line_is_there(
    portion: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, whole = tmp_path / "rows.jsonl", os.write
    monkeypatch.setattr(files.os, "write", lambda file, content: whole(file, content[:portion]))
    files.append(path, {"a": 1}, {"b": 2})
    assert files.rows(path) == [{"a": 1}, {"b": 2}]


def test_a_line_that_is_interrupted_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, whole = tmp_path / "rows.jsonl", os.write
    files.append(path, {"a": 1})
    parts = iter([3])

    def interrupted(file: int, content: memoryview) -> int:
        for length in parts:
            return whole(file, content[:length])
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        files.append(path, {"b": 2})
    assert path.read_text() == '{"a": 1}\n'


@pytest.mark.parametrize(
    ("tail", "kept"), [(b'{"b": 2', []), (b'{"b": 2}', [{"b": 2}]), (b"\xff", []), (b"[" * 10**5, [])]
)
def test_a_line_after_a_torn_one_is_not_glued_to_it(tail: bytes, kept: list, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a": 1}\n' + tail)
    assert files.rows(path) == [{"a": 1}, *kept]
    files.append(path, {"c": 3})
    assert files.rows(path) == [{"a": 1}, *kept, {"c": 3}]
    assert path.read_bytes().count(b"\n") == 2 + len(kept)


def _append_many(path: Path, name: int) -> None:
    for i in range(100):
        files.append(path, {"name": name, "i": i, "long": "x" * 3000})


def test_processes_that_append_to_one_file_split_no_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_append_many, args=(path, name)) for name in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted((row["name"], row["i"]) for row in files.rows(path)) == [
        (name, i) for name in range(3) for i in range(100)
    ]


def _write(path: Path) -> None:
    files.write(path, "x" * 100_000)


def _save(path: Path) -> None:
    files.save(path, {"x": torch.zeros(100_000)})


@pytest.mark.parametrize("writer", [_write, _save])
def test_a_whole_file_that_does_not_fit_leaves_the_old_one_and_no_other(writer, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    with full_disk(5000), pytest.raises(OSError, match="too large"):
        writer(path)
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["file"]


def test_the_old_file_is_there_until_the_new_one_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a reader, or a process killed at that moment, finds when the new content is being written.

    Then the new file itself takes the name: a copy of it would be incomplete for a moment.
    """
    path, seen = tmp_path / "file", []
    path.write_text("old")
    sync = os.fsync

    def look(file: int) -> None:
        seen.append((path.read_text(), os.fstat(file).st_ino))
        sync(file)

    monkeypatch.setattr(files.os, "fsync", look)
    files.write(path, "new")
    assert seen == [("old", path.stat().st_ino)] and path.read_text() == "new"


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04junk", b"\x80\x04K\x01.", b"[]", b"x" * 5000])
def test_a_damaged_checkpoint_is_named_with_what_to_do(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    assert files.load(path) is None
    path.write_bytes(content)
    with pytest.raises(
        ValueError, match=r"checkpoint.pt: damaged \(.*\); remove it to start again"
    ) as caught:
        files.load(path)
    assert "\n" not in str(caught.value)


def test_a_checkpoint_that_was_cut_off_or_lacks_a_key_is_named(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    files.save(path, {"a": torch.ones(3)})
    assert torch.equal(files.load(path, "a")["a"], torch.ones(3))
    with pytest.raises(ValueError, match="'b' is missing"):
        files.load(path, "a", "b")
    files.save(path, [1])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a list, not an object"):
        files.load(path)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ValueError, match="remove it to start again"):
        files.load(path)


def test_an_object_in_json_is_read_or_named(tmp_path: Path) -> None:
    path = tmp_path / "options.json"
    path.write_text(json.dumps({"a": 10**299}))
    assert files.read_object(path, "a") == {"a": 10**299}
    path.write_text(json.dumps({"a": 10**400}))
    with pytest.raises(ValueError, match="a number of 401 digits: must have at most 300"):
        files.read_object(path, "a")

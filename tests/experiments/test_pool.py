"""Pieces of work over processes: reports arrive, errors wait for the others, a dead worker is named."""

import os
from functools import partial
from pathlib import Path

import pytest
import torch

from sketchy.experiments.pool import Report, Stopped, spread


def piece(directory: Path, name: str, report: Report, stopped: Stopped) -> bool:
    report(name, torch.get_num_threads())
    if name == "wrong":
        raise ValueError("a piece that fails")
    if name == "dies":
        os._exit(9)
    (directory / name).touch()
    return True


@pytest.mark.parametrize("processes", [1, 2])
def test_every_piece_is_done_on_one_thread_and_reports(tmp_path: Path, processes: int) -> None:
    heard: dict[str, int] = {}
    assert spread(partial(piece, tmp_path), ["a", "b", "c"], processes, heard.__setitem__, lambda: False)
    assert heard == {"a": 1, "b": 1, "c": 1}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"]


def test_an_error_is_raised_when_the_other_pieces_are_done(tmp_path: Path) -> None:
    names = ["wrong", "a", "b", "c"]
    with pytest.raises(ValueError, match="a piece that fails"):
        spread(partial(piece, tmp_path), names, 2, lambda name, done: None, lambda: False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"]


def test_a_worker_that_dies_is_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="a worker process died"):
        spread(partial(piece, tmp_path), ["dies", "a"], 2, lambda name, done: None, lambda: False)

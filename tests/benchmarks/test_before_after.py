"""The step time of two checkouts, compared in one run."""

from pathlib import Path

import pytest
from benchmarks.speed import before_after

ROOT = Path(__file__).parents[2]


def test_a_tree_is_compared_with_itself_and_makes_as_many_operations(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = f"{ROOT} --rounds 2 --pairs 1 --problems matrix --optimizers SketchyShampoo"
    before_after.main(arguments.split())
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "SketchyShampoo" in line]
    before, after = line.rsplit("ms", 1)[1].partition(")")[2].split(" → ")
    assert before.strip() == after.strip()


def test_what_is_no_checkout_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        before_after.main([str(tmp_path)])
    assert stop.value.code == 2
    assert "has no src/sketchy" in capsys.readouterr().err


def test_options_that_are_no_json_object_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        before_after.main([str(ROOT), "--after", "int8"])
    assert stop.value.code == 2
    assert "after=int8: must be a JSON object" in capsys.readouterr().err

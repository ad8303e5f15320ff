"""The training losses of two checkouts, compared."""

from pathlib import Path

import pytest
from benchmarks.quality import same_numbers

ROOT = Path(__file__).parents[2]


def test_a_tree_has_the_numbers_of_itself_and_rounding_shows(capsys: pytest.CaptureFixture[str]) -> None:
    same_numbers.main(f"{ROOT} --tasks digits --steps 3 --optimizers SketchyShampoo".split())
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "digits" in line]
    *_, own, jolted = line.split()
    assert float(own) == 0.0 and 0.0 < float(jolted) < 1e-10


def test_wrong_arguments_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, message in (
        ([str(tmp_path)], "has no src/sketchy"),
        ([str(ROOT), "--tasks", "cifar"], "cifar"),
        ([str(ROOT), "--dtype", "int8"], "int8"),
    ):
        with pytest.raises(SystemExit) as stop:
            same_numbers.main(arguments)
        assert stop.value.code == 2
        assert message in capsys.readouterr().err

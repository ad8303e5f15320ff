"""`sketchy counterexample`: the exponents of Observation 2, on screen and on disk."""

import json
from pathlib import Path

import pytest

from sketchy.cli.counterexample import counterexample


def test_it_shows_the_growth_of_both_bounds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counterexample((100, 200, 400), dim=10, sketch_size=4, seeds=2, out=tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [(row["learner"], row["rounds"]) for row in rows] == [
        (learner, T) for learner in ("s-adagrad", "ada-fd") for T in (100, 200, 400)
    ]
    assert all(row["regret"] <= row["bound"] for row in rows)
    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "exponent" in line)
    s_adagrad, _, ada_fd, _ = (float(word) for word in line.split()[1:])
    assert s_adagrad == pytest.approx(0.5, abs=0.1)
    assert ada_fd == pytest.approx(0.75, abs=0.1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": (100,)}, "rounds=100: must be two or more distinct positive numbers"),
        ({"rounds": (0, 5)}, "rounds=0 5: must be"),
        ({"seeds": 0}, "seeds=0: must be at least 1"),
        ({"sketch_size": 30}, "sketch_size=30: must be between 2 and dim=20"),
        ({"out": Path(__file__)}, "cannot be used"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: dict[str, object], message: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        counterexample(**{"out": tmp_path, **options})  # type: ignore[arg-type]
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1

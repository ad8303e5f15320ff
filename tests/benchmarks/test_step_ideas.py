"""The ideas to make a step fast: measured in CPU time, saved as rows."""

import json
from pathlib import Path

import pytest
from benchmarks.speed import step_ideas


def test_each_idea_is_a_row_with_both_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = step_ideas.Idea("slow → fast", True, lambda: sum(range(20_000)), lambda: None)
    monkeypatch.setattr(step_ideas, "ideas", lambda: [one])
    monkeypatch.setattr(step_ideas, "pin", lambda: None)
    out = tmp_path / "new" / "ideas.jsonl"
    step_ideas.main(["--rounds", "3", "--out", str(out)])
    (row,) = map(json.loads, out.read_text().splitlines())
    assert row["idea"] == "slow → fast" and row["commit"]
    assert all(
        len(row["samples"][name][clock]) == 3 for name in ("before", "after") for clock in ("cpu", "wall")
    )
    printed = capsys.readouterr().out
    step_ideas.main(["--table", str(out)])
    assert capsys.readouterr().out in printed


@pytest.mark.parametrize("rounds", ["1", "-2"])
def test_quartiles_need_two_rounds(rounds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        step_ideas.main(["--rounds", rounds])
    assert "must be at least 2" in capsys.readouterr().err

"""The quickstart's programs run as printed, one after the other, and say what the page says."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "quickstart.md").read_text(encoding="utf-8")


def test_its_blocks_run_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(block, "quickstart.md", "exec"), names)
    loss, report = capsys.readouterr().out.split("\n", 1)
    assert float(loss.removeprefix("loss ")) < 0.5 * names["targets"].square().mean().item()
    assert all(word in report for word in re.findall(r"^- \*\*(path|escaped)\*\*", PAGE, re.MULTILINE))


def test_its_commands_are_real(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tyro")
    pytest.importorskip("rich")
    from sketchy.cli import main

    (command,) = re.findall(r"^sketchy (memory --shape .*)$", PAGE, re.MULTILINE)
    main(command.split())
    assert "SketchySOAP, rank 64" in capsys.readouterr().out


@pytest.mark.slow
def test_the_demo_table_is_what_the_demo_finds(tmp_path: Path) -> None:
    """Other processors round differently, which changes a loss by a part of its spread over seeds."""
    pytest.importorskip("sklearn")
    from sketchy.cli.demo import demo

    demo(out=tmp_path)
    table = PAGE.partition("| 200 steps |")[2]
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if "|" in line]
    shown = {line[0].removesuffix(", rank 16"): line for line in lines}
    for row in map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines()):
        _, loss, accuracy, _, state = shown[row["optimizer"]]
        assert int(state.replace(",", "")) == row["bytes"]
        assert float(loss.split()[0]) == pytest.approx(row["loss"], abs=0.015)
        assert float(accuracy.split()[0]) == pytest.approx(100 * row["accuracy"], abs=1)

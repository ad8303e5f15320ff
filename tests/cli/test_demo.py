import json

import pytest

pytest.importorskip("tyro")
pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")

from sketchy.cli.demo import demo


def test_the_demo_trains_all_four_and_writes_rows_and_a_picture(tmp_path, capsys):
    demo(out=tmp_path / "demo", rank=8, steps=20, seeds=2, rates=(0.003, 0.01))
    rows = [json.loads(line) for line in (tmp_path / "demo" / "rows.jsonl").read_text().splitlines()]
    assert [row["optimizer"] for row in rows] == ["AdamW", "Shampoo", "SketchyShampoo", "SketchySOAP"]
    adamw, shampoo, *sketched = (row["bytes"] for row in rows)
    assert max(sketched) < adamw < shampoo
    for row in rows:
        start, end = row["curve"][0][1], row["curve"][-1][1]
        assert end == pytest.approx(row["loss"]) and end < 0.9 * start
        assert row["rate"] in (0.003, 0.01)
    assert (tmp_path / "demo" / "training.png").read_bytes().startswith(b"\x89PNG")
    assert "SketchySOAP" in capsys.readouterr().out


def test_a_bad_rank_is_one_line_and_exit_code_2(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        demo(out=tmp_path, rank=1)
    assert stop.value.code == 2
    assert capsys.readouterr().err == "sketchy demo: rank=1: must be an int, at least 2\n"


def test_no_rates_is_one_line_and_exit_code_2(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        demo(out=tmp_path, rates=())
    assert stop.value.code == 2 and "at least one rate" in capsys.readouterr().err

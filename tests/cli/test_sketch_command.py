import json

import pytest

pytest.importorskip("tyro")
pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")

from sketchy.cli.sketch import sketch


def test_the_command_writes_rows_whose_certificates_hold_and_a_picture(tmp_path, capsys):
    sketch(out=tmp_path / "new" / "sketch", ranks=(4, 12))
    rows = [
        json.loads(line) for line in (tmp_path / "new" / "sketch" / "rows.jsonl").read_text().splitlines()
    ]
    assert [(row["solver"], row["rank"]) for row in rows] == [
        ("exact", 4), ("exact", 12), ("subspace", 4), ("subspace", 12),
    ]  # fmt: skip
    for row in rows:
        assert 0 < row["error"] <= row["certified"] < 1
        if row["solver"] == "exact":
            assert row["error"] <= row["lemma_1"]
    assert (tmp_path / "new" / "sketch" / "sketch.png").read_bytes().startswith(b"\x89PNG")
    assert "certified" in capsys.readouterr().out


def test_a_directory_that_cannot_be_is_one_line_and_exit_code_2(tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SystemExit) as stop:
        sketch(out=tmp_path / "file" / "sketch")
    assert stop.value.code == 2 and capsys.readouterr().err.startswith("sketchy sketch: ")


def test_a_bad_rank_is_one_line_without_a_bar_or_a_directory_and_exit_code_2(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        sketch(out=tmp_path / "out", ranks=(4, 1))
    assert stop.value.code == 2 and not (tmp_path / "out").exists()
    assert capsys.readouterr() == (
        "",
        "sketchy sketch: rank=1: must be at least 2 (one kept direction and the zero column)\n",
    )

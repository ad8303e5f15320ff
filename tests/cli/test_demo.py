import json
import re
import signal

import pytest

pytest.importorskip("tyro")
pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")

from sketchy.cli.demo import demo
from sketchy.experiments import comparison


def test_the_demo_trains_all_four_and_writes_rows_and_a_picture(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    demo(out=tmp_path / "demo", rank=8, steps=20, seeds=2, rates=(0.003, 0.01))
    rows = [json.loads(line) for line in (tmp_path / "demo" / "rows.jsonl").read_text().splitlines()]
    assert [row["optimizer"] for row in rows] == ["AdamW", "Shampoo", "SketchyShampoo", "SketchySOAP"]
    adamw, shampoo, *sketched = (row["bytes"] for row in rows)
    assert max(sketched) < adamw < shampoo
    for row in rows:
        start, end = row["curve"][0][1], row["curve"][-1][1]
        assert end == pytest.approx(row["loss"]) and end < 0.9 * start
        assert row["rate"] in (0.003, 0.01)
        assert row["seconds"] > 20 * row["milliseconds"] / 1000 > 0
    assert (tmp_path / "demo" / "training.png").read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert all(row["optimizer"] in printed for row in rows)
    assert all(word in printed for word in ("steps", "accuracy", "state", "ms/step", "s/run"))
    assert len(re.findall(r" 0\.\d+ \* ", printed)) == 4  # both rates are edges
    assert "edge of the grid" in " ".join(printed.split())
    assert len(re.findall(r" \d\.\d{3}±\d\.\d{3} ", printed)) == 4 and "…" not in printed


def test_a_best_rate_inside_of_the_grid_has_no_star(tmp_path, capsys):
    demo(out=tmp_path, rank=8, steps=20, seeds=1, rates=(1e-7, 0.01, 1e3))
    printed = capsys.readouterr().out
    assert " *" not in printed and "edge" not in printed


QUICK = {"rank": 8, "steps": 4, "seeds": 2, "rates": (0.003, 0.01)}


def rows(out):
    """Without the time, which differs in each run."""
    found = [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]
    times = ("milliseconds", "seconds")
    return [{name: value for name, value in row.items() if name not in times} for row in found]


@pytest.fixture
def trained(monkeypatch):
    """The runs that are trained. ``stop_in`` names a run during which all are interrupted."""
    begun, training = [], comparison.Training

    def counted(task, make, *, seed, steps):
        begun.append(seed)
        for record in training(task, make, seed=seed, steps=steps):
            if len(begun) == counted.stop_in and record.step == 2:
                signal.raise_signal(signal.SIGINT)
            yield record

    counted.begun, counted.stop_in = begun, None
    monkeypatch.setattr(comparison, "Training", counted)
    return counted


def test_stopped_and_resumed_equals_never_stopped(tmp_path, capsys, trained):
    demo(out=tmp_path / "whole", **QUICK)
    assert len(trained.begun) == 16
    trained.begun.clear()
    trained.stop_in = 6
    with pytest.raises(SystemExit) as stop:
        demo(out=tmp_path / "part", **QUICK)
    assert stop.value.code == 130
    assert "stopped; 5 of 16 runs are saved" in capsys.readouterr().out
    assert not (tmp_path / "part" / "rows.jsonl").exists()
    demo(out=tmp_path / "part", **QUICK)
    assert len(trained.begun) == 6 + 11
    assert rows(tmp_path / "part") == rows(tmp_path / "whole")


def test_a_finished_demo_trains_anew_and_other_settings_share_no_run(tmp_path, trained):
    demo(out=tmp_path, **QUICK)
    demo(out=tmp_path, **QUICK)
    assert len(trained.begun) == 2 * 16
    for change in ({"rank": 9}, {"steps": 5}):
        trained.begun.clear()
        demo(out=tmp_path, **{**QUICK, **change})
        assert len(trained.begun) == 16
    assert len((tmp_path / "runs.jsonl").read_text().splitlines()) == 3 * 16


def test_a_bad_rank_is_one_line_and_exit_code_2(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        demo(out=tmp_path, rank=1)
    assert stop.value.code == 2
    assert capsys.readouterr().err == "sketchy demo: rank=1: must be an int, at least 2, or None\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [({"steps": 0}, "steps=0: must be"), ({"rates": (0.1, -1.0)}, "learning rate: -1.0")],
)
def test_a_mistake_shows_before_anything_is_trained_or_written(options, message, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        demo(out=tmp_path / "new", **options)
    assert stop.value.code == 2 and not (tmp_path / "new").exists()
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_no_rates_is_one_line_and_exit_code_2(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        demo(out=tmp_path, rates=())
    assert stop.value.code == 2 and "at least one rate" in capsys.readouterr().err

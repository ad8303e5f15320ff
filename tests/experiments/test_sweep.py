"""Sweeps: the paper's grids, one pass for all settings, and interruptions that change no result."""

import itertools
import json
import os
from pathlib import Path

import pytest
import torch

from sketchy import oco
from sketchy.experiments import sweep
from sketchy.experiments.data import Dataset, load
from sketchy.experiments.sweep import Plan, Result

A9A = Path(os.environ.get("SKETCHY_DATA") or Path(__file__).parents[3] / "shared" / "data")


def done(data: Dataset, directory: Path, **options: object) -> tuple[Plan, list[Result]]:
    plan = sweep.plan(data, **options)  # type: ignore[arg-type]
    assert sweep.run(plan, data, directory)
    return plan, sweep.results(plan, directory)


def same(first: list[Result], second: list[Result]) -> bool:
    """Equal to the bit in everything but the time."""
    return [r.learner for r in first] == [r.learner for r in second] and all(
        torch.equal(a.sums.loss, b.sums.loss)
        and torch.equal(a.sums.mistakes, b.sums.mistakes)
        and torch.equal(a.curve, b.curve)
        and a.curve_rounds == b.curve_rounds
        for a, b in zip(first, second, strict=True)
    )


def test_the_grids_are_the_papers() -> None:
    eta, delta = sweep.settings("s-adagrad")
    assert eta.tolist() == pytest.approx([10 ** (-6 + 6 * i / 48) for i in range(49)], rel=1e-12)
    assert delta.tolist() == [0.0] * 49
    pairs = {
        (round(a, 9), round(b, 9))
        for a, b in zip(*(x.log10().tolist() for x in sweep.settings("fd-son")), strict=True)
    }
    assert pairs == {(float(a), float(b)) for a in range(-6, 1) for b in range(-6, 1)}


@pytest.mark.parametrize("points", [1, 2, 3, 5, 9, 10, 25, 47, 49, 50])
@pytest.mark.parametrize("learner", ["ogd", "ada-fd"])
def test_every_learner_gets_the_same_number_of_different_settings(learner: str, points: int) -> None:
    eta, delta = sweep.settings(learner, points)
    assert len(set(zip(eta.tolist(), delta.tolist(), strict=True))) == points
    assert eta.min() >= 1e-6 * (1 - 1e-12)
    assert eta.max() <= 1


@pytest.mark.parametrize("learner", oco.LEARNERS)
def test_the_grid_together_equals_one_setting_at_a_time(learner: str, tmp_path: Path) -> None:
    data = load("breast_cancer", rows=60)
    scaled = Dataset("scaled", data.X / data.X.amax(0), data.y)
    _, [result] = done(scaled, tmp_path, learners=(learner,), grid=4)
    for setting, (eta, delta) in enumerate(zip(result.eta.tolist(), result.delta.tolist(), strict=True)):
        alone = oco.make(learner, scaled.dim, eta=eta, delta=delta)
        *_, sums = oco.play(alone, oco.loss.logistic, scaled.X, scaled.y)
        assert result.sums.loss[setting].item() == pytest.approx(sums.loss.item(), rel=1e-6)


@pytest.mark.parametrize("learner", oco.LEARNERS)
def test_stopped_now_and_then_and_resumed_equals_never_stopped(learner: str, tmp_path: Path) -> None:
    data = load("digits", rows=150)
    plan, whole = done(data, tmp_path / "whole", learners=(learner,), grid=3)
    looks = itertools.count(1)
    runs = 1
    while not sweep.run(plan, data, tmp_path / "stopped", stopped=lambda: next(looks) % 30 == 0):
        assert sweep.results(plan, tmp_path / "stopped") == []
        runs += 1
    assert runs == 4
    assert same(whole, sweep.results(plan, tmp_path / "stopped"))


def test_processes_change_nothing_but_the_time(tmp_path: Path) -> None:
    data = load("digits", rows=300)
    learners = tuple(name for name in sweep.PAPER_LEARNERS if name in oco.LEARNERS)
    plan, one = done(data, tmp_path / "one", learners=learners, grid=4)
    heard: dict[str, int] = {}
    assert sweep.run(plan, data, tmp_path / "two", processes=2, report=heard.__setitem__)
    assert same(one, sweep.results(plan, tmp_path / "two"))
    assert heard == dict.fromkeys(learners, 300)


def test_a_finished_sweep_is_not_run_again(tmp_path: Path) -> None:
    data = load("digits", rows=100)
    plan, _ = done(data, tmp_path, learners=("ogd",), grid=2)
    before = (tmp_path / "checkpoints" / "ogd.pt").stat().st_mtime_ns
    assert sweep.run(plan, data, tmp_path)
    assert (tmp_path / "checkpoints" / "ogd.pt").stat().st_mtime_ns == before


def test_a_directory_of_other_options_is_refused_by_what_differs(tmp_path: Path) -> None:
    data = load("digits", rows=100)
    sweep.claim(tmp_path, sweep.plan(data, learners=("ogd",), grid=2))
    sweep.claim(tmp_path, sweep.plan(data, learners=("ogd",), grid=2))  # the same is welcome
    with pytest.raises(ValueError, match="grid was 2 and is now 3") as caught:
        sweep.claim(tmp_path, sweep.plan(data, learners=("ogd",), grid=3))
    assert "learners" not in str(caught.value)
    with pytest.raises(ValueError, match="rows was 100 and is now 99; data_sha256 was"):
        sweep.claim(tmp_path, sweep.plan(load("digits", rows=99), learners=("ogd",), grid=2))
    assert json.loads((tmp_path / "options.json").read_text())["grid"] == 2


def test_a_directory_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    plan = sweep.plan(load("digits", rows=100), learners=("ogd",))
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="cannot be used"):
        sweep.claim(tmp_path / "file", plan)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "ogd.pt").touch()
    with pytest.raises(ValueError, match=r"holds checkpoints but not its options.json"):
        sweep.claim(tmp_path, plan)


JUNK = {
    "empty": b"",
    "truncated": b'{"data": "dig',
    "list": b"[]",
    "binary": b"\x80\x02\xff\x00" * 9,
    "number": b"9" * 401,
    "deep": b"[" * 100_000,
    "keys": b"{}",
}


@pytest.mark.parametrize("junk", JUNK)
@pytest.mark.parametrize("file", ["options.json", "checkpoints/ogd.pt"])
def test_a_damaged_file_of_a_sweep_is_named_with_what_to_do(junk: str, file: str, tmp_path: Path) -> None:
    data = load("digits", rows=100)
    plan, _ = done(data, tmp_path, learners=("ogd",), grid=2)
    (tmp_path / "checkpoints").rename(tmp_path / "aside")
    sweep.claim(tmp_path, plan)
    (tmp_path / "aside").rename(tmp_path / "checkpoints")
    sweep.claim(tmp_path, plan)
    if (file, junk) == ("options.json", "keys"):
        (tmp_path / file).write_text('{"learners": ["ogd"]}')
        with pytest.raises(ValueError, match=r"options.json: damaged \(.*missing.*'data'"):
            sweep.claimed(tmp_path)
        return
    (tmp_path / file).write_bytes(JUNK[junk])
    with pytest.raises(ValueError, match="remove it") as caught:
        sweep.claim(tmp_path, plan)
    assert str(tmp_path / file) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("key", ["round", "loss", "curve", "seconds", "learner"])
def test_a_checkpoint_without_one_of_its_entries_is_named(key: str, tmp_path: Path) -> None:
    plan, _ = done(load("digits", rows=100), tmp_path, learners=("ogd",), grid=2)
    path = tmp_path / "checkpoints" / "ogd.pt"
    state = torch.load(path, weights_only=True)
    torch.save({name: value for name, value in state.items() if name != key}, path)
    with pytest.raises(ValueError, match=rf"ogd.pt: damaged \('{key}' is missing\); remove it to start"):
        sweep.results(plan, tmp_path)
    torch.save(state | {"loss": torch.zeros(3)}, path)
    with pytest.raises(ValueError, match=r"sums of the shape \(3,\): must be \(2,\)"):
        sweep.results(plan, tmp_path)


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "sub/ogd", "sgd"])
def test_names_in_the_options_of_a_run_cannot_lead_out_of_its_folder(name: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    sweep.claim(run, sweep.plan(load("digits", rows=100), learners=("ogd",)))
    options = json.loads((run / "options.json").read_text())
    (run / "options.json").write_text(json.dumps({**options, "learners": [name]}))
    with pytest.raises(ValueError, match=rf"options.json: damaged \(learners='{name}': must be distinct"):
        sweep.claimed(run)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learners": ("sgd",)}, "learners='sgd': must be distinct ones of ada-fd, ada-lr"),
        ({"learners": ()}, "must be distinct ones of ada-fd, ada-lr"),
        ({"learners": ("ogd", "ogd")}, "must be distinct"),
        ({"grid": 0}, "grid=0: must be at least 1"),
    ],
)
def test_a_bad_plan_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sweep.plan(load("digits", rows=10), **options)  # type: ignore[arg-type]


needs_a9a = pytest.mark.skipif(not (A9A / "libsvm/a9a.bz2").exists(), reason=f"a9a is not in {A9A}")


@needs_a9a
def test_the_first_2000_rows_of_a9a_give_the_published_codes_healthy_values(tmp_path: Path) -> None:
    data = load("a9a", directory=A9A, rows=2000)
    _, [result] = done(data, tmp_path, learners=("s-adagrad",), grid=49)
    average = result.sums.average_loss
    assert bool(
        average.isfinite().all()
    )  # the published code's threshold of zero blew up more than half of these
    assert average[40].item() == pytest.approx(0.40005768, abs=1e-8)  # eta = 0.1
    assert average[44].item() == pytest.approx(0.374, abs=1e-3)  # eta = 0.316


@needs_a9a
@pytest.mark.slow
def test_the_whole_table_of_a9a_is_the_papers(tmp_path: Path) -> None:
    data = load("a9a", directory=A9A)
    plan = sweep.plan(data)
    assert sweep.run(plan, data, tmp_path, processes=2)
    best = {result.learner: result.sums.average_loss.min().item() for result in sweep.results(plan, tmp_path)}
    published = {
        "adagrad": 0.3323,
        "s-adagrad": 0.3326,
        "ogd": 0.3346,
        "rfd-son": 0.3345,
        "ada-fd": 0.3541,
        "fd-son": 0.5391,
    }
    assert best == pytest.approx(published, abs=3e-4)

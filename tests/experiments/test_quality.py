"""The quality benchmark: the same rates for everyone, nothing run twice, nothing lost."""

import json
import math
import pickle
import statistics
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from benchmarks.quality import compare as quality
from benchmarks.quality import runs as quality_runs
from benchmarks.quality.plan import Tuning
from benchmarks.quality.runs import Budget, save
from benchmarks.quality.variants import ENTRIES, RATIO, rates, variants
from hypothesis import given
from hypothesis import strategies as st

from sketchy.experiments import names, tasks
from sketchy.experiments.quality import (
    ADAMW,
    Results,
    Run,
    Variant,
    best_rate,
    load,
    steps_to_target,
    tuned,
)
from sketchy.experiments.quality_table import table
from sketchy.experiments.training import Look, Record

SOAP32 = Variant("sketchy_soap", 32)
TINY = ("digits", "--steps", "3", "--rates", "2", "--processes", "1", "--ranks", "32")
FIVE = ("adamw", "soap", "shampoo", "sketchy_shampoo", "sketchy_soap")


@pytest.fixture(autouse=True)
def no_probe_of_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality, "only_legal_instructions", lambda: None)


@pytest.fixture
def imagined(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Runs that take no time: the loss is the distance of the rate from the optimizer's best one, in powers
    of the ratio. Gives the list of those that ran."""
    ran: list[str] = []

    def running(task: tasks.Task, build: Any, *, steps: int, seed: int) -> Iterator[Record]:
        variant, rate = build.args[0], build.keywords["rate"]
        ran.append(f"{variant}: {rate:g}, {seed}")
        best = BEST[variant.optimizer]
        loss = abs(math.log(rate / best, RATIO)) + 0.01 * seed
        curve = [Look(0, 9.0, 0.1), Look(steps, math.inf if rate > 1 else loss, 0.5)]
        yield Record(task.name, seed, steps, step=steps, curve=curve, optimizer_bytes=10)

    monkeypatch.setattr(quality_runs, "Training", running)
    return ran


BEST = {"adamw": 4e-3, "soap": 1.6e-2, "shampoo": 1.6e-2, "sketchy_shampoo": 5e-4, "sketchy_soap": 8e-3}


def run(path: Path, *arguments: str) -> Results:
    quality.main([*TINY, "--out", str(path), *arguments])
    return load(path)


def test_everyone_gets_the_same_rates_and_one_more_where_the_best_is_at_the_end(
    imagined: list[str], tmp_path: Path
) -> None:
    results = run(tmp_path / "q.jsonl", "--rates", "3", "--seeds", "1", "--optimizers", *FIVE)
    grid = {2e-3, 4e-3, 8e-3}
    tried = {str(c): {r.rate for r in results if r.variant == c} for c in variants(FIVE, (32,))}
    assert tried["adamw"] == grid
    assert tried["soap"] == {4e-3, 8e-3, 1.6e-2, 3.2e-2}  # as many, as wide, around its own centre
    assert tried["sketchy_soap, rank 32"] == grid | {1.6e-2}
    assert tried["shampoo"] == grid | {1.6e-2, 3.2e-2}
    assert tried["sketchy_shampoo, rank 32"] == grid | {1e-3, 5e-4, 2.5e-4}


def test_the_best_rate_runs_on_all_seeds_and_the_sketched_also_at_adamws(
    imagined: list[str], tmp_path: Path
) -> None:
    results = run(tmp_path / "q.jsonl", "--rates", "6", "--optimizers", "adamw", "soap", "sketchy_soap")
    seeds = lambda c, rate: {r.seed for r in results if (r.variant, r.rate) == (c, rate)}  # noqa: E731
    assert seeds(ADAMW, 4e-3) == seeds(SOAP32, 8e-3) == seeds(SOAP32, 4e-3) == {0, 1, 2}
    assert seeds(ADAMW, 8e-3) == seeds(SOAP32, 2e-3) == seeds(Variant("soap"), 6.4e-2) == {0}


def test_a_rate_that_was_best_on_one_seed_only_is_not_chosen(tmp_path: Path) -> None:
    path, losses = tmp_path / "q.jsonl", {2e-3: (3.0,), 4e-3: (1.1, 1.1, 1.2), 8e-3: (1.0, 1.0, 5.0)}
    save(path, {
        Run(ADAMW, rate, seed, 3): Record("digits", seed, 3, curve=[Look(3, loss, None)])
        for rate, all_seeds in losses.items()
        for seed, loss in enumerate(all_seeds)
    })  # fmt: skip
    tuning = Tuning(load(path), 3, Budget(rates=3))
    assert tuning.finalists(ADAMW) == [8e-3, 4e-3] and tuning.best(ADAMW) == 4e-3


def test_adamws_rate_is_no_extra_try_for_the_sketched(imagined: list[str], tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    run(path, "--optimizers", "adamw", "sketchy_shampoo", "--rates", "3")
    far = Run(ADAMW, 1.0, 0, 3)
    save(path, {**load(path), far: Record("digits", 0, 3, curve=[Look(3, 0.0, None)])})
    assert far in load(path) and far.rate not in Tuning(load(path), 3, Budget(rates=3)).tried(ADAMW)


def test_a_finished_run_is_not_run_again_unless_asked(imagined: list[str], tmp_path: Path) -> None:
    first = run(tmp_path / "q.jsonl", "--optimizers", "adamw", "sketchy_soap")
    imagined.clear()
    assert run(tmp_path / "q.jsonl", "--optimizers", "adamw", "sketchy_soap") == first
    assert imagined == []
    run(tmp_path / "q.jsonl", "--optimizers", "adamw", "--again")
    assert imagined and all(name.startswith("adamw") for name in imagined)
    assert set(load(tmp_path / "q.jsonl")) == set(first)


def test_a_line_that_was_cut_off_is_run_again(imagined: list[str], tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    first = run(path, "--optimizers", "adamw")
    path.write_text(path.read_text()[:-20])
    imagined.clear()
    assert run(path, "--optimizers", "adamw") == first
    assert len(imagined) == 1
    assert all(json.loads(line) for line in path.read_text().splitlines())


def test_runs_of_another_length_are_other_runs(imagined: list[str], tmp_path: Path) -> None:
    run(tmp_path / "q.jsonl", "--optimizers", "adamw")
    imagined.clear()
    run(tmp_path / "q.jsonl", "--optimizers", "adamw", "--steps", "4")
    assert imagined


def test_real_runs_end_in_a_table_that_says_what_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "q.jsonl"
    results = run(path, "--optimizers", "adamw", "soap", "sketchy_soap", "--ranks", "4", "--seeds", "2")
    printed = capsys.readouterr().out
    columns = ("best rate", "at AdamW's rate", "accuracy", "lowest loss", "z ≥ 3.09")
    for word in ("AdamW", "SOAP, dense", "SketchySOAP, rank 4", *columns, "±"):
        assert word in printed
    for record in results.values():
        assert [look.step for look in record.curve] == [0, 3]
        assert 0 < record.optimizer_seconds < record.seconds and record.optimizer_bytes > 0


def test_a_diverged_rate_is_never_the_best(
    imagined: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "q.jsonl"
    losses = dict(zip(rates("adamw", 6), (4.0, 3.0, 5.0, 6.0, math.inf, math.inf), strict=True))
    records = {
        Run(ADAMW, rate, 0, 3): Record("digits", 0, 3, curve=[Look(3, loss, None)])
        for rate, loss in losses.items()
    }
    save(path, records)
    assert load(path) == records  # inf comes back as inf
    assert Tuning(load(path), 3, Budget(seeds=1)).best(ADAMW) == 2e-3


def test_the_picture_shows_every_task_that_has_results(tmp_path: Path, imagined: list[str]) -> None:
    for name in ("digits", "charlm"):
        run(tmp_path / f"quality-{name}.jsonl", "--optimizers", "adamw", "soap")
    content = quality.picture(tmp_path)
    assert content.startswith(b"\x89PNG")
    (tmp_path / "quality-charlm.jsonl").unlink()
    assert len(quality.picture(tmp_path)) < len(content)
    size = len(quality.picture(tmp_path))
    other = Run(Variant("muon_8bit"), 1e-3, 0, 3)  # a task with nobody to show has no panel
    save(tmp_path / "quality-tox21.jsonl", {other: Record("tox21", 0, 3, curve=[Look(3, 1.0, None)])})
    assert len(quality.picture(tmp_path)) == size
    with pytest.raises(SystemExit, match="no quality-TASK"):
        quality.picture(tmp_path / "nothing")


def test_the_work_can_be_sent_to_another_process(tmp_path: Path) -> None:
    wanted = Run(SOAP32, 1e-3, 0, 3)
    work = quality_runs.Work("digits", tmp_path / "q.jsonl", {str(wanted): wanted}, 10.0, "abc")
    assert pickle.loads(pickle.dumps(work)) == work


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["digits", "--optimizers", "adam"], "optimizers=adam: unknown; known are sketchy_shampoo"),
        (["cola"], "task='cola': no such task"),
        (["digits", "--tuned-rank", "5"], "tuned-rank=5: must be one of ranks="),
        (["digits", "--processes", "0"], "processes=0: must be at least 1"),
        (["digits", "--seeds", "0"], "seeds=0: must be at least 1"),
        (["digits", "--steps", "-5"], "steps=-5: must be at least 1"),
        (["digits", "--ranks", "32", "0"], "ranks=0: must be at least 2"),
        (["digits", "--more-rates", "-3"], "more-rates=-3: must be at least 0"),
        (["digits", "--limit", "0"], "limit=0: must be above 0"),
        (["charlm", "--data-dir", "/nowhere/at/all"], "/nowhere/at/all"),
    ],
)
def test_mistakes_are_told(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        quality.main(arguments)
    assert message in capsys.readouterr().err


def test_the_grid_has_as_many_rates_as_asked_for_each_twice_the_one_before() -> None:
    for count in (1, 2, 5, 6):
        grid = rates("adamw", count)
        assert len(grid) == count
        assert all(b / a == pytest.approx(RATIO) for a, b in pairwise(grid))


def test_all_seeds_of_a_rate_count_and_three_are_enough_to_win() -> None:
    early = dict(enumerate((183.0, 183.0, 183.0, 200.0, 200.0)))  # its first three seeds are lucky
    steady = dict.fromkeys(range(5), 189.0)
    assert best_rate({2e-3: steady, 8e-3: early}) == 2e-3
    assert best_rate({2e-3: steady, 8e-3: early, 4e-3: dict.fromkeys(range(3), 188.0)}) == 4e-3
    assert best_rate({2e-3: steady, 4e-3: {0: 1.0, 1: 1.0}}) == 2e-3
    assert best_rate({2e-3: {0: 2.0}, 4e-3: {0: 1.0}}) == 4e-3  # no rate has three
    assert best_rate({2e-3: {0: math.inf}}) is None and best_rate({}) is None


def test_the_difference_from_adamw_is_over_the_seeds_of_both() -> None:
    def runs(variant: Variant, *final: float) -> Results:
        return {
            Run(variant, 1e-3, seed, 3): Record("digits", seed, 3, curve=[Look(3, loss, None)])
            for seed, loss in enumerate(final)
        }

    adamw, ours = tuned(runs(ADAMW, 2.0, 2.2, 2.4, 9.0) | runs(SOAP32, 1.0, 1.2, 1.4))  # a bad fourth seed
    assert adamw.minus_adamw == 0 and ours.minus_adamw == pytest.approx(-1.0)


def curves(seeds: list[list[float]]) -> list[list[Look]]:
    return [[Look(10 * i, loss, None) for i, loss in enumerate(losses)] for losses in seeds]


LOSSES = st.integers(2, 5).flatmap(
    lambda looks: st.lists(
        st.lists(st.floats(0.0, 4.0), min_size=looks, max_size=looks), min_size=2, max_size=5
    )
)


@given(LOSSES, st.floats(0.0, 4.0), st.floats(0.0, 1.0))
def test_a_higher_target_is_never_reached_later(seeds: list[list[float]], target: float, more: float) -> None:
    low, high = (steps_to_target(curves(seeds), goal) for goal in (target, target + more))
    assert low is None or (high is not None and high <= low)


@given(LOSSES, st.floats(0.0, 4.0))
def test_seeds_that_agree_reach_a_target_at_the_first_look_below_it_and_others_not_before(
    seeds: list[list[float]], target: float
) -> None:
    means = [statistics.mean(losses) for losses in zip(*seeds, strict=True)]
    agreed = steps_to_target(curves([means, means]), target)
    assert agreed == next((10 * i for i, mean in enumerate(means) if mean < target), None)
    step = steps_to_target(curves(seeds), target)
    assert step is None or (agreed is not None and agreed <= step and means[step // 10] < target)


def test_more_seeds_of_the_same_spread_reach_a_target_surely_that_fewer_do_not() -> None:
    seeds = [[2.0, 1.5 + sign * 0.1] for sign in (-1, 1)]
    assert steps_to_target(curves(seeds), 1.6) is None
    assert steps_to_target(curves(seeds * 12), 1.6) == 10


def test_one_seed_proves_nothing_without_a_known_deviation() -> None:
    assert steps_to_target(curves([[2.0, 1.0]]), 1.5) is None
    assert steps_to_target(curves([[2.0, 1.0]]), 1.5, sigma=0.1) == 10
    assert steps_to_target([], 1.5, sigma=0.1) is None


def test_a_classifier_that_overfits_shows_its_lowest_loss_too() -> None:
    looks = [Look(0, 2.0, 0.1), Look(5, 0.5, 0.9), Look(10, 0.9, 0.95)]
    run = {Run(ADAMW, 1e-3, 0, 10): Record("digits", 0, 10, curve=looks)}
    header, (cells,) = table(tuned(run))
    shown = dict(zip(header, cells, strict=True))
    assert (shown["loss"], shown["lowest loss"], shown["accuracy"]) == ("0.900", "0.500", "0.950")
    ours = {Run(SOAP32, 1e-3, 0, 10): Record("digits", 0, 10, curve=looks)}
    header, (_, cells) = table(tuned(run | ours))
    assert cells[header.index("accuracy at that rate")] == "0.950"
    assert cells[header.index("lowest at that rate")] == "0.500"
    plain = {Run(ADAMW, 1e-3, 0, 10): Record("charlm", 0, 10, curve=[Look(10, 2.0, None)])}
    assert "lowest loss" not in table(tuned(plain))[0]


def test_runs_that_were_validated_at_other_steps_are_compared_where_both_were() -> None:
    often = [Look(step, 3.0 - step / 100, None) for step in (0, 100, 200, 300)]
    seldom = [Look(step, 3.0 - step / 100, None) for step in (0, 300)]
    assert steps_to_target([often, often], 1.5) == 200
    assert steps_to_target([often, seldom], 1.5) == steps_to_target([seldom, often], 1.5) == 300


def test_readers_see_a_name_of_its_own_for_every_optimizer() -> None:
    shown = [names.shown(name) for name in ENTRIES]
    assert len(set(shown)) == len(shown)
    assert not [name for name in ENTRIES if "_" in names.shown(name).partition("(")[0]]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"optimizer": "adamw"}', "'record' is missing"),
        ("[]", "a list, not an object"),
        ('{"optimizer": "adamw", "rank": null, "rate": 1, "record": {"curve": [{}]}}', "missing"),
    ],
)
def test_a_damaged_run_is_named_by_its_line(line: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "quality.jsonl"
    path.write_text(f'{{"budget": {{}}}}\n{line}\n')
    with pytest.raises(ValueError, match=f"line 2: damaged .*{says}.*; remove this line") as caught:
        load(path)
    assert str(path) in str(caught.value)

"""Loss against memory: equal budgets, failures as rows, provenance in every line, a readable picture."""

import json
import math
import signal
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.quality import compare as quality
from benchmarks.quality import front
from benchmarks.quality import runs as quality_runs
from benchmarks.quality.front_plot import Point, ceiling, figure
from benchmarks.quality.runs import Budget, load_budget, save
from benchmarks.quality.variants import ENTRIES, RATIO, build, everyone, variants
from torch import nn

from sketchy.experiments import tasks
from sketchy.experiments.quality import ADAMW, Results, Tuned, Variant, load, tuned
from sketchy.experiments.quality_table import cells, header
from sketchy.experiments.training import Look, Record

TINY = ("digits", "--steps", "8", "--rates", "3", "--processes", "1", "--ranks", "4", "8", "32")

Loss = Callable[[Variant, float, int], float]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Variant, float, int]]:
    """Runs that take no time; their loss is the distance of the rate from 4e-3, in powers of the ratio.

    Adafactor raises an error, Muon is slow, and dense Shampoo's best rate is not among those tried.
    """
    done: list[tuple[Variant, float, int]] = []

    def running(task: tasks.Task, build: Any, *, steps: int, seed: int) -> Iterator[Record]:
        variant, rate = build.args[0], build.keywords["rate"]
        done.append((variant, rate, seed))
        if variant.optimizer == "adafactor":
            raise RuntimeError("no such kernel\nand more")
        best = 1e3 if variant.optimizer == "shampoo" else 4e-3
        loss = abs(math.log(rate / best, RATIO)) + 0.01 * seed + (variant.rank or 0) / 1000
        for step in range(1, steps + 1):
            seconds = step * (1e6 if variant.optimizer == "muon" else 1.0)
            curve = [Look(0, 9.0, None), Look(step, loss, None)]
            yield Record(task.name, seed, steps, step, curve, optimizer_bytes=10, seconds=seconds, threads=1)

    monkeypatch.setattr(quality_runs, "Training", running)
    monkeypatch.setattr(quality, "only_legal_instructions", lambda: None)
    return done


def run(path: Path, *arguments: str) -> Results:
    quality.main([*TINY, "--out", str(path), *arguments])
    return load(path)


def table(path: Path) -> dict[str, Tuned]:
    return {str(each.variant): each for each in tuned(load(path))}


def test_every_line_says_which_code_made_it_on_how_many_threads(ran: list[Any], tmp_path: Path) -> None:
    run(tmp_path / "q.jsonl", "--optimizers", "adamw")
    budget, *lines = [json.loads(line) for line in (tmp_path / "q.jsonl").read_text().splitlines()]
    assert budget == {"budget": vars(Budget(rates=3))}
    for line in lines:
        assert line["threads"] == 1
        assert line["commit"] == line["record"]["commit"] != ""


def test_lines_of_old_versions_are_read_and_their_code_is_unknown(tmp_path: Path) -> None:
    record = {"task": "digits", "seed": 0, "steps": 8, "step": 8, "seconds": 3.0,
              "curve": [{"step": 8, "loss": 1.0, "accuracy": None}]}  # fmt: skip
    line = {"optimizer": "adamw", "rank": None, "rate": 4e-3, "loss": 1.0, "record": record}
    (tmp_path / "q.jsonl").write_text(json.dumps(line) + "\n")
    row = table(tmp_path / "q.jsonl")["adamw"]
    assert row.commits == ["unknown"] and row.seconds == 3.0 and load_budget(tmp_path / "q.jsonl") == Budget()


def test_an_optimizer_that_raises_keeps_its_message_and_the_others_continue(
    ran: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path / "q.jsonl", "--optimizers", "adafactor", "adamw")
    found = table(tmp_path / "q.jsonl")
    assert found["adafactor"].error == "RuntimeError: no such kernel" and not found["adafactor"].records
    assert found["adamw"].records and not found["adamw"].error
    assert sum(variant.optimizer == "adafactor" for variant, _, _ in ran) == 3  # no more rates, no seeds
    assert "no such kernel" in capsys.readouterr().out


def test_a_run_that_would_take_too_long_is_given_up_after_its_first_steps(
    ran: list[Any], tmp_path: Path
) -> None:
    results = run(tmp_path / "q.jsonl", "--optimizers", "muon", "adamw")
    slow = [record for r, record in results.items() if r.variant.optimizer == "muon"]
    assert all(record.step == quality_runs.FIRST_STEPS and record.loss == math.inf for record in slow)
    assert table(tmp_path / "q.jsonl")["muon"].error == "TimeoutError: would take 8000000 s, more than 600"


def test_longer_tasks_have_more_time_unless_told() -> None:
    assert quality.Options("charlm").seconds == 600 < quality.Options("gpt256").seconds
    assert quality.Options("gpt256", limit=5.0).seconds == 5
    assert set(quality_runs.LIMITS) <= set(tasks.TASKS)


def test_other_ranks_run_at_the_rate_of_the_tuned_one_only(ran: list[Any], tmp_path: Path) -> None:
    run(tmp_path / "q.jsonl", "--optimizers", "adamw", "sketchy_soap", "--tuned-rank", "8")
    tried = {rank: {rate for c, rate, _ in ran if c == Variant("sketchy_soap", rank)} for rank in (4, 8, 32)}
    assert tried == {8: {2e-3, 4e-3, 8e-3}, 4: {4e-3}, 32: {4e-3}}
    assert {seed for c, _, seed in ran if c.rank == 4} == {0, 1, 2}
    found = table(tmp_path / "q.jsonl")
    assert [len(found[f"sketchy_soap, rank {rank}"].tried) for rank in (4, 8, 32)] == [1, 3, 1]


def test_a_best_rate_at_the_end_of_what_was_tried_has_a_star(ran: list[Any], tmp_path: Path) -> None:
    run(tmp_path / "q.jsonl", "--optimizers", "adamw", "shampoo", "--more-rates", "2")
    found = table(tmp_path / "q.jsonl")
    assert found["shampoo"].at_an_end and not found["adamw"].at_an_end
    assert (len(found["shampoo"].tried), len(found["adamw"].tried)) == (5, 3)
    names = header(list(found.values()))
    shown = dict(zip(names, cells(found["shampoo"], names), strict=True))
    assert shown["best rate"] == "0.032*"


def test_the_first_step_of_a_run_which_may_compile_is_counted_as_one_like_the_others() -> None:
    curve = [Look(5, 1.0, None)]
    record = Record("digits", 0, 5, step=5, curve=curve, seconds=99.0, cpu_seconds=8.0)
    assert Tuned(ADAMW, {1e-3: 1.0}, 1e-3, [record], [], []).seconds == 10.0


def test_one_finalist_halves_the_runs_on_other_seeds(ran: list[Any], tmp_path: Path) -> None:
    run(tmp_path / "q.jsonl", "--optimizers", "adamw", "--finalists", "1")
    assert [rate for _, rate, seed in ran if seed > 0] == [4e-3, 4e-3]


def test_ctrl_c_keeps_what_is_done_and_the_same_command_goes_on(
    ran: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    training = quality_runs.Training

    def interrupted(*arguments: Any, **options: Any) -> Iterator[Record]:
        for record in training(*arguments, **options):
            if len(ran) == 2 and record.step == 2:
                signal.raise_signal(signal.SIGINT)
            yield record

    before = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch, pytest.raises(SystemExit) as stopped:
        patch.setattr(quality_runs, "Training", interrupted)
        run(tmp_path / "q.jsonl", "--optimizers", "adamw")
    assert stopped.value.code == 130 and signal.getsignal(signal.SIGINT) is before
    assert "continues from here" in capsys.readouterr().out
    assert len(load(tmp_path / "q.jsonl")) == 1
    ran.clear()
    assert len(run(tmp_path / "q.jsonl", "--optimizers", "adamw")) == len(ran) + 1


def test_quick_is_short_and_has_a_file_of_its_own(
    ran: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    quality.main(["digits", "--quick", "--processes", "1"])
    assert load(tmp_path / "runs/quick/quality-digits.jsonl")
    assert {c for c, _, _ in ran} == set(variants(everyone(), (8, 32)))
    assert {(rate, seed) for c, rate, seed in ran if c == ADAMW} == {(4e-3, 0)}


@pytest.mark.parametrize("name", ENTRIES)
@pytest.mark.filterwarnings("ignore")  # of peers
def test_everyone_is_built_with_the_same_decay_and_takes_the_rate(name: str) -> None:
    model = nn.Sequential(nn.Linear(40, 48), nn.ReLU(), nn.Linear(48, 36), nn.ReLU(), nn.Linear(36, 10))
    try:
        optimizer = build(variants((name,), (4,))[0], model, 1e-3)
    except ImportError as error:
        pytest.skip(str(error))
    for group in optimizer.param_groups:
        assert group["lr"] == 1e-3
        assert group.get("weight_decay", 0.01) == 0.01
        assert all(value is True for key, value in group.items() if "decouple" in key)
        assert group.get("leading_basis", 0) < (group.get("rank") or 1)  # Alice's share of its basis
    held = sum(p.numel() for group in optimizer.param_groups for p in group["params"])
    assert held == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("name", sorted(set(ENTRIES) - {"muon", "torchao_adamw_8bit"}))  # bfloat16; compiles
@pytest.mark.filterwarnings("ignore")
def test_everyone_moves_every_weight_and_has_state_of_known_size(name: str) -> None:
    from sketchy.experiments.training import state_bytes

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 48), nn.ReLU(), nn.Linear(48, 36), nn.ReLU(), nn.Linear(36, 10))
    try:
        optimizer = build(variants((name,), (4,))[0], model, 1e-2)
    except ImportError as error:
        pytest.skip(str(error))
    before = [p.detach().clone() for p in model.parameters()]
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(64, 40)).square().sum().backward()
        optimizer.step()
    assert all(not p.equal(b) for p, b in zip(model.parameters(), before, strict=True))
    assert state_bytes(optimizer) > 0


def points(count: int, seed: int = 0) -> list[Point]:
    """Points of other optimizers close together, and our ranks along a line through them."""
    rng = torch.Generator().manual_seed(seed)
    x, y = torch.rand(2, count, generator=rng).tolist()
    peers = [Point(f"some_peer_{i}", None, False, 2 + 5 * x[i], 1.9 + 0.2 * y[i], 0.01) for i in range(count)]
    ranks = [Point("sketchy_soap", 2**i, True, 2.0 * 1.1**i, 2.1 - 0.03 * i, 0.01) for i in range(2, 8)]
    return [Point("adamw", None, False, 3.3, 2.13, 0.01), *peers, *ranks]


@pytest.mark.parametrize("seed", range(3))
def test_names_in_the_picture_touch_neither_each_other_nor_a_point(seed: int) -> None:
    crowd = points(14, seed)
    page = figure({"state": crowd, "seconds": crowd}, "a title")
    renderer = page.canvas.get_renderer()  # type: ignore[attr-defined]
    for axes in page.axes:
        labels = [text for text in axes.texts if text.get_text()]
        assert len(labels) == len(crowd)
        boxes = [label.get_window_extent(renderer) for label in labels]
        assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))
        places = axes.transData.transform([(point.cost, point.loss) for point in crowd])
        assert not any(box.contains(*place) for box in boxes for place in places)


def test_one_that_does_not_train_sits_at_the_edge_with_its_number() -> None:
    crowd = [*points(3), Point("stuck", None, False, 4.0, 9.87, 0.0)]
    assert ceiling(crowd) == 2.13
    page = figure({"state": crowd}, "a title")
    assert "stuck: 9.87" in [text.get_text() for text in page.axes[0].texts]
    assert page.axes[0].get_ylim()[1] < 3


def test_the_front_is_drawn_from_the_file_and_its_table_has_everyone(
    ran: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = tmp_path / "q.jsonl", tmp_path / "front.png"
    run(path, "--optimizers", "adamw", "adafactor", "sketchy_shampoo")
    capsys.readouterr()
    front.main(["digits", "--results", str(path), "--out", str(out)])
    assert out.read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    for words in (
        "| AdamW | 0.010 ± 0.010 |",
        "| SketchyShampoo, rank 4 |",
        "Adafactor (RuntimeError: no such kernel)",
    ):
        assert words in printed
    lines = [line for line in printed.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in lines}) == 1 and len(lines) == 2 + 4  # none for Adafactor


def test_no_runs_are_told(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"no runs in .*nothing\.jsonl"):
        front.main(["digits", "--results", str(tmp_path / "nothing.jsonl")])


def test_the_budget_that_was_asked_for_last_counts(tmp_path: Path) -> None:
    save(tmp_path / "q.jsonl", {}, Budget(rates=2, tuned_rank=8))
    assert load_budget(tmp_path / "q.jsonl") == Budget(rates=2, tuned_rank=8)

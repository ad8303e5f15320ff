"""The speed benchmark: floors count the products of a step, failures are rows, tables are made from rows."""

import math
from functools import partial
from pathlib import Path

import pytest
import torch
from benchmarks.common.process import at_most
from benchmarks.registry.optimizers import OPTIMIZERS, Entry, Several, build, package, vocabulary_aside
from benchmarks.registry.problems import PROBLEMS, Gradients, resnet50
from benchmarks.speed import product_floor, step_table, step_time
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from sketchy.analysis.operations import profile

QUICK = step_time.Options(rounds=2, seconds=0.1, limit=20.0)


def named(*shapes: tuple[int, ...]) -> list[tuple[str, nn.Parameter]]:
    return [(f"weight{i}", nn.Parameter(torch.zeros(shape))) for i, shape in enumerate(shapes)]


@pytest.mark.parametrize("optimizer", ["sketchy_shampoo", "sketchy_soap"])
def test_floor_has_the_products_of_a_real_step(optimizer: str) -> None:
    weights = named((96, 80), (96, 80), (64, 8, 3, 3), (40,))
    gradients = Gradients(p for _, p in weights)
    made = build(optimizer, weights, rank=16)
    for _ in range(5):  # the first ones take the safe road
        gradients.advance()
        made.step()

    def flops(total: list[int], A: list[int], B: list[int], **_: object) -> int:
        return 2 * math.prod(A) * B[-1]

    in_place = {torch.ops.aten.baddbmm_: flops}  # not among those that torch counts
    with FlopCounterMode(display=False, custom_mapping=in_place) as counted:
        gradients.advance()
        made.step()
    products = product_floor.flops(
        product_floor.stacks(optimizer, made.report()), solves=False
    )  # solves aren't counted
    assert products == pytest.approx(counted.get_total_flops(), rel=0.05)


def test_floor_of_a_rank_small_beside_the_sides_is_eight_m_n_l() -> None:
    m, n, l = 4096, 2048, 8
    multiplications = sum(p.flops / 2 for p in product_floor.shampoo(m, n, l, l))
    assert multiplications == pytest.approx(8 * m * n * l, rel=0.02)


def test_floor_does_all_products_of_its_table() -> None:
    table = [(2, product_floor.shampoo(24, 16, 4, 4)), (1, product_floor.soap(24, 16, 4, 4))]
    with FlopCounterMode(display=False) as counted:
        product_floor.runner(table)()
    assert counted.get_total_flops() == product_floor.flops(table)


def test_a_package_that_is_missing_is_named_below_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPTIMIZERS, "absent", Entry(package("no_such_package", "SOAP"), "its own"))
    weights = named((8, 8))
    failed = step_time.timed_step("absent", None, weights, Gradients(p for _, p in weights), QUICK)
    row = {"problem": "matrix", **failed.row()}
    assert "no_such_package" in row["error"]
    shown = step_table.markdown([{**row, "processor": "", "torch": "", "commit": "", "date": ""}])
    assert "Not installed: absent." in shown


def test_a_peer_that_takes_too_long_is_given_up() -> None:
    with (
        pytest.raises(TimeoutError, match=r"it took more than 0.05 s of CPU time"),
        at_most(0.05, "it took more than"),
    ):
        while True:
            torch.ones(4, 4).sum()


def test_a_limit_that_is_swallowed_comes_again() -> None:
    def forever(swallowed: int) -> None:
        while True:
            try:
                while True:
                    torch.ones(4, 4).sum()
            except TimeoutError:
                swallowed -= 1
                if swallowed < 0:
                    raise

    with pytest.raises(TimeoutError), at_most(0.05, "it took more than"):
        forever(swallowed=1)


def test_a_refresh_counts_once_a_period() -> None:
    clock = iter([5.0, 1.0, 1.0, 1.0])
    step = step_time.TimedStep(lambda: None, "peer", period=10, refresh=lambda: None)
    step.timed = lambda: (seconds := next(clock), seconds)  # type: ignore[method-assign]
    step.sample(0)
    assert step.samples[0].cpu == pytest.approx(1e3 * (5 + 9) / 10)
    assert step.samples[0].worst == pytest.approx(5e3)


def test_whole_periods_are_averaged_without_a_way_to_refresh() -> None:
    clock = iter([1.0, 1.0, 8.0, 2.0])
    step = step_time.TimedStep(lambda: None, "peer", period=4)
    step.timed = lambda: (seconds := next(clock), seconds)  # type: ignore[method-assign]
    step.sample(0)
    assert step.samples[0].cpu == pytest.approx(3e3)


def test_a_slow_step_is_timed_once_a_round_and_a_short_one_after_a_warming_step() -> None:
    calls: list[int] = []
    step = step_time.TimedStep(lambda: calls.append(0), "peer")
    step.sample(0)
    assert len(calls) == step_time.REPEATS + 1
    step.slow = True
    step.sample(1)
    assert len(calls) == step_time.REPEATS + 2
    assert len(step.samples) == 2


def test_a_floor_runs_right_behind_its_optimizer() -> None:
    names = ("sketchy_shampoo", "adamw", "failed", "sketchy_shampoo floor")
    everyone = [step_time.TimedStep(lambda: None, name) for name in names]
    everyone[2].error = "ValueError"
    order = [c.optimizer for c in step_time.in_order(everyone)]
    assert order == ["sketchy_shampoo", "sketchy_shampoo floor", "adamw"]


def test_operations_are_counted_from_the_outside() -> None:
    x = torch.ones(4, 4)
    assert profile(lambda: nn.functional.linear(x, x) + 1).operations == 2


def test_gradients_turn_slowly_and_repeat() -> None:
    (_, p), *_ = weights = named((60, 40))
    gradients = Gradients([p for _, p in weights])
    seen = []
    for _ in range(7):
        gradients.advance()
        assert p.grad is not None
        seen.append(p.grad.clone())
        p.grad = None  # as some optimizers do
    assert torch.equal(seen[0], seen[6]) and torch.equal(seen[2], seen[4])
    cosine = torch.nn.functional.cosine_similarity(seen[0].flatten(), seen[1].flatten(), dim=0)
    assert 0.7 < cosine < 0.95


def test_the_block_has_the_four_matrices_of_a_gpt2_layer() -> None:
    shapes = {tuple(p.shape) for _, p in PROBLEMS["block"].parameters()}
    assert shapes == {(2304, 768), (768, 768), (3072, 768), (768, 3072)}


def test_resnet50_has_its_161_tensors() -> None:
    assert len(resnet50()) == 161


def test_two_optimizers_side_by_side_move_both_halves() -> None:
    weights = named((4, 4), (4,))
    for _, p in weights:
        p.grad = torch.ones_like(p)
    make = partial(torch.optim.SGD, lr=1.0)
    several = Several(make([weights[0][1]]), make([weights[1][1]]))
    several.step()
    assert all(torch.equal(p, -torch.ones_like(p)) for _, p in weights)


@pytest.fixture
def rows() -> list[dict]:
    """Two rounds of made-up times on the block."""
    about = {"problem": "block", "processor": "a core", "torch": "2", "commit": "c", "date": "d"}

    def row(name: str, rank: int | None, *times: float) -> dict:
        step = step_time.TimedStep(lambda: None, name, rank=rank)
        step.samples = [step_time.Sample(i, t, t, t) for i, t in enumerate(times)]
        return {**step.row(), **about}

    return [
        row("sketchy_shampoo", 64, 30, 60),
        row("sketchy_shampoo floor", 64, 20, 40),
        row("adamw", None, 10, 20),
        row(step_table.PASS, None, 270, 540),
    ]


def test_ratios_are_taken_round_by_round(rows: list[dict]) -> None:
    results = step_table.Results(rows)
    ratio = results.floor("sketchy_shampoo", 64)
    assert ratio is not None and (ratio.low, ratio.middle, ratio.high) == (1.5, 1.5, 1.5)
    assert results.share("sketchy_shampoo", 64) == pytest.approx(0.1)


def test_markdown_has_a_line_for_every_row(rows: list[dict]) -> None:
    lines = step_table.markdown(rows).split("### Targets")[0].splitlines()
    table = [line for line in lines if line.startswith("|")]
    assert len(table) == 2 + len(rows)
    assert len({line.count("|") for line in table}) == 1
    assert table[2].startswith(
        "| SketchyShampoo, rank 64 | 45.0 (37.5 to 52.5) | 3.00 | 10.0 % |  |  |  | 1.50 | 45.0 |"
    )


def test_tables_name_failures_below_and_the_short_one_has_optimizers_only(rows: list[dict]) -> None:
    absent = {**rows[2], "optimizer": "dion2", "error": "ModuleNotFoundError: No module named 'dion'"}
    slow = {**rows[2], "optimizer": "po_shampoo", "error": "TimeoutError: too slow"}
    table, failed, _ = step_table.users_markdown([*rows, absent, slow], "block").split("\n\n")
    assert [line.split(" | ")[0] for line in table.splitlines()[2:]] == [
        "| SketchyShampoo, rank 64",
        "| AdamW",
    ]
    assert failed == (
        "Not installed: Dion2. Without a result: Shampoo (pytorch_optimizer) (TimeoutError: too slow)."
    )


def test_checks_say_yes_and_no(rows: list[dict]) -> None:
    lines = list(map(str, step_table.checks(rows)))
    assert any("floor: target ≤ 1.5 / measured 1.50 / yes" in line for line in lines)
    rows[0]["samples"][0]["cpu"] = 200
    assert any(
        "AdamW foreach: target ≤ 10 / measured 11.50" in line and "NO" in line
        for line in map(str, step_table.checks(rows))
    )
    assert "| block, rank 64: SketchyShampoo / AdamW foreach | ≤ 10 | 11.50 |" in step_table.markdown(
        rows
    ).replace(" (", " |")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--ranks", "0"], "ranks=0: must be at least 2"),
        (["--limit", "-1"], "limit=-1: must be above 0"),
        (["--problems", "mlp"], "problems=mlp: unknown; known are matrix"),
        (["--table", "FILE"], "expected only rows of this benchmark"),
        (["--out", "FILE"], "expected only rows of this benchmark"),
    ],
    ids=str,
)
def test_what_cannot_be_measured_or_kept_is_said_at_once(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text('{"budget": 1}\n')
    with pytest.raises(SystemExit) as stop:
        step_time.main([str(other) if word == "FILE" else word for word in arguments])
    assert stop.value.code == 2
    assert words in capsys.readouterr().err


def test_who_fails_in_a_round_is_asked_no_more() -> None:
    calls = []

    def fail() -> None:
        calls.append(1)
        raise RuntimeError("no such kernel")

    step = step_time.TimedStep(fail, "peer")
    for round in range(3):
        step.try_sample(round)
    assert step.error == "RuntimeError: no such kernel" and len(calls) == 1


def test_parts_of_operations_are_counted_apart() -> None:
    xs = [torch.ones(3) for _ in range(5)]
    found = profile(lambda: torch._foreach_add_(xs, 1.0))
    assert found.operations == 1 and found.parts >= 5


def test_who_decomposes_any_axis_is_given_no_vocabulary() -> None:
    weights = [
        (n, nn.Parameter(torch.zeros(s))) for n, s in (("embed.weight", (90, 4)), ("mix.weight", (4, 4)))
    ]
    make = vocabulary_aside(lambda some, lr, rank: torch.optim.SGD([p for _, p in some], lr=lr))
    inner, adamw = make(weights, 1.0, None).parts
    assert [p.shape for p in inner.param_groups[0]["params"]] == [(4, 4)]
    assert isinstance(adamw, torch.optim.AdamW) and len(adamw.param_groups[0]["params"]) == 1


def test_a_new_run_of_a_problem_replaces_its_rows(tmp_path: Path, rows: list[dict]) -> None:
    path = tmp_path / "new" / "rows.jsonl"
    step_time.replace_rows(path, rows)
    step_time.replace_rows(path, [{**rows[0], "problem": "matrix"}])
    step_time.replace_rows(path, rows[:1])
    assert [(row["problem"], row["optimizer"]) for row in step_time.load(path, "problem")] == [
        ("matrix", "sketchy_shampoo"),
        ("block", "sketchy_shampoo"),
    ]

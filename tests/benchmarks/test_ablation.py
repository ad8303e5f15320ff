"""Ablations: every change gets the same rates and seeds, tables and pictures compare with all changes on."""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.quality import ablation
from benchmarks.quality import runs as quality_runs
from benchmarks.quality.ablation_plot import Dot, figure
from benchmarks.quality.runs import save
from benchmarks.quality.variants import ENTRIES, WITH_OPTIONS, build, everyone
from benchmarks.registry.changes import ABLATION, ALL, KINDS, SCALES, SWITCHES, Switch, changes, named
from benchmarks.registry.optimizers import ours
from torch import nn

import sketchy
from benchmarks import pages
from sketchy.experiments import tasks
from sketchy.experiments.quality import ADAMW, Results, Run, Variant, load
from sketchy.experiments.training import Look, Record

SOAP = ABLATION["sketchy_soap"]


def worth(variant: Variant) -> float:
    """An invented loss: the place of the change in its table."""
    optimizer, _, change = variant.optimizer.partition(": ")
    return 1.0 + 0.1 * list(ABLATION[optimizer]).index(change)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, float, int]]:
    """Runs that take no time; half of AdamW's rate is best for all but one."""
    done: list[tuple[str, float, int]] = []

    def running(task: tasks.Task, build: Any, *, steps: int, seed: int) -> Iterator[Record]:
        variant, rate = build.args[0], build.keywords["rate"]
        done.append((variant.optimizer, rate, seed))
        best = 0.064 if variant.optimizer == "sketchy_soap: all off" else 0.016
        loss = worth(variant) + abs(math.log2(rate / best)) + 0.01 * seed * seed
        yield Record(task.name, seed, steps, step=steps, curve=[Look(steps, loss, 0.5)], optimizer_bytes=10)

    monkeypatch.setattr(quality_runs, "Training", running)
    monkeypatch.setattr(ablation, "only_legal_instructions", lambda: None)
    monkeypatch.setattr(ablation, "RESULTS", tmp_path)
    return done


def run(*arguments: str) -> None:
    ablation.main(["digits", "--processes", "1", "--rate", "0.032", *arguments])


def test_every_change_gets_the_same_rates_and_its_best_one_all_seeds(
    ran: list[tuple[str, float, int]], tmp_path: Path
) -> None:
    run("--optimizers", "sketchy_soap")
    for change in SOAP:
        own = [(rate, seed) for name, rate, seed in ran if name == named("sketchy_soap", change)]
        best = 0.064 if change == "all off" else 0.016
        assert sorted(own) == sorted([(0.016, 0), (0.032, 0), (0.064, 0), (best, 1), (best, 2)])
    assert {r.variant.rank for r in load(tmp_path / "ablation-digits.jsonl")} == {32}


def test_a_finished_ablation_runs_nothing_again_and_shows_its_tables(
    ran: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run()
    ran.clear()
    run()
    assert not ran
    shown = capsys.readouterr().out.splitlines()[-(3 + len(SOAP) + 3 + len(ABLATION["sketchy_shampoo"])) :]
    assert shown[0] == "| SketchySOAP | digits |"
    assert shown[2] == "| all on | 1.017 ± 0.021* |"
    assert shown[3].endswith("1.117 ± 0.021* (+0.100) |")
    assert any(line.startswith("| SketchyShampoo | digits |") for line in shown)
    ablation.main(["--only-show"])
    assert not ran and "| SketchySOAP | digits |" in capsys.readouterr().out


def adamw_at(rate: float) -> Results:
    return {Run(ADAMW, rate, 0, 3): Record("digits", 0, 3, curve=[Look(3, 1.0, None)])}


def test_adamws_best_rate_is_in_the_middle(tmp_path: Path) -> None:
    save(tmp_path / "quality-digits.jsonl", adamw_at(0.25))
    assert ablation.adamws_rate("digits", tmp_path) == 0.25
    with pytest.raises(ValueError, match="task=charlm: AdamW has no runs"):
        ablation.adamws_rate("charlm", tmp_path)


def results(optimizer: str, losses: dict[str, tuple[float, ...]]) -> Results:
    return {
        Run(Variant(named(optimizer, change), 32), 0.01, seed, 3): Record(
            "digits", seed, 3, curve=[Look(3, loss, None)]
        )
        for change, each in losses.items()
        for seed, loss in enumerate(each)
    }


def test_differences_are_over_the_same_seeds_with_their_standard_error(tmp_path: Path) -> None:
    save(
        tmp_path / "ablation-digits.jsonl", results("sketchy_soap", {ALL: (1.0, 2.0), "all off": (1.1, 2.3)})
    )
    (own,) = ablation.load(tmp_path, "sketchy_soap").values()
    assert ablation.minus_all(own, "all off") == pytest.approx([0.1, 0.3])
    (dot,) = ablation.dots(own)
    assert (dot.change, dot.mean, dot.error) == ("all off", pytest.approx(0.2), pytest.approx(0.1))
    assert ablation.cell(own, "all off") == "1.700 ± 0.849 (+0.200)"
    assert ablation.cell(own, "without row norm") == ""


def test_the_page_has_a_table_and_its_picture_or_says_that_there_is_nothing(tmp_path: Path) -> None:
    assert ablation.page(tmp_path, "sketchy_soap").startswith(
        "No results yet. `python -m benchmarks.quality."
    )
    assert not ablation.drawable(tmp_path, "sketchy_soap")
    save(tmp_path / "ablation-digits.jsonl", results("sketchy_soap", {ALL: (1.0,), "all off": (1.2,)}))
    assert "](ablation-sketchy_soap.png)" in ablation.page(tmp_path, "sketchy_soap")
    assert ablation.picture(tmp_path, "sketchy_soap").startswith(b"\x89PNG")
    assert ablation.page(tmp_path, "sketchy_shampoo").startswith("No results yet.")


def test_the_picture_has_the_first_change_on_top_and_a_panel_for_each_task() -> None:
    dots = [Dot("a", 0.1, 0.01), Dot("b", -0.2, 0.02)]
    page = figure({"one": dots, "two": dots[:1]}, ["a", "b"], "a title")
    assert [axes.get_title() for axes in page.axes] == ["one", "two"]
    bottom, top = page.axes[0].get_ylim()
    assert top < 0 < 1 < bottom
    assert [label.get_text() for label in page.axes[0].get_yticklabels()] == ["a", "b"]


@pytest.mark.parametrize("optimizer", ABLATION)
def test_all_on_and_all_off_differ_in_every_option_and_others_lie_between(optimizer: str) -> None:
    table = changes(SWITCHES[optimizer])
    assert table.items() <= ABLATION[optimizer].items()
    on, off = table[ALL], table["all off"]
    assert on.keys() == off.keys() and all(on[option] != off[option] for option in on)
    for settings in table.values():
        assert settings.keys() == on.keys()
        assert all(value in (on[option], off[option]) for option, value in settings.items())


def test_the_scales_differ_in_the_length_of_steps_only_and_the_last_is_the_default() -> None:
    *others, default = SCALES.items()
    assert default == (sketchy.SketchySOAP._options()["graft_scale"], ALL)
    assert all(SOAP[change] == {**SOAP[ALL], "graft_scale": scale} for scale, change in others)


def test_scales_are_compared_at_the_same_rates(ran: list[Any], tmp_path: Path) -> None:
    save(tmp_path / "quality-digits.jsonl", adamw_at(0.032))
    run("--optimizers", "sketchy_soap")
    header, _, *lines = ablation.scales_page(tmp_path).splitlines()
    assert header == "| task | AdamW's rate | graft_scale | loss by learning rate |"
    assert [line.split(" | ")[:3] for line in lines] == [
        ["| digits", "0.032", scale] for scale in ("1", "1.5", "2.25")
    ]
    assert all(re.findall(r"at ([.\d]+)", line) == ["0.016", "0.032", "0.064"] for line in lines)


def test_settings_that_repeat_are_left_out() -> None:
    two = {name: Switch({name: 1}, {name: 0}) for name in "ab"}
    assert list(changes(two)) == [ALL, "without a", "without b", "all off"]


@pytest.mark.parametrize("name", WITH_OPTIONS)
def test_ours_with_options_are_ours_and_run_only_if_asked_for(name: str) -> None:
    assert Variant(name, 8).sketched and ENTRIES[name].ranked
    assert name not in everyone()
    assert any(name.startswith(kind) for kind in KINDS)


def test_a_named_variant_is_built_with_its_options_and_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(20, 12)
    small = build(Variant("sketchy_soap_small", 8), model, 1e-3).param_groups[0]
    assert (small["rank"], small["momentum_dtype"]) == (8, "int4")
    on = build(Variant(named("sketchy_soap", ALL), 8), model, 1e-3).param_groups[0]
    assert (on["betas"], on["row_norm"]) == ((0.9, 0.95), 0.95)
    make = ours(sketchy.SketchyShampoo, graft_scale=3.0, momentum_dtype=torch.bfloat16)
    group = make(list(model.named_parameters()), 1e-3, None).param_groups[0]
    assert (group["graft_scale"], group["rank"]) == (3.0, None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cola"], "tasks=cola: unknown; known are charlm"),
        (["digits", "--optimizers", "adamw"], "optimizers=adamw: unknown; known are sketchy_soap"),
        (["digits", "--rate", "-1"], "rate-factor=-250: must be above 0"),
        (["digits", "--seeds", "0", "--rate", "1"], "seeds=0: must be at least 1"),
    ],
)
def test_mistakes_are_told(
    arguments: list[str], message: str, ran: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        ablation.main(arguments)
    assert message in capsys.readouterr().err and not ran


def test_larger_tasks_without_results_are_a_sentence_in_the_docs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    for task in pages.LARGER:
        assert pages.TABLES[f"front {task}"]().startswith("No results yet.")
    record = Record("gpt256", 0, 3, curve=[Look(0, 2.0, None), Look(3, 1.0, None)], optimizer_bytes=8)
    save(tmp_path / "quality-gpt256.jsonl", {Run(ADAMW, 0.01, 0, 3): record})
    assert "](front-gpt256.png)" in pages.TABLES["front gpt256"]()

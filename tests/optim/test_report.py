"""The report: who is counted, which rows share a line, what is compared with AdamW, and its other forms."""

import json
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import sketchy
from optim.optimizers import F64
from sketchy import SketchyShampoo, SketchySOAP
from sketchy.optim.report import Report


def layers(width: int = 12, count: int = 3) -> nn.Module:
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(count)), nn.Linear(width, 5))


def trained(model: nn.Module, **options: object) -> torch.optim.Optimizer:
    optimizer = SketchySOAP(model.named_parameters(), rank=4, **options)
    for step in range(3):
        optimizer.zero_grad()
        size = next(model.parameters()).shape[1]
        x = torch.randn(7, size, generator=torch.Generator().manual_seed(step), dtype=F64).float()
        model(x).square().sum().backward()
        optimizer.step()
    return optimizer


def held(optimizer: torch.optim.Optimizer) -> int:
    return sum(tensor.nbytes for state in optimizer.state.values() for tensor in state.values())


def test_frozen_parameters_do_not_count() -> None:
    model = layers()
    whole = SketchySOAP(model.named_parameters()).report()
    model[0].requires_grad_(False)
    optimizer = trained(model)
    report = optimizer.report()
    assert len(whole) == 8 and [row.name for row in report] == [row.name for row in whole][2:]
    assert report.bytes == held(optimizer) < whole.bytes
    model[1].requires_grad_(False)  # its state is still in memory
    assert optimizer.report().bytes == held(optimizer)


def test_similar_parameters_share_a_line() -> None:
    report = trained(layers()).report()
    lines = {line.split("  ")[0]: line for line in str(report).splitlines()}
    assert set(lines) >= {"*.weight (3)", "*.bias (3)", "3.weight", "3.bias", "total"}
    some = [row for row in report if row.name in ("0.weight", "1.weight", "2.weight")]
    words = lines["*.weight (3)"].split()
    assert words[2:6] == ["12x12", "sketch", "4", "4"]
    assert words[6] == f"{sum(row.bytes for row in some):,}"
    assert words[7] == f"{max(row.escaped_share for row in some):.1%}"
    assert words[8] == f"{max(row.certified_error for row in some):.1%}"
    assert "(n): n similar parameters" in str(report)


def test_only_equal_treatment_is_similar() -> None:
    model = layers()
    named = dict(model.named_parameters())
    apart = {"params": [("1.weight", named.pop("1.weight"))], "rank": 5}
    text = str(SketchySOAP([{"params": list(named.items())}, apart], rank=4).report())
    assert "*.weight (2)" in text and "\n1.weight " in text
    shapes = str(SketchySOAP(layers(count=1).named_parameters()).report())
    assert "(n)" not in shapes  # weights of other shapes have lines of their own


@pytest.mark.parametrize(("width", "more"), [(16, True), (160, False)])
def test_it_is_compared_with_adamws_state_and_more_is_said_plainly(width: int, more: bool) -> None:
    model = layers(width)
    adamw = torch.optim.AdamW(model.parameters())
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    adamw.step()
    report = SketchySOAP(model.named_parameters(), rank=16).report()
    assert report.adamw_bytes == held(adamw)
    assert f"AdamW would hold {held(adamw):,} bytes; this is {report.bytes / held(adamw):.2f} times" in str(
        report
    )
    assert ("MORE than AdamW" in str(report)) == (report.bytes > held(adamw)) == more


@pytest.mark.parametrize("cls", [SketchyShampoo, SketchySOAP])
@pytest.mark.parametrize(
    "shape", [(64, 64), (256, 64), (128, 128), (8, 4096), (64, 32, 3, 3), (768, 768)], ids=str
)
def test_the_default_rank_keeps_no_more_than_adamw_and_the_report_says_so(
    cls: type, shape: tuple[int, ...]
) -> None:
    p = nn.Parameter(torch.zeros(shape))
    optimizer, adamw = cls([("w", p)]), torch.optim.AdamW([p])
    p.grad = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=F64).float()
    optimizer.step()
    adamw.step()
    (row,) = optimizer.report()
    chosen = max(rank for rank in row.ranks if rank is not None)
    assert held(optimizer) == row.bytes <= held(adamw)
    sides = (shape[0], p.numel() // shape[0])
    full = chosen == min(64, max(sides))
    assert row.lowered == (not full)
    assert (f"rank=None chose {chosen} instead of 64" in str(optimizer.report())) != full
    if not full:  # one more is too much
        assert cls([("w", p)], rank=chosen + 1).report().bytes > 8 * p.numel()


@pytest.mark.parametrize(("shape", "rank"), [((64, 64), 21), ((128, 128), 44), ((8, 4096), 7)])
def test_the_page_on_memory_names_the_ranks_that_are_chosen(shape: tuple[int, int], rank: int) -> None:
    axes = SketchySOAP.plan_of(shape, torch.float32).axes
    assert max(axis.rank for axis in axes if axis is not None) == rank
    page = " ".join((Path(__file__).parents[2] / "docs" / "memory.md").read_text(encoding="utf-8").split())
    m, n = shape
    assert re.search(rf"\b{rank} for (an adapter of )?{m} x {n}\b", page)


def test_a_given_rank_is_that_rank_and_small_weights_keep_64() -> None:
    wide, small = nn.Parameter(torch.zeros(64, 64)), nn.Parameter(torch.zeros(63, 65))
    assert [row.ranks for row in SketchySOAP([("w", wide)], rank=64).report()] == [(64, 64)]
    assert [row.ranks for row in SketchySOAP([("w", small)]).report()] == [(63, 64)]


def test_the_default_rank_does_not_depend_on_how_the_state_is_stored() -> None:
    """So a checkpoint can be converted."""
    p = nn.Parameter(torch.zeros(64, 64))
    ranks = set()
    for options in (
        {},
        {"momentum_dtype": "int8"},
        {"momentum_dtype": "int4"},
        {"sketch_dtype": torch.float64},
    ):
        ranks |= {row.ranks for row in SketchySOAP([("w", p)], **options).report()}
    ranks |= {row.ranks for row in SketchySOAP([("w", nn.Parameter(p.detach().double()))]).report()}
    assert len(ranks) == 1
    p.grad = torch.ones_like(p)
    saved, loaded = SketchySOAP([("w", p)]), SketchySOAP([("w", p)], momentum_dtype="int8")
    saved.step()
    loaded.load_state_dict(saved.state_dict())
    loaded.step()
    assert loaded.report().bytes == held(loaded) < held(saved)


@pytest.mark.parametrize("saved_rank", [None, 64])
def test_a_checkpoint_goes_on_with_the_rank_that_it_was_saved_with(saved_rank: int | None) -> None:
    """Older versions saved rank=64, which was the default."""
    ends = []
    for stopped in (False, True):
        torch.manual_seed(0)
        model = layers(64, 1)
        options = {} if saved_rank is None else {"rank": saved_rank}
        optimizer = SketchySOAP(model.named_parameters(), **options)
        for step in range(4):
            if stopped and step == 2:
                state = optimizer.state_dict()
                optimizer = SketchySOAP(model.named_parameters())
                optimizer.load_state_dict(state)
            for i, p in enumerate(model.parameters()):
                generator = torch.Generator().manual_seed(10 * step + i)
                p.grad = torch.randn(p.shape, generator=generator, dtype=F64).float()
            optimizer.step()
        ends.append([p.detach() for p in model.parameters()])
        assert optimizer.report().rows[0].ranks == ((64, 64) if saved_rank else (21, 21))
    assert all(torch.equal(p, q) for p, q in zip(*ends, strict=True))


def test_its_plain_form_is_json_and_its_short_form_is_one_line() -> None:
    optimizer = trained(layers())
    report = optimizer.report()
    plain = json.loads(json.dumps(report.to_dict()))
    assert plain["bytes"] == held(optimizer) and plain["optimizer"] == "SketchySOAP"
    assert [row["name"] for row in plain["parameters"]] == [row.name for row in report]
    assert plain["parameters"][0]["escaped_share"] == report.rows[0].escaped_share
    line = report.summary()
    worst = max(row.certified_error for row in report if row.certified_error is not None)
    assert line.startswith(f"SketchySOAP: {report.bytes:,} bytes of state (")
    assert "4 sketched, 4 on Adam's path" in line and f"error <= {worst:.1%}, 0 skipped" in line
    assert "\n" not in line
    assert Report([], 0, "SketchySOAP").summary().endswith("no parameters, 0 skipped")


def test_the_legend_explains_the_columns_that_have_something_in_them() -> None:
    text = str(trained(layers()).report())
    for column in ("rank: ", "escaped: ", "error <=: ", "skipped: "):
        assert f"\n{column}" in text
    vectors = str(SketchySOAP([("b", nn.Parameter(torch.zeros(3)))]).report())
    assert "\nrank: " not in vectors and "\nescaped: " not in vectors
    assert "\nrounding: " in str(trained(layers(), momentum_dtype="int8").report())


class Scalars(list):
    """TensorBoard's writer, as far as it is used."""

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.append((name, value, step))


class Run(list):
    """A run of Weights & Biases, as far as it is used."""

    def log(self, values: dict[str, float], step: int) -> None:
        self.extend((name, value, step) for name, value in values.items())


class Logger(list):
    """A logger of Lightning, as far as it is used."""

    def log_metrics(self, values: dict[str, float], step: int) -> None:
        self.extend((name, value, step) for name, value in values.items())


@pytest.mark.parametrize("writer", [Scalars, Run, Logger])
def test_its_numbers_are_written_where_a_run_is_watched(writer: type) -> None:
    optimizer, seen = trained(layers()), writer()
    values = sketchy.log(optimizer, seen)
    assert seen == [(name, value, 3) for name, value in values.items()]
    report = optimizer.report()
    assert values["sketchy/state_bytes"] == report.bytes and values["sketchy/skipped"] == 0
    assert values["sketchy/error/0.weight"] == report.rows[0].certified_error
    assert values["sketchy/escaped/0.weight"] == report.rows[0].escaped_share
    assert len(values) == 2 + 2 * 4
    sketchy.log(optimizer, seen, step=50)
    assert seen[-1][2] == 50


def test_an_object_that_is_no_writer_is_refused() -> None:
    with pytest.raises(TypeError, match="writer is a dict: must have add_scalar"):
        sketchy.log(trained(layers()), {})

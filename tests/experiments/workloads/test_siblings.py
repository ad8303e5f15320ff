"""ResNet-50 and the Conformer in the training loop, at the scale tiny, on synthetic data."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from ranks import on_ranks
from sketchy.cli import main
from sketchy.experiments.workloads import folder
from sketchy.experiments.workloads.ranks import joined
from sketchy.experiments.workloads.registry import workload
from sketchy.experiments.workloads.run import Run, Settings
from sketchy.experiments.workloads.workload import Data

NAMES = ("resnet50", "conformer")
every_workload = pytest.mark.parametrize("name", NAMES)


def settings(name: str, optimizer: str = "adamw", **changes: Any) -> Settings:
    scale = workload(name).presets["tiny"].scale.changed({"steps": 6, "look_every": 3, **changes})
    return Settings(name, "tiny", "synthetic", optimizer, 0, scale)


def data(name: str) -> Data:
    return workload(name).sources["synthetic"].open(Path(), settings(name).scale)


def trained(run: Run) -> Run:
    for _ in run:
        pass
    return run


@every_workload
def test_the_command_trains_it_and_its_numbers_are_finite(name: str, tmp_path: Path) -> None:
    main(["train", name, "--scale", "tiny", "--optimizer", "s-shampoo", "--out", str(tmp_path)])
    looks = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [look["step"] for look in looks] == [0, 5, 10, 15, 20]
    for look in looks:
        assert math.isfinite(look["validation_loss"]) and math.isfinite(look["test_metric"])
    assert looks[-1]["train_loss"] < looks[1]["train_loss"]


@pytest.mark.parametrize("optimizer", ["adamw", "shampoo", "s-shampoo", "sketchy-soap"])
@every_workload
def test_a_run_that_was_stopped_ends_with_the_same_bits(name: str, optimizer: str, tmp_path: Path) -> None:
    """Also running averages of norms, augmentation and dropout."""
    chosen, rows = settings(name, optimizer, start_step=2, dropout=0.1, roots_every=2), data(name)
    whole = trained(Run(chosen, rows))
    asked = iter([(False, False), (False, False), (True, False)])
    first = Run(chosen, rows)
    list(folder.steps(first, tmp_path, asked=lambda: next(asked)))
    assert first.record.step == 3
    second = Run(chosen, rows)
    list(folder.steps(second, tmp_path))
    for key, value in whole.network.state_dict().items():
        assert torch.equal(value, second.network.state_dict()[key]), key


def _on_two_ranks(path: Path) -> None:
    with joined("cpu") as ranks:
        run = trained(Run(settings("resnet50"), data("resnet50"), ranks))
        if ranks.first:
            torch.save(run.network.state_dict(), path)


def test_two_ranks_are_one_rank_with_accumulation_because_of_virtual_batches(tmp_path: Path) -> None:
    on_ranks(2, _on_two_ranks, tmp_path / "weights.pt")
    two = torch.load(tmp_path / "weights.pt", weights_only=True)
    rows = data("resnet50")
    for micro_batch in (8, 16):
        one = trained(Run(settings("resnet50", micro_batch=micro_batch), rows))
        for key, weight in one.network.named_parameters():
            torch.testing.assert_close(weight.detach(), two[key], rtol=1e-2, atol=1e-4)
        for key, value in one.network.named_buffers():  # averages of both halves, in two orders
            torch.testing.assert_close(value, two.get(key, value), rtol=0.1, atol=0.03)


@every_workload
def test_bfloat16_changes_the_loss_by_its_rounding(name: str) -> None:
    rows = data(name)
    exact, rounded = (Run(settings(name, precision=kind), rows) for kind in ("float32", "bfloat16"))
    scores = [run.look(rows.validation).loss for run in (exact, rounded)]
    assert scores[0] != scores[1] and scores[1] == pytest.approx(scores[0], rel=0.05)
    for run in (exact, rounded):
        trained(run)
    last = [run.record.looks[-1].validation_loss for run in (exact, rounded)]
    assert last[1] == pytest.approx(last[0], rel=0.2)

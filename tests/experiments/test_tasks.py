"""Tasks: the same batches for all optimizers, held-out rows, messages for missing data."""

import os
from functools import cache
from pathlib import Path

import pytest
import torch

from sketchy.experiments import tasks

SHARED = Path(os.environ.get("SKETCHY_DATA") or Path(__file__).parents[3] / "shared" / "data")


@cache
def load(name: str) -> tasks.Task:
    try:
        return tasks.load(name, directory=SHARED)
    except ValueError as error:
        if "is not in" in str(error):
            pytest.skip(str(error).splitlines()[0])
        raise


@pytest.fixture(params=tasks.TASKS)
def task(request: pytest.FixtureRequest) -> tasks.Task:
    return load(request.param)


def test_a_batch_depends_on_seed_and_step_alone(task: tasks.Task) -> None:
    first = task.rows(seed=1, step=5)
    torch.randn(3)
    again, other_step, other_seed = task.rows(1, 5), task.rows(1, 6), task.rows(2, 5)
    assert all(a.equal(b) for a, b in zip(first, again, strict=True))
    assert len(first[0]) == task.batch
    assert not first[0].equal(other_step[0])
    assert not first[0].equal(other_seed[0])


def test_a_model_depends_on_its_seed_alone_and_leaves_the_global_numbers_be(task: tasks.Task) -> None:
    state = torch.get_rng_state()
    first, again, other = task.model(3), task.model(3), task.model(4)
    assert torch.get_rng_state().equal(state)
    weights = [
        torch.cat([p.detach().flatten() for p in model.parameters()]) for model in (first, again, other)
    ]
    assert weights[0].equal(weights[1])
    assert not weights[0].equal(weights[2])


def test_a_few_steps_bring_the_training_loss_down(task: tasks.Task) -> None:
    model = task.model(0)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4)  # without warmup 1e-3 is too much for gpt10m
    losses = []
    for _ in range(6):
        loss = task.training_loss(model, 0, 0)  # the same batch, so that any decent step helps
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < losses[0]


def test_the_validation_loss_is_the_mean_over_all_rows_in_evaluation_mode() -> None:
    task = tasks.load("digits")
    model = torch.nn.Sequential(task.model(0), torch.nn.Dropout(0.5))
    score = task.validate(model)
    inputs, targets = task.prepare(task.validation)
    outputs = model.eval()(inputs)
    assert score.loss == pytest.approx(task.loss(outputs, targets).item(), rel=1e-5)
    assert score.accuracy == pytest.approx(float((outputs.argmax(-1) == targets).float().mean()))


def test_validating_leaves_the_mode_of_the_model() -> None:
    task = tasks.load("digits")
    for training in (True, False):
        model = task.model(0).train(training)
        task.validate(model)
        assert model.training is training


def test_the_text_is_cut_at_nine_tenths_and_targets_are_the_next_characters() -> None:
    task = load("charlm")
    train, validation = task.train, task.validation
    assert train.inputs[:, 1:].equal(train.targets[:, :-1])
    assert validation.inputs[:, 1:].equal(validation.targets[:, :-1])
    assert validation.targets[:-1, -1].equal(validation.inputs[1:, 0])  # windows side by side
    length = 1_115_394
    assert len(train) == round(0.9 * (length - 1)) - 63
    assert len(validation) == (length - 1 - round(0.9 * (length - 1))) // 64
    assert train.inputs.max() == 64


def test_a_longer_text_is_validated_on_windows_all_over_its_last_tenth() -> None:
    task = load("warpeace")
    length = 3_227_579
    assert len(task.train) == round(0.9 * (length - 1)) - 63
    assert 1500 < len(task.validation) <= 2000
    assert task.validation.inputs.stride() == (3 * 64, 1)
    assert task.validation.inputs[:, 1:].equal(task.validation.targets[:, :-1])


@pytest.mark.parametrize(
    ("name", "base", "millions"),
    [("gpt256", "warpeace", 3.2), ("gpt10m", "warpeace", 10.7), ("charlm_long", "charlm", 0.42)],
)
def test_larger_and_longer_tasks_have_the_rows_of_the_usual_one(
    name: str, base: str, millions: float
) -> None:
    task, usual = load(name), load(base)
    for split in ("train", "validation"):
        assert getattr(task, split).inputs.equal(getattr(usual, split).inputs)
    weights = sum(p.numel() for p in task.model(0).parameters())
    assert weights / 1e6 == pytest.approx(millions, rel=0.02)
    assert task.name == name and task.steps % task.look_every == 0


@pytest.mark.parametrize(("name", "rows"), [("autoencoder", (50_000, 10_000)), ("cifar10", (45_000, 5_000))])
def test_pictures_are_held_out_of_the_published_training_set(name: str, rows: tuple[int, int]) -> None:
    task = load(name)
    assert (len(task.train), len(task.validation)) == rows
    inputs, _ = task.rows(0, 0)
    if name == "cifar10":
        means = task.prepare(task.train)[0].mean((0, 2, 3))
        assert means.abs().max() < 0.01
    else:
        assert inputs.min() == 0 and inputs.max() == 1


def test_an_untrained_model_knows_nothing() -> None:
    for name, classes in (("charlm", 65), ("warpeace", 110), ("cifar10", 10), ("digits", 10)):
        task = load(name)
        loss = float(task.training_loss(task.model(0), 0, 0).detach())
        assert loss == pytest.approx(torch.log(torch.tensor(float(classes))).item(), rel=0.15)


def test_an_unknown_task_is_told_the_known_ones() -> None:
    with pytest.raises(ValueError, match="task='cola': no such task; known are charlm, autoencoder"):
        tasks.load("cola")


@pytest.mark.parametrize("name", ["charlm", "warpeace", "autoencoder", "cifar10", "tox21"])
def test_a_missing_set_says_where_it_was_looked_for_and_where_to_get_it(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"is not in {tmp_path}.*published at http"):
        tasks.load(name, directory=tmp_path)


def test_a_set_that_is_not_the_published_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "tinyshakespeare.txt").write_text("First Citizen")
    with pytest.raises(ValueError, match="not the tinyshakespeare that was published: sha256"):
        tasks.load("charlm", directory=tmp_path)
    (tmp_path / "text" / "tinyshakespeare.txt").unlink()
    (tmp_path / "text" / "tinyshakespeare.txt.gz").write_bytes(b"not packed")
    with pytest.raises(ValueError, match="Not a gzipped file"):
        tasks.load("charlm", directory=tmp_path)

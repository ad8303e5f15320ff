"""Training runs: repeatable, measured, never a crash."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from sketchy.experiments import tasks
from sketchy.experiments.training import Look, Record, Training, state_bytes, train, warmup_cosine


@pytest.fixture(scope="module")
def digits() -> tasks.Task:
    return tasks.load("digits")


def adamw(lr: float) -> Callable[[nn.Module], Optimizer]:
    return lambda model: AdamW(model.parameters(), lr)


def test_training_learns_the_digits_and_says_what_it_cost(digits: tasks.Task) -> None:
    record = train(digits, adamw(1e-2))
    assert not record.diverged
    assert record.accuracy is not None and record.accuracy > 0.93
    assert [look.step for look in record.curve] == list(range(0, 201, 10))
    assert record.loss == record.curve[-1].loss < record.curve[0].loss / 5
    assert 0 < record.optimizer_seconds < record.seconds
    assert record.cpu_seconds > 0 and record.threads == torch.get_num_threads()


def test_two_runs_agree_bit_for_bit_and_seeds_differ(digits: tasks.Task) -> None:
    first, again, other = (train(digits, adamw(1e-2), steps=20, seed=seed) for seed in (0, 0, 1))
    assert first.curve == again.curve
    assert first.curve != other.curve


def test_the_bytes_are_those_of_all_tensors_in_the_state(digits: tasks.Task) -> None:
    model = digits.model(0)
    weights = sum(p.numel() for p in model.parameters())
    record = train(digits, adamw(1e-2), steps=2)
    assert record.optimizer_bytes == 4 * (2 * weights + len(list(model.parameters())))  # two moments, a step
    assert state_bytes(SGD(model.parameters(), 0.1)) == 0


def test_the_bytes_include_what_is_nested_and_count_shared_memory_once() -> None:
    class Held:
        def __init__(self) -> None:
            self.basis = torch.zeros(10)

    whole, module = torch.zeros(100), nn.Module()
    module.matrix = torch.zeros(3, 3)
    optimizer = SGD([weight := torch.zeros(1, requires_grad=True)], 0.1)
    optimizer.state[weight] = {
        "list": [torch.zeros(3), {"deep": torch.zeros(4)}],
        "object": Held(),
        "module": module,
        "step": 7,
    }
    assert state_bytes(optimizer) == 4 * (3 + 4 + 10 + 9)
    optimizer.state[weight] = {"view": whole[:5], "other": whole[50:]}
    assert state_bytes(optimizer) == 4 * 100  # all of it is kept alive


def test_a_run_that_leaves_the_numbers_ends_with_loss_inf(digits: tasks.Task) -> None:
    record = train(digits, lambda model: SGD(model.parameters(), 1e20), steps=50)
    assert record.diverged
    assert record.loss == math.inf
    assert record.step < 50


class Broken(SGD):
    def step(self, closure: object = None) -> None:  # type: ignore[override]
        raise torch.linalg.LinAlgError("the algorithm failed to converge")


def test_a_decomposition_that_fails_is_a_run_that_diverged(digits: tasks.Task) -> None:
    record = train(digits, lambda model: Broken(model.parameters(), 0.1), steps=3)
    assert record.diverged and record.step == 1


def test_other_errors_of_an_optimizer_are_raised(digits: tasks.Task) -> None:
    class Wrong(SGD):
        def step(self, closure: object = None) -> None:  # type: ignore[override]
            raise RuntimeError("a mistake")

    with pytest.raises(RuntimeError, match="a mistake"):
        train(digits, lambda model: Wrong(model.parameters(), 0.1), steps=3)


def test_progress_comes_after_every_step_and_one_may_stop_there(digits: tasks.Task) -> None:
    run = iter(Training(digits, adamw(1e-2), steps=5))
    assert [next(run).step for _ in range(3)] == [1, 2, 3]
    run.close()  # type: ignore[attr-defined]


def test_the_rate_follows_the_schedule(digits: tasks.Task) -> None:
    seen = []

    class Watched(SGD):
        def step(self, closure: object = None) -> None:  # type: ignore[override]
            seen.append(self.param_groups[0]["lr"])

    train(digits, lambda model: Watched(model.parameters(), 2.0), steps=30)
    assert seen == pytest.approx([2.0 * warmup_cosine(step, 30) for step in range(30)])


@pytest.mark.parametrize("steps", [1, 2, 10, 400])
def test_the_schedule_warms_up_peaks_once_and_ends_at_a_tenth(steps: int) -> None:
    factors = [warmup_cosine(step, steps) for step in range(steps)]
    peak = factors.index(max(factors))
    assert max(factors) == pytest.approx(1.0)
    assert factors[: peak + 1] == sorted(factors[: peak + 1])
    assert factors[peak:] == sorted(factors[peak:], reverse=True)
    if steps > 2:
        assert factors[-1] == pytest.approx(0.1)


def test_steps_to_a_loss_are_read_off_the_curve_by_straight_lines() -> None:
    looks = [Look(0, 4.0, None), Look(10, 2.0, None), Look(20, 1.0, None), Look(30, math.inf, None)]
    record = Record("any", seed=0, steps=30, curve=looks)
    assert record.steps_to(3.0) == 5.0
    assert record.steps_to(2.0) == 10.0
    assert record.steps_to(1.5) == 15.0
    assert record.steps_to(0.5) is None


def test_no_steps_are_refused(digits: tasks.Task) -> None:
    with pytest.raises(ValueError, match="steps=0: must be at least 1"):
        train(digits, adamw(1e-2), steps=0)

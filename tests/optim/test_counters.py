"""Counters are integers: they go on where float32 stops, and old checkpoints with float32 counters load."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn

from optim.optimizers import CASES, CLASSES, F64, Case, advance, assert_same, snapshot, stepped
from sketchy import SketchyShampoo
from sketchy.core.tasks import readable

FULL = 2**24  # float32 has no odd numbers above it
NAMES = ("step", "skipped", "turn")
every_case = pytest.mark.parametrize("case", CASES, ids=str)


def counters(optimizer: Any) -> list[dict[str, Tensor]]:
    """Of each weight that has entries."""
    states = [state for p, state in optimizer.state.items() if p.numel()]
    return [{name: state[name] for name in NAMES if name in state} for state in states]


def set_all(optimizer: Any, value: int) -> None:
    for each in counters(optimizer):
        for counter in each.values():
            counter.fill_(value)


@every_case
def test_counters_are_integers_and_go_on_past_2_to_the_24(case: Case) -> None:
    optimizer, params = stepped(case)
    set_all(optimizer, FULL)
    advance(optimizer, params, range(3, 6))
    advance(optimizer, params, [6], scale=torch.nan)  # counted as skipped, and nowhere else
    advance(optimizer, params, [7])
    for each in counters(optimizer):
        assert all(counter.dtype == torch.int64 for counter in each.values())
        assert each.pop("skipped") == FULL + 1
        if (
            not readable(each["step"]) and "turn" in each
        ):  # the host doesn't know there that a step was skipped
            assert each.pop("turn") == FULL + 5
        assert all(counter == FULL + 4 for counter in each.values())


@pytest.mark.parametrize("steps", [1, FULL, FULL + 1])
def test_a_bias_correction_knows_every_step_past_2_to_the_24(steps: int) -> None:
    """Adam's step for a second moment of zero is the root of the weights 1 - beta2^t so far."""
    beta2 = 1 - 2**-30
    p = nn.Parameter(torch.zeros(1, dtype=F64))
    optimizer = SketchyShampoo([p], lr=1.0, betas=(0.0, beta2), eps=0.0, weight_decay=0.0)
    advance(optimizer, [p], [0], scale=0.0)
    optimizer.state[p]["step"].fill_(steps - 1)
    p.grad = torch.ones_like(p)
    optimizer.step()
    assert -p.item() == pytest.approx(((1 - beta2**steps) / (1 - beta2)) ** 0.5, rel=1e-12)


@pytest.mark.parametrize("case", CLASSES, ids=str)
def test_a_sketch_is_updated_every_third_step_past_2_to_the_24(case: Case) -> None:
    optimizer, params = stepped(case, update_every=3)
    set_all(optimizer, FULL - 1)  # divisible by 3
    sketched = next(p for p in params if "turn" in optimizer.state[p])
    key = next(key for key in optimizer.state[sketched] if key.endswith("_basis"))
    updated = []
    for step in range(7):
        before = optimizer.state[sketched][key].clone()
        advance(optimizer, params, [step])
        updated.append(not torch.equal(optimizer.state[sketched][key], before))
    assert updated == [True, False, False, True, False, False, True]


def as_before(state_dict: dict[str, Any]) -> dict[str, Any]:
    """A state dict as older versions saved it, with counters in float32."""
    states = {
        key: {name: value.float() if name in NAMES else value for name, value in state.items()}
        for key, state in state_dict["state"].items()
    }
    return {**state_dict, "state": states}


@every_case
def test_a_checkpoint_with_float32_counters_continues_to_the_bit(case: Case) -> None:
    first, params = stepped(case, 4)
    resumed = case.make(params)
    resumed.load_state_dict(as_before(first.state_dict()))
    advance(resumed, params, range(4, 7))
    whole, _ = stepped(case, 7)
    assert_same(snapshot(resumed), snapshot(whole))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("case", CLASSES, ids=str)
def test_so_does_a_distributed_checkpoint(case: Case, tmp_path: Path) -> None:
    first, _ = stepped(case)
    dcp.save(as_before(first.state_dict()), checkpoint_id=tmp_path, no_dist=True)
    fresh, _ = stepped(case, 1)
    loaded = fresh.state_dict()  # its tensors are overwritten, and keep their dtypes
    dcp.load(loaded, checkpoint_id=tmp_path, no_dist=True)
    fresh.load_state_dict(loaded)
    assert counters(fresh) == counters(first)

"""Steps on tensors without values: reading one raises an error. `on_stand_in` has a device with values."""

import pytest
import torch
from torch import nn

from optim.optimizers import CASES, F32, F64, WEIGHTS, Case


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_a_step_needs_no_value_of_a_device(case: Case, dtype: torch.dtype) -> None:
    params = [nn.Parameter(torch.empty(shape, dtype=dtype, device="meta")) for shape in WEIGHTS.values()]
    with pytest.raises(RuntimeError, match="meta"):
        params[0].sum().item()
    optimizer = case.make(params)
    for _ in range(3):
        for p in params:
            p.grad = torch.empty_like(p)
        optimizer.step()
    turns = [state.pop("turn") for state in optimizer.state.values() if "turn" in state]
    assert turns and all(turn == 3 and turn.device.type == "cpu" for turn in turns)
    assert all(t.is_meta for state in optimizer.state.values() for t in state.values())

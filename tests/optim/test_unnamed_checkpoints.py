"""Old checkpoints, without the name of their optimizer and newer options, load and continue as before.

``unnamed-checkpoints.pt`` was written by commit 965d590: for each class a state after three steps, the
weights then, and the weights after two more steps.
"""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

import sketchy
from checks import assert_close

DEVICE = torch.get_default_device()
SAVED: dict[str, Any] = torch.load(Path(__file__).with_name("unnamed-checkpoints.pt"), weights_only=True)


def gradient(p: torch.Tensor, i: int, step: int) -> torch.Tensor:
    return torch.randn(p.shape, generator=torch.Generator().manual_seed(10 * i + step))


def told_of_new_defaults(name: str) -> AbstractContextManager[Any]:
    """A warning says which options keep their old values, for classes whose defaults have changed."""
    kept = {"SketchySOAP": "row_norm=None, whiten=False and the saved betas"}
    return pytest.warns(UserWarning, match=kept[name]) if name in kept else nullcontext()


@pytest.mark.parametrize("name", SAVED)
def test_a_checkpoint_without_a_name_goes_on_as_it_did(name: str) -> None:
    saved = SAVED[name]
    params = [torch.nn.Parameter(w.to(DEVICE, copy=True)) for w in saved["weights"]]
    optimizer = getattr(sketchy, name)(params, lr=1.0)
    with told_of_new_defaults(name):
        optimizer.load_state_dict(saved["state_dict"])
    for step in (3, 4):
        for i, p in enumerate(params):
            p.grad = gradient(p, i, step)
        optimizer.step()
    for p, expected in zip(params, saved["after"], strict=True):
        assert_close(p.detach().cpu(), expected.cpu(), scale=1.0, tolerance=1e-5)
    assert optimizer.state_dict()["param_groups"][0]["sketchy_optimizer"] == name


@pytest.mark.parametrize("name", SAVED)
@pytest.mark.parametrize("other", SAVED)
def test_a_checkpoint_without_a_name_loads_into_no_other_optimizer(name: str, other: str) -> None:
    params = [torch.nn.Parameter(weight.clone()) for weight in SAVED[name]["weights"]]
    optimizer = getattr(sketchy, other)(params)
    if name == other:
        with told_of_new_defaults(name):
            optimizer.load_state_dict(SAVED[name]["state_dict"])
        return
    with pytest.raises(ValueError, match="Nothing was loaded"):
        optimizer.load_state_dict(SAVED[name]["state_dict"])
    assert not optimizer.state

"""What is written for torch's AdamW works here unchanged, or one sentence says what to delete."""

import inspect
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from optim.optimizers import CLASSES, Case, advance, assert_same, snapshot, weights
from sketchy import Shampoo, SketchyAdagrad, SketchyShampoo, SketchySOAP
from sketchy.optim.options import REFUSED, OfTorch

every_class = pytest.mark.parametrize("case", CLASSES, ids=str)
MIGRATING = Path(__file__).parents[2] / "docs" / "migrating.md"


@every_class
def test_flags_of_adamws_call_sites_change_nothing(case: Case) -> None:
    params, twins = weights(), weights()
    flags: dict[str, Any] = {"fused": True, "foreach": None, "capturable": True}
    plain, flagged = case.make(twins), case.make(params, **flags, amsgrad=False, differentiable=False)
    assert flagged.defaults == plain.defaults  # so that checkpoints have no trace of them
    advance(flagged, params, range(3))
    advance(plain, twins, range(3))
    assert_same(snapshot(flagged), snapshot(plain))


@every_class
@pytest.mark.parametrize("flag", REFUSED)
def test_what_adamw_could_and_ours_cannot_is_refused_and_named_for_deletion(case: Case, flag: str) -> None:
    says = f"^{flag}=True: must be False, because .*; delete it$"
    with pytest.raises(ValueError, match=says):
        case.make(weights(), **{flag: True})
    params = weights()
    with pytest.raises(ValueError, match=f"^{flag}=True in parameter group 0: must be False"):
        case.make([{"params": params, flag: True}])
    optimizer = case.make(params)
    advance(optimizer, params, range(1))
    optimizer.param_groups[0][flag] = True
    with pytest.raises(ValueError, match=f"^{flag}=True in parameter group 0: must be False"):
        optimizer.step()


def test_every_argument_of_adamw_is_ours_or_spoken_of_on_the_page_on_migrating() -> None:
    """A new version of torch with a new argument fails here: decide what it means."""
    theirs = set(inspect.signature(torch.optim.AdamW).parameters) - {"params"}
    ours = set(inspect.signature(SketchySOAP).parameters)
    page = MIGRATING.read_text(encoding="utf-8").partition("## From AdamW")[2].partition("\n## ")[0]
    assert theirs - ours == set(OfTorch.__annotations__)
    assert all(f"`{name}" in page for name in theirs)


@pytest.mark.parametrize("cls", [SketchyShampoo, SketchySOAP])
def test_adamws_eps_is_a_small_damping_and_trains_as_well(cls: Any) -> None:
    losses = []
    for options in ({}, {"eps": 1e-8}):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 3))
        x, optimizer = torch.randn(64, 12), cls(net.named_parameters(), lr=0.01, **options)
        y = x[:, :3].sin()
        for _ in range(60):
            optimizer.zero_grad()
            loss = (net(x) - y).square().mean()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert losses[0] < 0.02 and losses[1] == pytest.approx(losses[0], rel=0.05)


@every_class
def test_options_changed_in_the_middle_of_a_run_are_checked_by_the_next_step(case: Case) -> None:
    params = weights()
    optimizer = case.make(params)
    advance(optimizer, params, range(1))
    group, before = optimizer.param_groups[0], snapshot(optimizer)
    for name, value, says in (
        ("weight_deacy", 0.1, r"weight_deacy=0.1 in parameter group 0: .*did you mean weight_decay\?"),
        ("lr", torch.ones(2), "Tensor lr must be 1-element in parameter group 0"),
        ("eps", torch.tensor(-1.0), r"eps=.* in parameter group 0: must be a number"),
        ("betas", None, "betas=None in parameter group 0: must be two numbers"),
    ):
        kept = dict(group)
        group[name] = value
        with pytest.raises(ValueError, match=says):
            optimizer.step()
        group.clear()
        group.update(kept)
    del group["update_every"]
    with pytest.raises(ValueError, match="update_every is missing in parameter group 0"):
        optimizer.step()
    group["update_every"] = 1
    for name in case.cls.without:
        group[name] = None
        with pytest.raises(ValueError, match=f"{name}=None in parameter group 0: .* has no such option"):
            optimizer.step()
        del group[name]
    assert_same(snapshot(optimizer), before)
    group |= {"lr": 0.5, "initial_lr": 0.5}  # what schedules do
    advance(optimizer, params, range(1))


@every_class
@pytest.mark.parametrize("kind", [float, int])
def test_a_checkpoint_whose_steps_are_plain_numbers_loads(case: Case, kind: type[float]) -> None:
    params, twins = weights(), weights()
    saved, loaded = case.make(params), case.make(twins)
    advance(saved, params, range(1))
    state = saved.state_dict()
    state["state"] = {key: {**slots, "step": kind(slots["step"])} for key, slots in state["state"].items()}
    loaded.load_state_dict(state)
    with torch.no_grad():
        for p, twin in zip(params, twins, strict=True):
            twin.copy_(p)
    assert_same(snapshot(loaded), snapshot(saved))
    for wrong in (float("nan"), 1.5, -1, True, "1"):
        state["state"] = {key: {**slots, "step": wrong} for key, slots in state["state"].items()}
        with pytest.raises(ValueError, match="has step "):
            loaded.load_state_dict(state)


class Words(nn.Module):
    """A small language model: an embedding that only its name tells from other matrices."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.wte, self.up = nn.Embedding(65, 16), nn.Linear(16, 64, bias=bias)
        self.down, self.norm = nn.Linear(64, 16, bias=bias), nn.LayerNorm(16)
        self.lm_head = nn.Linear(16, 65, bias=False)


def words_said(make: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        make()
    return [str(warning.message) for warning in said]


@pytest.mark.parametrize("cls", [Shampoo, SketchyShampoo, SketchySOAP])
@pytest.mark.parametrize("bias", [False, True])
def test_an_embedding_without_a_name_is_warned_of_once_with_the_remedy(cls: Any, bias: bool) -> None:
    model = Words(bias)
    (said,) = words_said(lambda: cls(model.parameters()))
    assert "(65, 16) looks like an embedding" in said and "model.named_parameters()" in said
    matrices, vectors = ([p for p in model.parameters() if p.dim() == d] for d in (2, 1))
    groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
    assert len(words_said(lambda: cls(groups))) == 1
    groups[0]["path"] = "sketch"  # who chooses knows
    assert not words_said(lambda: cls(groups))
    assert not words_said(lambda: cls(model.named_parameters()))


def net(*sizes: int, bias: bool = True) -> nn.Module:
    return nn.Sequential(*(nn.Linear(m, n, bias=bias) for m, n in pairwise(sizes)))


@pytest.mark.parametrize(
    "model",
    [
        net(64, 128, 64, 10),
        net(64, 128, 64, 64, bias=False),
        net(784, 30),
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 16, 3), nn.Flatten(), nn.Linear(16, 10)),
        nn.TransformerEncoderLayer(32, 4, 64),
        nn.LSTM(10, 20, num_layers=2),
        nn.Linear(5, 1),
    ],
    ids=lambda model: type(model).__name__,
)
def test_other_networks_without_names_are_not_warned_of(model: nn.Module) -> None:
    assert not words_said(lambda: SketchySOAP(model.parameters()))
    assert not words_said(lambda: SketchyAdagrad(Words(True).parameters()))  # it sketches all on purpose

"""The table of optimizers x torch.distributed.checkpoint, in one process without a process group."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

from optim.optimizers import BF16, CASES, CLASSES, F32, Case, advance, assert_same, options_of, snapshot

every_case = pytest.mark.parametrize("case", CASES, ids=str)
NESTED, FLAT, FULL = (
    StateDictOptions(),
    StateDictOptions(flatten_optimizer_state_dict=True),
    StateDictOptions(full_state_dict=True),
)
layouts = pytest.mark.parametrize("options", [NESTED, FLAT, FULL], ids=["nested", "flat", "full"])


def model(dtype: torch.dtype = F32) -> nn.Module:
    generator = torch.Generator().manual_seed(3)
    net = nn.ModuleDict(
        {
            "words": nn.Embedding(7, 4),
            "conv": nn.Conv2d(3, 4, 2),
            "layers": nn.ModuleList(nn.Linear(6, 5) for _ in range(2)),
            "norm": nn.LayerNorm(5),
        }
    )
    for p in net.parameters():
        p.data = torch.randn(p.shape, generator=generator).to(dtype)
    return net


def build(case: Case, dtype: torch.dtype = F32, steps: int = 0, **options: Any) -> tuple[nn.Module, Any]:
    net = model(dtype)
    params = list(net.named_parameters())
    groups = [{"params": params[:3], "weight_decay": 0.2}, {"params": params[3:], "lr": 0.02}]
    optimizer = case.make(groups, **options)
    advance(optimizer, list(net.parameters()), range(steps))
    return net, optimizer


def state_of(optimizer: Any) -> dict[str, torch.Tensor]:
    return {k: v for k, v in snapshot(optimizer).items() if k.count(".") > 1}


@every_case
@layouts
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_a_distributed_checkpoint_goes_there_and_back(
    case: Case, options: StateDictOptions, dtype: torch.dtype
) -> None:
    source, optimizer = build(case, dtype, steps=3)
    saved = get_optimizer_state_dict(source, optimizer, options=options)
    target, fresh = build(case, dtype, lr=0.5)
    before = [p.detach().clone() for p in target.parameters()]
    set_optimizer_state_dict(target, fresh, saved, options=options)
    assert all(torch.equal(p, q) for p, q in zip(target.parameters(), before, strict=True))
    assert_same(state_of(fresh), state_of(optimizer))
    assert options_of(fresh) == options_of(optimizer)

    target.load_state_dict(source.state_dict())
    for net, each in ((source, optimizer), (target, fresh)):
        advance(each, list(net.parameters()), range(3, 5))
    assert_same(snapshot(fresh), snapshot(optimizer))


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("case", CLASSES, ids=str)
@layouts
def test_it_goes_through_files_too(case: Case, options: StateDictOptions, tmp_path: Path) -> None:
    source, optimizer = build(case, steps=3)
    dcp.save(
        {"o": get_optimizer_state_dict(source, optimizer, options=options)},
        checkpoint_id=tmp_path,
        no_dist=True,
    )

    target, fresh = build(case)
    loaded = {"o": get_optimizer_state_dict(target, fresh, options=options)}
    dcp.load(loaded, checkpoint_id=tmp_path, no_dist=True)
    set_optimizer_state_dict(target, fresh, loaded["o"], options=options)
    assert_same(state_of(fresh), state_of(optimizer))


@pytest.mark.parametrize("case", CLASSES, ids=str)
@layouts
def test_a_parameter_without_entries_has_its_place_in_a_checkpoint(
    case: Case, options: StateDictOptions
) -> None:
    nets = nn.Linear(5, 4), nn.Linear(5, 4)
    for net in nets:
        net.nothing = nn.Parameter(torch.zeros(0, 3))
    optimizer, fresh = (case.make(net.named_parameters()) for net in nets)
    advance(optimizer, list(nets[0].parameters()), range(2))
    saved = get_optimizer_state_dict(nets[0], optimizer, options=options)
    set_optimizer_state_dict(nets[1], fresh, saved, options=options)
    assert_same(state_of(fresh), state_of(optimizer))


@every_case
def test_reading_the_state_before_training_moves_nothing(case: Case) -> None:
    """It makes one real step with zero gradients and a rate of zero."""
    net, optimizer = build(case)
    saved = get_optimizer_state_dict(net, optimizer)
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), model().parameters(), strict=True))
    assert set(saved["state"]) == {name for name, _ in net.named_parameters()}
    for values in saved["state"].values():
        assert all(isinstance(v, torch.Tensor) and "." not in k for k, v in values.items())
    assert optimizer.param_groups[1]["lr"] == 0.02

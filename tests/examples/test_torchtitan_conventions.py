"""What torchtitan does with an optimizer, done here without it.

Its groups carry names, `fused` and `foreach`. Its state dicts are flat, by torch's function in older versions
and by its own now, from names and a plain state dict. In some versions, a `Config` makes an optimizer.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sketchy
from optim.test_sharded_models import assert_same, net, shard
from ranks import on_ranks

CASES: list[tuple[str, float]] = [("SketchyShampoo", 1e-12), ("SketchySOAP", 1e-8)]  # SOAP amplifies rounding
WAYS = ("torch's function", "by names")


def made(name: str, model: nn.Module) -> Any:
    """One group with its names beside the parameters, and all options in the group."""
    names, params = zip(*model.named_parameters(), strict=True)
    group = {"params": list(params), "param_names": list(names), "fused": True, "foreach": False}
    options = {"lr": 0.01, "betas": (0.9, 0.95), "weight_decay": 0.1, "rank": 3}
    return getattr(sketchy, name)([group | options])


def descend(model: Any, optimizer: Any, steps: range, ranks: int) -> None:
    """Two small batches a step, of which each rank takes its rows; the sum of the gradients is clipped."""
    here = torch.distributed.get_rank() if ranks > 1 else 0
    for step in steps:
        optimizer.zero_grad()
        for micro in range(2):
            if ranks > 1:
                model.set_requires_gradient_sync(micro == 1)
            generator = torch.Generator().manual_seed(2 * step + micro)
            ids = torch.randint(11, (8, 5), generator=generator)
            (model(ids[here::ranks], step) / 2).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()


def named(optimizer: Any) -> list[tuple[str, Tensor]]:
    groups = optimizer.param_groups
    return [pair for g in groups for pair in zip(g["param_names"], g["params"], strict=True)]


def flat_by_names(optimizer: Any) -> dict[str, Any]:
    saved, names = optimizer.state_dict(), [name for name, _ in named(optimizer)]
    assert saved["state"].keys() == set(range(len(names)))
    states = {f"state.{names[i]}.{k}": v for i, state in saved["state"].items() for k, v in state.items()}
    groups = [(name, group) for group in saved["param_groups"] for name in group["param_names"]]
    options = {f"param_groups.{n}.{k}": v for n, g in groups for k, v in g.items() if k[:5] != "param"}
    return states | options


def load_by_names(optimizer: Any, flat: dict[str, Any]) -> None:
    """Which entries there are is known from the optimizer, not from the checkpoint."""
    first, params = named(optimizer)[0][0], [p for _, p in named(optimizer)]
    state = {
        i: {key: flat[f"state.{name}.{key}"] for key in optimizer.state[p]}
        for i, (name, p) in enumerate(named(optimizer))
    }
    keys = [key for key in optimizer.param_groups[0] if key[:5] != "param"]
    group = {key: flat[f"param_groups.{first}.{key}"] for key in keys}
    optimizer.load_state_dict({"state": state, "param_groups": [group | {"params": [*range(len(params))]}]})


def make_state(optimizer: Any) -> None:
    """A step without gradients and without a rate, where a parameter has no state."""
    fresh = [p for _, p in named(optimizer) if not optimizer.state.get(p)]
    rates = [group["lr"] for group in optimizer.param_groups]
    optimizer.zero_grad()
    for p in fresh:
        p.grad = torch.zeros_like(p)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    optimizer.step()
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    optimizer.zero_grad()


def leg(folder: str, name: str, tolerance: float, way: str, ranks: int) -> None:
    """Two ranks begin; four go on, at first without a gradient for one of the weights."""
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint import state_dict as states

    flatten = states.StateDictOptions(flatten_optimizer_state_dict=True)
    model = net()
    shard(model, (ranks,))
    optimizer = made(name, model)
    if ranks == 2:
        descend(model, optimizer, range(5), ranks)
    if way == "by names":
        if ranks == 4:
            make_state(optimizer)
        state = flat_by_names(optimizer)
    else:
        state = states.get_optimizer_state_dict(model, optimizer, options=flatten)
    for key in state:  # state.{name}.{key}, and no dot in the key
        kind, _, rest = key.partition(".")
        owner = max((n for n, _ in named(optimizer) if rest.startswith(f"{n}.")), key=len)
        assert kind in ("state", "param_groups") and "." not in rest.removeprefix(f"{owner}."), key
    assert {"state.up.weight.left_basis", "param_groups.up.weight.lr"} <= state.keys()

    saved: dict[str, Any] = {"model": states.get_model_state_dict(model), "optimizer": state}
    if ranks == 2:
        checkpoint.save(saved, checkpoint_id=folder)
        return
    checkpoint.load(saved, checkpoint_id=folder)
    states.set_model_state_dict(model, saved["model"])
    if way == "by names":
        load_by_names(optimizer, saved["optimizer"])
    else:
        states.set_optimizer_state_dict(model, optimizer, saved["optimizer"], options=flatten)
    descend(model, optimizer, range(5, 10), ranks)  # step 5 is odd: the layer `unused` has no gradient

    one = net()
    descend(one, made(name, one), range(10), 1)
    assert_same(one, model, tolerance, (name, way))


def legs(folder: str, ranks: int) -> None:
    for name, tolerance in CASES:
        for way in WAYS:
            leg(f"{folder}/{name}-{way}", name, tolerance, way, ranks)


@pytest.mark.slow
def test_a_flat_checkpoint_of_two_processes_goes_on_with_four_like_one_process(tmp_path: Path) -> None:
    for ranks in (2, 4):
        on_ranks(ranks, legs, str(tmp_path), ranks)


def test_fused_and_foreach_in_a_group_change_nothing() -> None:
    one, two = net(), net()
    descend(one, made("SketchySOAP", one), range(3), 1)
    plain = sketchy.SketchySOAP(two.named_parameters(), lr=0.01, betas=(0.9, 0.95), weight_decay=0.1, rank=3)
    descend(two, plain, range(3), 1)
    assert_same(one, two, 0.0, "fused")


class BaseOptimizer(torch.optim.Optimizer):
    """Stands for torchtitan's class of this name: the config makes the optimizer."""

    @dataclass(kw_only=True, slots=True)
    class Config:
        pattern: str


class SketchySOAP(sketchy.SketchySOAP, BaseOptimizer):
    """Ours, made by a config."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseOptimizer.Config):
        lr: float = 8e-4
        rank: int = 64
        weight_decay: float = 0.1

    def __init__(self, config: Config, *, params: Any) -> None:
        super().__init__(params, lr=config.lr, rank=config.rank, weight_decay=config.weight_decay)


def test_the_class_with_a_config_is_the_plain_class_and_resumes() -> None:
    def build(model: nn.Module) -> SketchySOAP:
        names, params = zip(*model.named_parameters(), strict=True)
        groups = [{"params": list(params), "param_names": list(names)}]
        return SketchySOAP(SketchySOAP.Config(pattern=".*", lr=0.01, rank=3), params=groups)

    one, two = net(), net()
    ours = build(one)
    plain = sketchy.SketchySOAP(two.named_parameters(), lr=0.01, rank=3, weight_decay=0.1)
    for model, optimizer in ((one, ours), (two, plain)):
        descend(model, optimizer, range(3), 1)
    again = build(one)
    make_state(again)
    load_by_names(again, flat_by_names(ours))
    descend(one, again, range(3, 5), 1)
    descend(two, plain, range(3, 5), 1)
    assert_same(one, two, 0.0, "config")

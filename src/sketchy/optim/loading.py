"""Loading a state dict: everything is checked before anything changes, and dtypes survive."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from sketchy.optim import options
from sketchy.optim.plan import Plan

PlanOf = Callable[[dict[str, Any], Tensor, str | None], Plan]
_ALWAYS = ("params", "lr", "betas", "update_every")  # in each group of each of our optimizers, and no other's


def _pairs(
    optimizer: Optimizer, loaded: Mapping[str, Any]
) -> list[tuple[dict[str, Any], Tensor, str | None, Any]]:
    """(saved options, parameter, name, key of its saved state), parameter by parameter."""
    pairs = []
    for group, saved in zip(optimizer.param_groups, loaded["param_groups"], strict=True):
        settings = {**optimizer.defaults, **{k: v for k, v in saved.items() if k != "params"}}
        names = saved.get("param_names") or group.get("param_names") or [None] * len(group["params"])
        for p, name, key in zip(group["params"], names, saved["params"], strict=True):
            pairs.append((settings, p, name, key))
    return pairs


def check_loaded(optimizer: Optimizer, loaded: Mapping[str, Any], plan_of: PlanOf) -> None:
    """Raise ValueError, and say where, unless this is a state of this optimizer for these parameters."""
    kind = type(optimizer).__name__
    for part in ("state", "param_groups"):
        if part not in loaded:
            raise ValueError(f"the state dict has no {part!r}: is it an optimizer's?")
    for index, saved in enumerate(loaded["param_groups"]):
        if missing := [name for name in _ALWAYS if name not in saved]:
            raise ValueError(
                f"parameter group {index} of the state dict lacks {', '.join(missing)}: it was saved by"
                f" another optimizer than {kind}, or is damaged. Nothing was loaded"
            )
        options.check(saved, f" in parameter group {index} of the state dict")
    sizes = [
        [len(g["params"]) for g in groups] for groups in (optimizer.param_groups, loaded["param_groups"])
    ]
    if sizes[0] != sizes[1]:
        raise ValueError(
            f"the state dict has parameter groups of sizes {sizes[1]}, {kind} has {sizes[0]}:"
            " different number of parameter groups or parameters. Nothing was loaded"
        )
    for settings, p, name, key in _pairs(optimizer, loaded):
        if loaded["state"].get(key):
            _check_state(loaded["state"][key], plan_of(settings, p, name), name or str(key), kind)


def _check_state(saved: Any, plan: Plan, name: str, kind: str) -> None:
    problem = ""
    if not isinstance(saved, Mapping):
        problem = f"is a {type(saved).__name__}, not a dict"
    elif missing := plan.state.keys() - saved.keys():
        problem = f"lacks {', '.join(sorted(missing))}"
    elif extra := saved.keys() - plan.state.keys():
        problem = f"has {', '.join(sorted(map(str, extra)))}, which {kind} does not keep with these options"
    else:
        for key, tensor in plan.state.items():
            value = saved[key]
            if not isinstance(value, Tensor) or tuple(value.shape) != tensor.shape:
                found = (
                    f"shape {tuple(value.shape)}"
                    if isinstance(value, Tensor)
                    else f"a {type(value).__name__}"
                )
                problem = f"has {key} of {found}, not a tensor of shape {tensor.shape}"
            elif not value.is_floating_point():
                problem = f"has {key} in {value.dtype}, not in {tensor.dtype}"
            elif not value.is_meta and not torch.isfinite(value).all():
                problem = f"has {key} with NaN or Inf"
    if problem:
        raise ValueError(
            f"the saved state of parameter {name!r} {problem};"
            " it was saved by another optimizer, by other options, or is damaged. Nothing was loaded"
        )


def restore(optimizer: Optimizer, loaded: Mapping[str, Any], plan_of: PlanOf) -> None:
    """Give every loaded tensor the dtype its state has; torch has cast them to the parameter's."""
    for group in optimizer.param_groups:
        group.update(options.check(group, ""))  # a tuple may have come as a list
    for settings, p, name, key in _pairs(optimizer, loaded):
        if saved := loaded["state"].get(key):
            for k, tensor in plan_of(settings, p, name).state.items():
                device = "cpu" if tensor.on_host else p.device
                optimizer.state[p][k] = saved[k].detach().to(device, tensor.dtype, copy=True)

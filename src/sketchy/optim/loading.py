"""Loading a state dict: check all of it before anything changes, and keep the dtypes of the state."""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from sketchy.optim import options
from sketchy.optim.convert import converted
from sketchy.optim.plan import Plan, PlanOf
from sketchy.optim.sharding import Sharding, local, sharding
from sketchy.optim.slots import Meaning, Slot, is_sharded
from sketchy.optim.stack import Group

NAME = "sketchy_optimizer"  # the key of the optimizer's name in a parameter group
_ALWAYS = ("lr", "betas", "update_every")  # only our optimizers have all of these in each group
# Options that only some of our optimizers have. Checkpoints of older versions contain no name; these options
# show which optimizer saved them.
_TELLING = ("rank", "solver", "merge_dims", "one_sided", "precondition_1d", "exponent")
_CHOSEN = ("momentum_dtype", "adam_dtype", "budget")  # what the optimizer has counts, if it is not None
# The largest numbers that a state may have, by `Plan.range`. A step leaves smaller ones behind. With larger
# ones it could overflow.
_LARGEST = {
    dtype: {
        Meaning.COUNTER: 2**53,  # float64, in which bias corrections take it, has no odd numbers above it
        Meaning.MOMENTUM: gradients,
        Meaning.SCALE: gradients,
        Meaning.SPECTRUM: masses,
        Meaning.COVARIANCE: masses,
        Meaning.MOMENT: 1e300,  # some are of directions, whose unit depends on ``exponent``
    }
    for dtype, gradients, masses in ((torch.float32, 1e34, 1e100), (torch.float64, 1e146, 1e300))
}
_ASKEW = 0.05  # how far a basis may be from orthonormal; rounding to bfloat16 gives a tenth of this


def old_defaults(optimizer: Optimizer) -> dict[str, Any]:
    """What options that a checkpoint does not have meant when it was saved: their features did not exist.

    Our optimizers may have changed their defaults since; the table of options has the old ones.
    """
    return {name: options.OPTIONS[name].default for name in optimizer.defaults if name in options.OPTIONS}


def old_defaults_kept(optimizer: Optimizer, loaded: Mapping[str, Any]) -> str:
    """A sentence on the options that keep their old values, because the checkpoint is older than they are."""
    old = {name: value for name, value in old_defaults(optimizer).items() if name not in _CHOSEN}
    missing = {name for saved in loaded["param_groups"] for name in old.keys() - saved.keys()}
    kept = [f"{name}={old[name]!r}" for name in sorted(missing) if old[name] != optimizer.defaults[name]]
    if not kept:
        return ""
    return (
        f"this checkpoint of {type(optimizer).__name__} is from an older version. Training continues as"
        f" before, with {', '.join(kept)} and the saved betas. For the new defaults start a new run"
    )


def _pairs(
    optimizer: Optimizer, loaded: Mapping[str, Any]
) -> list[tuple[dict[str, Any], Tensor, str | None, Any]]:
    """(saved options, parameter, name, key of its saved state) for each parameter."""
    pairs = []
    for group, saved in zip(optimizer.param_groups, loaded["param_groups"], strict=True):
        settings = {**old_defaults(optimizer), **saved}
        del settings["params"]
        names = saved.get("param_names") or group.get("param_names") or [None] * len(group["params"])
        for p, name, key in zip(group["params"], names, saved["params"], strict=True):
            pairs.append((settings, p, name, key))
    return pairs


def check_loaded(optimizer: Optimizer, loaded: Mapping[str, Any], plan_of: PlanOf, saved_as: str) -> None:
    """Raise ValueError if this is not a state dict of this optimizer for these parameters.

    The message says what does not fit, and where. ``saved_as``: the name of the optimizer in its checkpoints.
    """
    kind = type(optimizer).__name__
    for part, what in (("state", Mapping), ("param_groups", list | tuple)):
        if part not in loaded:
            raise ValueError(
                f"the state dict has no {part!r}: is it the state dict of an optimizer? Nothing was loaded"
            )
        if not isinstance(loaded[part], what):
            raise ValueError(
                f"{part!r} of the state dict is a {type(loaded[part]).__name__}: it is damaged. Nothing"
                " was loaded"
            )
    for index, saved in enumerate(loaded["param_groups"]):
        if problem := _problem_of_group(saved, optimizer.defaults.keys(), saved_as):
            raise ValueError(
                f"parameter group {index} of the state dict {problem}: another optimizer than {kind} saved"
                " it, or it is damaged. Nothing was loaded"
            )
        options.check(saved, f" in parameter group {index} of the state dict")
    sizes = [
        [len(g["params"]) for g in groups] for groups in (optimizer.param_groups, loaded["param_groups"])
    ]
    if sizes[0] != sizes[1]:
        raise ValueError(
            f"the parameter groups of the state dict have {sizes[1]} parameters, those of {kind} have"
            f" {sizes[0]}: the number of parameter groups or parameters is different. Nothing was loaded"
        )
    pairs = _pairs(optimizer, loaded)
    listed = {key for *_, key in pairs}

    if len(listed) < len(pairs):
        raise ValueError(
            "the state dict lists a parameter twice in its param_groups: it is damaged. Nothing was loaded"
        )
    # only numbers are keys of parameters: hooks may save data under other keys
    numbers = [key for key in loaded["state"] if isinstance(key, int) or str(key).isdigit()]
    if strangers := [repr(key) for key in numbers if key not in listed]:
        raise ValueError(
            f"the state dict has a state for {', '.join(strangers)}, but none of its parameter groups lists"
            " it: the state dict is damaged. Nothing was loaded"
        )
    for settings, p, name, key in pairs:
        if saved := loaded["state"].get(key):
            _check_state(saved, plan_of(settings, p, name, saved), name or str(key), kind)


def _problem_of_group(saved: Any, own: Collection[str], saved_as: str) -> str:
    """Why a saved parameter group is not one of the optimizer ``saved_as``, which has the options ``own``."""
    if not isinstance(saved, Mapping):
        return f"is a {type(saved).__name__}, not a dict"
    if saved.get(NAME, saved_as) != saved_as:
        return f"was saved by {saved[NAME]}"
    telling = () if NAME in saved else _TELLING
    if missing := [name for name in (*_ALWAYS, *telling) if name in own and name not in saved]:
        return f"lacks {', '.join(sorted(missing))}"
    if extra := [name for name in telling if name in saved and name not in own]:
        return f"has {', '.join(sorted(extra))}"
    if not isinstance(saved.get("params"), list | tuple):
        return "lacks a list of params"
    return ""


def _check_state(saved: Any, plan: Plan, name: str, kind: str) -> None:
    problem = ""
    if not isinstance(saved, Mapping):
        problem = f"is a {type(saved).__name__}, not a dict"
    elif missing := plan.slots.keys() - saved.keys():
        problem = f"lacks {', '.join(sorted(missing))}"
    elif extra := saved.keys() - plan.slots.keys():
        problem = f"has {', '.join(sorted(map(str, extra)))}, which {kind} does not keep with these options"
    else:
        for key, slot in plan.slots.items():
            if wrong := _problem_of_tensor(saved[key], slot, _LARGEST[plan.range].get(slot.meaning)):
                problem = f"has {key} {wrong}"
    if problem:
        raise ValueError(
            f"the saved state of parameter {name!r} {problem}: it was saved by another optimizer or with"
            " other options, for another model, or it is damaged. Nothing was loaded"
        )


def _counted(value: Any, slot: Slot) -> Any:
    """A counter as a tensor, also if it was saved as a plain number, as older optimizers did."""
    plain = slot.meaning is Meaning.COUNTER and isinstance(value, int | float) and not isinstance(value, bool)
    return torch.tensor(value, dtype=torch.float64) if plain else value


def _problem_of_tensor(value: Any, slot: Slot, largest: float | None) -> str:
    """What is wrong with a tensor of a saved state, whose entries may be up to ``largest``."""
    value = _counted(value, slot)
    if not isinstance(value, Tensor):
        return f"of type {type(value).__name__}, not a tensor of shape {slot.stored}"
    if tuple(value.shape) != slot.stored:
        return f"of shape {tuple(value.shape)}, not a tensor of shape {slot.stored}"
    codes = slot.meaning is Meaning.CODES
    fits = value.dtype == slot.codec.dtype or (value.is_floating_point() and not codes)
    if not fits or value.layout != torch.strided:
        return f"in {value.dtype}, {value.layout}, not in {slot.codec.dtype}, strided"
    if value.is_meta:
        return ""
    sharded, value = is_sharded(value), local(value)
    if value.numel() == 0:
        return ""
    if codes:
        return "with the code -128" if value.dtype == torch.int8 and (value == -128).any() else ""
    if not torch.isfinite(value).all():
        return "with NaN or Inf"
    if not slot.meaning.signed and value.min() < 0:
        return "with entries below zero"
    if largest and value.abs().max() > largest:
        return f"with entries above {largest:.0e}"
    if slot.meaning is Meaning.COUNTER and value != value.floor():  # older versions saved them in float32
        return "that is not a whole number"
    if slot.meaning is Meaning.SPECTRUM and slot.shape and (value.diff(dim=-1) > 0).any():
        return "whose eigenvalues are not in descending order"
    if slot.meaning is Meaning.BASIS and not sharded:  # parts of columns have other lengths
        wide = value.to(slot.codec.dtype if slot.codec.dtype.itemsize > 4 else torch.float32)
        gram = wide.mT @ wide
        if (gram - torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)).abs().max() > _ASKEW:
            return "whose columns are not orthonormal"
    return ""


def chosen(optimizer: Optimizer) -> list[Group]:
    """For each group, the dtypes of momenta that a user chose: they count more than those of a checkpoint."""
    return [{k: group[k] for k in _CHOSEN if group.get(k) is not None} for group in optimizer.param_groups]


def restore_(
    optimizer: Optimizer, loaded: Mapping[str, Any], own: list[Group], plan_of: PlanOf, split: Any
) -> None:
    """Convert each loaded tensor to the dtype of its slot. Torch has cast it to the parameter's dtype.

    ``own``: see `chosen`. Momenta of other dtypes are converted. ``split``: see `optim.split`.
    """
    kept = {}
    for group, saved, mine in zip(optimizer.param_groups, loaded["param_groups"], own, strict=True):
        dtypes = {**{k: saved.get(k) for k in _CHOSEN if k in group}, **mine}
        group.update(options.check({**group, **dtypes}, ""))  # for example, betas may be saved as a list
        kept.update(dict.fromkeys(group["params"], mine))
    for settings, p, name, key in _pairs(optimizer, loaded):
        if saved := loaded["state"].get(key):
            before = plan_of(settings, p, name, saved)
            after = plan_of({**settings, **kept[p]}, p, name, saved)
            shards = sharding(p, before, settings, split)
            state = {k: _restored(p, shards, slot, saved[k]) for k, slot in before.slots.items()}
            if after is not before:
                state = converted(p, state, before, after, {**settings, **kept[p]}, split)
            optimizer.state[p] = state


def _restored(p: Tensor, shards: Sharding | None, slot: Slot, saved: Any) -> Tensor:
    """A saved tensor in new memory, with the dtype of its slot; sharded as its parameter is."""
    saved = _counted(saved, slot)
    if shards is not None:
        return shards.stored(slot, saved)
    whole = saved.full_tensor() if is_sharded(saved) else saved
    return whole.detach().to("cpu" if slot.on_host else p.device, slot.codec.dtype, copy=True)

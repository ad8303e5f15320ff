"""Every option of every optimizer, once: its default, what is allowed, what it means.

Options are flat and valid in each parameter group. A group holds plain values only (dtypes by name), so
that checkpoints load with ``weights_only=True``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

import torch
from torch import Tensor

from sketchy.core.arguments import check_number
from sketchy.core.graft import RULES
from sketchy.core.sketch import SOLVERS

PATHS = ("auto", "sketch", "adam")


def _number(allowed: str, test: Callable[[float], bool]) -> Callable[[str, Any], float]:
    def check(name: str, value: Any) -> float:
        number = check_number(name, value)
        if not test(number):
            raise ValueError(f"{name}={value}: must be {allowed}")
        return number

    return check


def _count(least: int, *, optional: bool = False) -> Callable[[str, Any], int | None]:
    allowed = f"an int, at least {least}" + (", or None" if optional else "")

    def check(name: str, value: Any) -> int | None:
        if optional and value is None:
            return None
        if isinstance(value, bool) or not hasattr(value, "__index__") or value < least:
            raise ValueError(f"{name}={value!r}: must be {allowed}")
        return int(value)

    return check


def _one_of(*values: str | None) -> Callable[[str, Any], Any]:
    def check(name: str, value: Any) -> Any:
        if value not in values:
            raise ValueError(f"{name}={value!r}: must be one of {', '.join(map(repr, values))}")
        return value

    return check


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{name}={value!r}: must be True or False")
    return value


def _dtype(*allowed: torch.dtype) -> Callable[[str, Any], str | None]:
    names = [str(dtype).removeprefix("torch.") for dtype in allowed]

    def check(name: str, value: Any) -> str | None:
        given = str(value).removeprefix("torch.")
        if value is not None and given not in names:
            raise ValueError(f"{name}={value}: must be None, {', '.join('torch.' + n for n in names)}")
        return None if value is None else given

    return check


_NOT_NEGATIVE = _number("at least 0", lambda v: 0 <= v < float("inf"))


def _lr(name: str, value: Any) -> float | Tensor:
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise ValueError(f"{name} is a tensor of shape {tuple(value.shape)}: must hold one number")
        if not value.is_meta:
            _NOT_NEGATIVE(name, value.item())
        return value
    return _NOT_NEGATIVE(name, value)


def _betas(name: str, value: Any) -> tuple[float, float]:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise ValueError(f"{name}={value!r}: must be two numbers, (beta1, beta2)")
    beta1 = _number("in [0, 1)", lambda v: 0 <= v < 1)("beta1", value[0])
    beta2 = _number("in [0, 1]; 1 sums without forgetting", lambda v: 0 <= v <= 1)("beta2", value[1])
    return beta1, beta2


@dataclass(frozen=True)
class Option:
    default: Any
    check: Callable[[str, Any], Any]
    meaning: str


OPTIONS: dict[str, Option] = {
    "lr": Option(1e-3, _lr, "learning rate, a number or a tensor of one; an AdamW rate is the right start"),
    "betas": Option(
        (0.9, 0.999), _betas, "decay of the momentum, and of the second moments; (0, 1) is the paper's sum"
    ),
    "rank": Option(
        64, _count(2), "the paper's l: columns of a sketch; axes no longer than this are kept exactly"
    ),
    "eps": Option(1e-7, _NOT_NEGATIVE, "damping, relative to the largest eigenvalue or root second moment"),
    "weight_decay": Option(0.01, _NOT_NEGATIVE, "decoupled: the weight shrinks by lr * weight_decay a step"),
    "update_every": Option(1, _count(1), "sketch every k-th gradient; beta2 acts per sketched gradient"),
    "start_step": Option(
        1, _count(1), "the first step to precondition; before it, the graft's own step is taken"
    ),
    "graft": Option(
        "rows",
        _one_of(None, *RULES),
        "whose length a step has; own: its own, if not far too short; None: its own",
    ),
    "graft_scale": Option(
        2.0,
        _NOT_NEGATIVE,
        "how many times that length a preconditioned step has; graft=None: 1",
    ),
    "solver": Option(
        "subspace", _one_of(*SOLVERS), "how a sketch is updated: by matrix products or by an SVD"
    ),
    "block_size": Option(None, _count(1, optional=True), "cut weights into blocks of at most this side"),
    "stack_size": Option(
        None,
        _count(1, optional=True),
        "weights of one shape step together up to this many entries, which bounds scratch memory;"
        " None: 2²² on the CPU, 2²⁶ elsewhere",
    ),
    "merge_dims": Option(
        None,
        _count(1, optional=True),
        "None: an N-d weight is the matrix (first axis, others); k: merge neighbouring axes up to k; 1: none",
    ),
    "one_sided": Option(False, _flag, "precondition the shortest axis only"),
    "exponent": Option(
        None,
        lambda name, value: (
            None if value is None else _number("in (0, 1]", lambda v: 0 < v <= 1)(name, value)
        ),
        "of the inverse root along each axis; None: 1 / (2 * number of axes)",
    ),
    "nesterov": Option(True, _flag, "let momentum look one step ahead"),
    "moving_average_momentum": Option(
        True, _flag, "momentum is an average, with bias correction; else a sum"
    ),
    "momentum_dtype": Option(
        None,
        _dtype(torch.float32, torch.bfloat16, torch.float64),
        "of the stored momentum; None: float32, or float64 for float64 weights",
    ),
    "sketch_dtype": Option(
        None,
        _dtype(torch.float32, torch.float64, torch.bfloat16),
        "of the stored bases; None: float32, or float64 for float64 weights",
    ),
    "precondition_1d": Option(False, _flag, "sketch vectors too, as S-AdaGrad does"),
    "maximize": Option(False, _flag, "ascend instead of descend"),
    "path": Option("auto", _one_of(*PATHS), "which way a group's weights go; auto: by shape and name"),
}


class Options(TypedDict, total=False):
    """The options as keyword arguments, for type checkers; `OPTIONS` explains them."""

    rank: int
    eps: float
    weight_decay: float
    update_every: int
    start_step: int
    graft: str | None
    graft_scale: float
    solver: str
    block_size: int | None
    stack_size: int | None
    merge_dims: int | None
    one_sided: bool
    exponent: float | None
    nesterov: bool
    moving_average_momentum: bool
    momentum_dtype: torch.dtype | str | None
    sketch_dtype: torch.dtype | str | None
    precondition_1d: bool
    maximize: bool
    path: str


def check(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The known options among ``values``, each checked and in its plain form; errors say ``where``."""
    checked = {}
    for name, option in OPTIONS.items():
        if name in values:
            try:
                checked[name] = option.check(name, values[name])
            except (TypeError, ValueError) as error:
                problem, _, allowed = str(error).partition(": ")
                raise ValueError(f"{problem}{where}: {allowed}") from None
    if values.get("differentiable"):
        raise ValueError(f"differentiable=True{where}: must be False; eigenvectors have no stable derivative")
    return checked

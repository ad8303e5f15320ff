"""The options of all optimizers: type, default, check and meaning of each.

Each option can be set in each parameter group. A group holds plain values only (dtypes by name), so that
checkpoints load with ``weights_only=True``.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict, get_type_hints

import torch
from torch import Tensor

from sketchy.core.arguments import check_number
from sketchy.core.sketch import SOLVERS
from sketchy.optim.parts.grafts import RULES

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


def _one_of(values: Collection[str | None]) -> Callable[[str, Any], Any]:
    def check(name: str, value: Any) -> Any:
        if value not in values:
            raise ValueError(f"{name}={value!r}: must be one of {', '.join(map(repr, values))}")
        return value

    return check


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{name}={value!r}: must be True or False")
    return value


def _dtype(*allowed: torch.dtype | str) -> Callable[[str, Any], str | None]:
    names = [str(dtype).removeprefix("torch.") for dtype in allowed]
    shown = ", ".join(repr(dtype) if isinstance(dtype, str) else str(dtype) for dtype in allowed)

    def check(name: str, value: Any) -> str | None:
        given = str(value).removeprefix("torch.")
        if value is not None and given not in names:
            raise ValueError(f"{name}={value}: must be one of None, {shown}")
        return None if value is None else given

    return check


_NOT_NEGATIVE = _number("at least 0", lambda v: 0 <= v < float("inf"))


def _lr(name: str, value: Any) -> float | Tensor:
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise ValueError(f"{name} is a tensor of shape {tuple(value.shape)}: must have one element")
        if not value.is_meta:
            _NOT_NEGATIVE(name, value.item())
        return value
    return _NOT_NEGATIVE(name, value)


def _decay(name: str, value: Any) -> float | None:
    return None if value is None else _number("in [0, 1), or None", lambda v: 0 <= v < 1)(name, value)


def _sketch_beta2(name: str, value: Any) -> float | None:
    return None if value is None else _number("in [0, 1], or None", lambda v: 0 <= v <= 1)(name, value)


def _exponent(name: str, value: Any) -> float | None:
    return None if value is None else _number("in (0, 1], or None", lambda v: 0 < v <= 1)(name, value)


def _betas(name: str, value: Any) -> tuple[float, float]:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise ValueError(f"{name}={value!r}: must be two numbers, (beta1, beta2)")
    prefix = name.removesuffix("betas")  # adam_betas: adam_beta1, adam_beta2
    beta1 = _number("in [0, 1)", lambda v: 0 <= v < 1)(f"{prefix}beta1", value[0])
    beta2 = _number("in [0, 1]; 1 is a sum without decay", lambda v: 0 <= v <= 1)(f"{prefix}beta2", value[1])
    return beta1, beta2


def _adam_betas(name: str, value: Any) -> tuple[float, float] | None:
    return None if value is None else _betas(name, value)


@dataclass(frozen=True)
class Option:
    """One option. To add an option, add a field ``Annotated[type, Option(...)]`` to `Options`."""

    default: Any
    check: Callable[[str, Any], Any]
    meaning: str
    shapes_plan: bool = False  # whether the plan of a weight (its blocks, parts and slots) depends on it


class Positional(TypedDict, total=False):
    """The options that may be positional arguments."""

    lr: Annotated[
        float | Tensor,
        Option(1e-3, _lr, "learning rate: a number, or a tensor with one element; start with AdamW's"),
    ]
    betas: Annotated[
        tuple[float, float],
        Option(
            (0.9, 0.999),
            _betas,
            "decay of the momentum, and of the second moments; (0, 1): no momentum, no decay, as in Alg. 3",
        ),
    ]


class Options(TypedDict, total=False):
    """The options that must be keyword arguments."""

    rank: Annotated[
        int,
        Option(
            64,
            _count(2),
            "columns of a sketch, l in the paper; for an axis up to this length, the full covariance is kept",
            shapes_plan=True,
        ),
    ]
    whiten: Annotated[
        bool,
        Option(
            False,
            _flag,
            "a sketch gets the gradient whitened by the sketch of the other axis; for weights with two"
            " preconditioned axes",
            shapes_plan=True,
        ),
    ]
    sketch_beta2: Annotated[
        float | None,
        Option(None, _sketch_beta2, "decay of the sketches, if it differs from that of the second moments"),
    ]
    eps: Annotated[
        float,
        Option(
            1e-7,
            _NOT_NEGATIVE,
            "damping: eps times the largest eigenvalue (or root of a second moment) is added to each",
        ),
    ]
    weight_decay: Annotated[
        float,
        Option(0.01, _NOT_NEGATIVE, "decoupled: each step multiplies the weight by 1 - lr * weight_decay"),
    ]
    update_every: Annotated[
        int,
        Option(
            1, _count(1), "update the sketches at every k-th step only; beta2 decays them once per update"
        ),
    ]
    start_step: Annotated[
        int,
        Option(
            1, _count(1), "the first preconditioned step; the steps before it are those of the graft rule"
        ),
    ]
    graft: Annotated[
        str | None,
        Option(
            "rows",
            _one_of(RULES),
            "the rule that sets the length of a preconditioned step; None: keep its length; own: keep its"
            " length, but at least half of what rows gives",
            shapes_plan=True,
        ),
    ]
    graft_scale: Annotated[
        float,
        Option(
            2.0,
            _NOT_NEGATIVE,
            "the length that the graft rule gives is multiplied by this; not used if graft=None",
        ),
    ]
    row_norm: Annotated[
        float | None,
        Option(
            None,
            _decay,
            "divide the rows of a direction by their running root mean square with this decay, such as 0.95,"
            " and keep its length; None: don't",
            shapes_plan=True,
        ),
    ]
    polar: Annotated[
        int,
        Option(
            0,
            _count(0),
            "Newton-Schulz steps, such as 3, that make the singular values of a direction nearly equal, as in"
            " Muon, and keep its length; cheap on a GPU, expensive on a CPU; 0: none",
        ),
    ]
    solver: Annotated[
        str,
        Option(
            "subspace",
            _one_of(SOLVERS),
            "how a sketch is updated; subspace: by matrix products (fast), exact: by an SVD",
        ),
    ]
    block_size: Annotated[
        int | None,
        Option(
            None,
            _count(1, optional=True),
            "cut weights into blocks with sides of at most this length; None: do not cut",
            shapes_plan=True,
        ),
    ]
    stacked: Annotated[
        bool,
        Option(
            False,
            _flag,
            "weights with three or more axes are stacks of matrices, as of experts (E, m, n), and each matrix"
            " has its own sketches; False: all axes after the first are merged",
            shapes_plan=True,
        ),
    ]
    stack_size: Annotated[
        int | None,
        Option(
            None,
            _count(1, optional=True),
            "weights of the same shape are updated together, in stacks of at most this many entries; smaller"
            " stacks need less scratch memory; None: 2²² on the CPU, 2²⁶ elsewhere",
        ),
    ]
    merge_dims: Annotated[
        int | None,
        Option(
            None,
            _count(1, optional=True),
            "None: treat an N-d weight as the matrix (first axis, all others); k: merge neighbouring axes"
            " while their product is at most k; 1: merge none",
            shapes_plan=True,
        ),
    ]
    one_sided: Annotated[bool, Option(False, _flag, "precondition the shortest axis only", shapes_plan=True)]
    exponent: Annotated[
        float | None,
        Option(
            None,
            _exponent,
            "exponent of the inverse root of each axis; None: 1 / (2 * number of preconditioned axes)",
            shapes_plan=True,
        ),
    ]
    nesterov: Annotated[bool, Option(True, _flag, "use Nesterov momentum")]
    moving_average_momentum: Annotated[
        bool,
        Option(
            True, _flag, "True: momentum is a moving average with bias correction (Adam); False: a sum (SGD)"
        ),
    ]
    momentum_dtype: Annotated[
        torch.dtype | str | None,
        Option(
            None,
            _dtype(torch.float32, torch.bfloat16, torch.float64, "int8", "int4"),
            "dtype of the stored momentum; None: float32, or float64 for float64 weights; int8: blocks of 128"
            " with one scale each; int4: coordinates in the basis of a sketch, and 4 bits for the rest; but"
            " int8 on Adam's path, for flattened weights, and if no sketched axis is longer than 4 * rank",
            shapes_plan=True,
        ),
    ]
    adam_dtype: Annotated[
        torch.dtype | str | None,
        Option(
            None,
            _dtype(torch.float32, "int8"),
            "dtype of both moments on Adam's path; None: the momentum as momentum_dtype says, the second"
            " moment in float32, or float64 for float64 weights; on this path, weights with less than 4096"
            " entries are never stored in int8",
            shapes_plan=True,
        ),
    ]
    sketch_dtype: Annotated[
        torch.dtype | str | None,
        Option(
            None,
            _dtype(torch.float32, torch.float64, torch.bfloat16),
            "dtype of the stored bases; None: float32, or float64 for float64 weights",
            shapes_plan=True,
        ),
    ]
    adam_lr_scale: Annotated[
        float,
        Option(
            1.0,
            _NOT_NEGATIVE,
            "Adam's path (vectors, embeddings, heads) uses this multiple of lr, also with a schedule",
        ),
    ]
    adam_betas: Annotated[
        tuple[float, float] | None,
        Option(None, _adam_betas, "betas of Adam's path; None: those of the other weights"),
    ]
    precondition_1d: Annotated[bool, Option(False, _flag, "sketch vectors too, as S-AdaGrad does")]
    maximize: Annotated[bool, Option(False, _flag, "maximize the objective instead of minimizing it")]
    path: Annotated[
        str,
        Option(
            "auto",
            _one_of(PATHS),
            "how the weights of a group are treated; auto: sketch or adam, chosen by shape and name",
        ),
    ]


OPTIONS: dict[str, Option] = {
    name: hint.__metadata__[0]
    for kind in (Positional, Options)
    for name, hint in get_type_hints(kind, include_extras=True).items()
}


def table() -> str:
    """The options as a Markdown table, for the docs."""
    rows = (f"| `{name}` | `{o.default!r}` | {o.meaning} |" for name, o in OPTIONS.items())
    return "\n".join(["| option | default | meaning |", "|---|---|---|", *rows])


def on_path(options: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """The options of the weights on one path: Adam's path may have a learning rate and betas of its own."""
    scale, betas = options.get("adam_lr_scale", 1.0), options.get("adam_betas")
    if path != "adam" or (scale == 1.0 and betas is None):
        return options
    return {**options, "lr": options["lr"] * scale, "betas": betas or options["betas"]}


def check(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The known options among ``values``, checked and as plain values. Error messages contain ``where``."""
    checked = {}
    for name, option in OPTIONS.items():
        if name in values:
            try:
                checked[name] = option.check(name, values[name])
            except (TypeError, ValueError) as error:
                problem, _, allowed = str(error).partition(": ")
                raise ValueError(f"{problem}{where}: {allowed}") from None
    if values.get("differentiable"):
        raise ValueError(f"differentiable=True{where}: must be False; derivatives of a step are unsupported")
    return checked

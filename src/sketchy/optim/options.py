"""Every option of every optimizer, once: its type, its default, its check and its meaning.

Options are flat and valid in each parameter group. A group holds plain values only (dtypes by name), so
that checkpoints load with ``weights_only=True``.
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


def _decay(name: str, value: Any) -> float | None:
    return None if value is None else _number("in [0, 1), or None", lambda v: 0 <= v < 1)(name, value)


def _exponent(name: str, value: Any) -> float | None:
    return None if value is None else _number("in (0, 1]", lambda v: 0 < v <= 1)(name, value)


def _betas(name: str, value: Any) -> tuple[float, float]:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise ValueError(f"{name}={value!r}: must be two numbers, (beta1, beta2)")
    beta1 = _number("in [0, 1)", lambda v: 0 <= v < 1)("beta1", value[0])
    beta2 = _number("in [0, 1]; 1 sums without forgetting", lambda v: 0 <= v <= 1)("beta2", value[1])
    return beta1, beta2


@dataclass(frozen=True)
class Option:
    """One option: ``Annotated[type, Option(...)]`` in `Options` is all that it takes to add one."""

    default: Any
    check: Callable[[str, Any], Any]
    meaning: str
    shapes_state: bool = False  # whether it decides what is kept; it then stays as it was at the first step


class Positional(TypedDict, total=False):
    """The options that may be given without their names."""

    lr: Annotated[
        float | Tensor,
        Option(1e-3, _lr, "learning rate: a number, or a tensor of one number; start with that of AdamW"),
    ]
    betas: Annotated[
        tuple[float, float],
        Option(
            (0.9, 0.999),
            _betas,
            "decay of the momentum, and of the second moments; (0, 1) is the paper's sum",
        ),
    ]


class Options(TypedDict, total=False):
    """The options that are given by name."""

    rank: Annotated[
        int,
        Option(
            64,
            _count(2),
            "columns of a sketch, the paper's l; an axis that is no longer than this is kept exactly",
            shapes_state=True,
        ),
    ]
    eps: Annotated[
        float,
        Option(1e-7, _NOT_NEGATIVE, "damping, relative to the largest eigenvalue or root second moment"),
    ]
    weight_decay: Annotated[
        float,
        Option(0.01, _NOT_NEGATIVE, "decoupled: each step multiplies the weight by 1 - lr * weight_decay"),
    ]
    update_every: Annotated[
        int, Option(1, _count(1), "sketch every k-th gradient; beta2 acts once for each sketched gradient")
    ]
    start_step: Annotated[
        int,
        Option(
            1, _count(1), "the first step that is preconditioned; before it the graft's own step is taken"
        ),
    ]
    graft: Annotated[
        str | None,
        Option(
            "rows",
            _one_of(RULES),
            "the rule that sets the length of a step; own: the step's own length, but at least half of"
            " that by rows; None: the step's own length",
            shapes_state=True,
        ),
    ]
    graft_scale: Annotated[
        float,
        Option(
            2.0,
            _NOT_NEGATIVE,
            "a preconditioned step is this many times as long as the graft's; unused if graft=None",
        ),
    ]
    row_norm: Annotated[
        float | None,
        Option(
            None,
            _decay,
            "divide the rows of a direction by their running root mean square with this decay, such as 0.95,"
            " and keep its length; None: don't",
            shapes_state=True,
        ),
    ]
    solver: Annotated[
        str,
        Option(
            "subspace",
            _one_of(SOLVERS),
            "how a sketch is updated: subspace by matrix products, exact by an SVD",
        ),
    ]
    block_size: Annotated[
        int | None,
        Option(
            None,
            _count(1, optional=True),
            "cut weights into blocks whose sides are at most this long",
            shapes_state=True,
        ),
    ]
    stack_size: Annotated[
        int | None,
        Option(
            None,
            _count(1, optional=True),
            "weights of one shape step together, up to this many entries; this bounds scratch memory;"
            " None: 2²² on the CPU, 2²⁶ elsewhere",
        ),
    ]
    merge_dims: Annotated[
        int | None,
        Option(
            None,
            _count(1, optional=True),
            "None: an N-d weight is the matrix (first axis, all others); k: merge neighbouring axes up to"
            " a length of k; 1: merge none",
            shapes_state=True,
        ),
    ]
    one_sided: Annotated[bool, Option(False, _flag, "precondition the shortest axis only", shapes_state=True)]
    exponent: Annotated[
        float | None,
        Option(
            None,
            _exponent,
            "of the inverse root along each axis; None: 1 / (2 * number of axes)",
            shapes_state=True,
        ),
    ]
    nesterov: Annotated[bool, Option(True, _flag, "momentum looks one step ahead")]
    moving_average_momentum: Annotated[
        bool, Option(True, _flag, "momentum is an average with bias correction; otherwise a sum")
    ]
    momentum_dtype: Annotated[
        torch.dtype | str | None,
        Option(
            None,
            _dtype(torch.float32, torch.bfloat16, torch.float64),
            "of the stored momentum; None: float32, or float64 for float64 weights",
            shapes_state=True,
        ),
    ]
    sketch_dtype: Annotated[
        torch.dtype | str | None,
        Option(
            None,
            _dtype(torch.float32, torch.float64, torch.bfloat16),
            "of the stored bases; None: float32, or float64 for float64 weights",
            shapes_state=True,
        ),
    ]
    precondition_1d: Annotated[bool, Option(False, _flag, "sketch vectors too, as S-AdaGrad does")]
    maximize: Annotated[bool, Option(False, _flag, "maximize the objective instead of minimizing it")]
    path: Annotated[
        str,
        Option(
            "auto",
            _one_of(PATHS),
            "how a group's weights are treated; auto: sketch or adam, by shape and name",
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

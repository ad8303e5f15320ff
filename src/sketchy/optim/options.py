"""The options of all optimizers: type, default, check (`checks.py`) and meaning of each.

Each option can be set in each parameter group. A group holds plain values only (dtypes by name), so that
checkpoints load with ``weights_only=True``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from typing import Annotated, Any, TypedDict, get_type_hints

import torch
from torch import Tensor

from sketchy.core.sketch import SOLVERS
from sketchy.optim import checks
from sketchy.optim.parts.grafts import RULES

LEAST_RANK = 4  # under a budget
PATHS = ("auto", "sketch", "adam")


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
        Option(
            1e-3, checks.rate, "learning rate: a number, or a tensor with one element; start with AdamW's"
        ),
    ]
    betas: Annotated[
        tuple[float, float],
        Option(
            (0.9, 0.999),
            checks.betas,
            "decay of the momentum, and of the second moments; (0, 1): no momentum, no decay, as in Alg. 3",
        ),
    ]


class OfTorch(TypedDict, total=False):
    """Arguments of torch's AdamW that are no options here: its call sites work unchanged (`REFUSED`)."""

    fused: bool | None
    foreach: bool | None
    capturable: bool
    amsgrad: bool
    differentiable: bool


class Options(OfTorch, total=False):
    """The options that must be keyword arguments."""

    rank: Annotated[
        int | tuple[int, ...] | None,
        Option(
            None,
            checks.ranks,
            "columns of a sketch, l in the paper; (l, r): of the left and of the right sketch of a matrix;"
            " for an axis up to this length, the full covariance is kept;"
            " None: 64, or fewer for a weight with at least 4096 entries if its state would be larger than"
            " AdamW's (counted in float32; SketchyAdagrad always takes 64)",
            shapes_plan=True,
        ),
    ]
    budget: Annotated[
        str | float | None,
        Option(
            None,
            checks.budget,
            "memory for which the ranks are chosen, weight by weight, while training; '1.5GiB': of the whole"
            " state of the groups with this budget; 0.1: floats of sketch for each sketched weight; None:"
            " ranks stay as they are",
        ),
    ]
    budget_every: Annotated[
        int | None,
        Option(
            None,
            checks.count(1, optional=True),
            "with a budget: ranks are chosen anew after every so many gradients; None: after 50, 150, 500,"
            " 1500, ...",
        ),
    ]
    min_rank: Annotated[int, Option(LEAST_RANK, checks.count(2), "with a budget: the smallest rank")]
    max_rank: Annotated[
        int | None,
        Option(
            None,
            checks.count(2, optional=True),
            "with a budget: the largest rank; higher ranks take longer; None: no limit",
        ),
    ]
    whiten: Annotated[
        bool,
        Option(
            False,
            checks.flag,
            "a sketch gets the gradient whitened by the sketch of the other axis; for weights with two"
            " preconditioned axes",
            shapes_plan=True,
        ),
    ]
    sketch_beta2: Annotated[
        float | None,
        Option(
            None, checks.sketch_beta2, "decay of the sketches, if it differs from that of the second moments"
        ),
    ]
    eps: Annotated[
        float,
        Option(
            1e-7,
            checks.not_negative,
            "damping: eps times the largest eigenvalue (or root of a second moment) is added to each; not"
            " AdamW's eps, which is absolute",
        ),
    ]
    weight_decay: Annotated[
        float | Tensor,
        Option(0.01, checks.rate, "decoupled: each step multiplies the weight by 1 - lr * weight_decay"),
    ]
    update_every: Annotated[
        int,
        Option(
            1,
            checks.count(1),
            "update the sketches at every k-th step only; beta2 decays them once per update",
        ),
    ]
    roots_every: Annotated[
        int,
        Option(
            1,
            checks.count(1),
            "Shampoo only: covariances see every gradient, and their inverse roots are taken at every k-th"
            " step; if k > 1, they are kept as matrices of float64, too",
            shapes_plan=True,
        ),
    ]
    start_step: Annotated[
        int,
        Option(
            1,
            checks.count(1),
            "the first preconditioned step; the steps before it are those of the graft rule (SketchySOAP with"
            " graft=None does not wait)",
        ),
    ]
    graft: Annotated[
        str | None,
        Option(
            "rows",
            checks.one_of(RULES),
            "the rule that sets the length of a preconditioned step; None: keep its length; own: keep its"
            " length, but at least half of what rows gives",
            shapes_plan=True,
        ),
    ]
    graft_scale: Annotated[
        float,
        Option(
            2.0,
            checks.not_negative,
            "the length that the graft rule gives is multiplied by this; not used if graft=None",
        ),
    ]
    row_norm: Annotated[
        float | None,
        Option(
            None,
            checks.decay,
            "divide the rows of a direction by their running root mean square with this decay, such as 0.95,"
            " and keep its length; None: don't",
            shapes_plan=True,
        ),
    ]
    polar: Annotated[
        int,
        Option(
            0,
            checks.count(0),
            "Newton-Schulz steps, such as 3, that make the singular values of a direction nearly equal, as in"
            " Muon, and keep its length; cheap on a GPU, expensive on a CPU; 0: none",
        ),
    ]
    solver: Annotated[
        str,
        Option(
            "subspace",
            checks.one_of((*SOLVERS, "sweeps")),
            "how a sketch is updated; subspace: by products and a small eigenproblem; sweeps: by matrix"
            " products only, for accelerators (the certified error is larger); exact: by an SVD",
        ),
    ]
    block_size: Annotated[
        int | None,
        Option(
            None,
            checks.count(1, optional=True),
            "cut weights into blocks with sides of at most this length; None: do not cut",
            shapes_plan=True,
        ),
    ]
    stacked: Annotated[
        bool,
        Option(
            False,
            checks.flag,
            "weights with three or more axes are stacks of matrices, as of experts (E, m, n), and each matrix"
            " has its own sketches; False, or if they are stacks of vectors: all axes after the first are"
            " merged",
            shapes_plan=True,
        ),
    ]
    stack_size: Annotated[
        int | None,
        Option(
            None,
            checks.count(1, optional=True),
            "weights of the same shape are updated together, in stacks of at most this many entries; smaller"
            " stacks need less scratch memory; None: 2²² on the CPU, 2²⁶ elsewhere",
        ),
    ]
    merge_dims: Annotated[
        int | None,
        Option(
            None,
            checks.count(1, optional=True),
            "None: treat an N-d weight as the matrix (first axis, all others); k: merge neighbouring axes"
            " while their product is at most k; 1: merge none",
            shapes_plan=True,
        ),
    ]
    one_sided: Annotated[
        bool, Option(False, checks.flag, "precondition the shortest axis only", shapes_plan=True)
    ]
    exponent: Annotated[
        float | None,
        Option(
            None,
            checks.exponent,
            "exponent of the inverse root of each axis; None: 1 / (2 * number of preconditioned axes)",
            shapes_plan=True,
        ),
    ]
    nesterov: Annotated[bool, Option(True, checks.flag, "use Nesterov momentum")]
    moving_average_momentum: Annotated[
        bool,
        Option(
            True,
            checks.flag,
            "True: momentum is a moving average with bias correction (Adam); False: a sum (SGD)",
        ),
    ]
    momentum_dtype: Annotated[
        torch.dtype | str | None,
        Option(
            None,
            checks.dtype(torch.float32, torch.bfloat16, torch.float64, "int8", "int4"),
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
            checks.dtype(torch.float32, "int8"),
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
            checks.dtype(torch.float32, torch.float64, torch.bfloat16),
            "dtype of the stored bases; None: float32, or float64 for float64 weights",
            shapes_plan=True,
        ),
    ]
    adam_lr_scale: Annotated[
        float,
        Option(
            1.0,
            checks.not_negative,
            "Adam's path (vectors, embeddings, heads) uses this multiple of lr, also with a schedule",
        ),
    ]
    adam_betas: Annotated[
        tuple[float, float] | None,
        Option(None, checks.adam_betas, "betas of Adam's path; None: those of the other weights"),
    ]
    precondition_1d: Annotated[bool, Option(False, checks.flag, "sketch vectors too, as S-AdaGrad does")]
    maximize: Annotated[bool, Option(False, checks.flag, "maximize the objective instead of minimizing it")]
    path: Annotated[
        str,
        Option(
            "auto",
            checks.one_of(PATHS),
            "how the weights of a group are treated; auto: sketch or adam, chosen by shape and name",
        ),
    ]


OPTIONS: dict[str, Option] = {
    name: hint.__metadata__[0]
    for kind in (Positional, Options)
    for name, hint in get_type_hints(kind, include_extras=True).items()
    if name not in OfTorch.__annotations__
}
BUDGET = frozenset({"budget", "budget_every", "min_rank", "max_rank"})
TENSORS = tuple(name for name, option in OPTIONS.items() if option.check is checks.rate)  # may be tensors
# Every value of the others (`OfTorch`) is accepted, and changes nothing: they say how a step of AdamW is
# launched. Here weights of equal shape step together anyway, and ``compile`` makes one graph of a step.
NOT_HERE = {  # what to say beside the name of an option that an optimizer does not have
    "roots_every": " (a sketch is decomposed whenever it is updated; update_every makes this rarer)",
}
REFUSED = {
    "amsgrad": "there is no maximum of second moments",
    "differentiable": "derivatives of a step are unsupported",
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
    for name, why in REFUSED.items():
        if values.get(name):
            raise ValueError(f"{name}={values[name]}{where}: must be False, because {why}; delete it")
    return checked


@lru_cache(maxsize=1024)
def meant(name: str, known: tuple[str, ...], cutoff: float = 0.6) -> str:
    """The end of a sentence on an unknown name: which of the known ones was meant, if one is similar."""
    by_lower = {one.lower(): one for one in known}
    close = get_close_matches(name.lower(), by_lower, n=1, cutoff=cutoff)
    return f"; did you mean {by_lower[close[0]]}?" if close else ""

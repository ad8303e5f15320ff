"""What the fuzzer draws: options, weights and gradients; and how long a step may be."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from optim.optimizers import BF16, F16, F32, F64, generator
from sketchy import Shampoo, SketchyAdagrad, SketchyShampoo, SketchySOAP
from sketchy.core.moments import longest
from sketchy.optim.parts.grafts import RULES

KINDS = (SketchyShampoo, SketchySOAP, Shampoo, SketchyAdagrad)
_BETAS = [(0.9, 0.95), (0.0, 1.0), (0.0, 0.0), (0.0, 0.9), (0.5, 0.0), (0.9, 0.5), (0.9, 0.999), (0.99, 1.0)]
# An option that is not here keeps its default.
VALUES: dict[str, list[Any]] = {
    "lr": [1e-3, 0.0, 0.1, 1.0],
    "betas": _BETAS,
    "rank": [2, 3, 8, 64],
    "whiten": [False, True],
    "sketch_beta2": [None, 0.0, 0.5, 0.99, 1.0],
    "eps": [1e-7, 0.0, 1e-3, 1.0],
    "weight_decay": [0.0, 0.01, 0.5],
    "update_every": [1, 2, 3],
    "roots_every": [1, 2, 3],
    "start_step": [1, 2, 4],
    "graft": list(RULES),
    "graft_scale": [1.0, 0.0, 0.5, 2.0],
    "row_norm": [None, 0.0, 0.5, 0.95],
    "polar": [0, 1, 3],
    "solver": ["subspace", "sweeps", "exact"],
    "block_size": [None, 1, 2, 4],
    "stack_size": [None, 1, 40],
    "merge_dims": [None, 1, 6],
    "stacked": [False, True],
    "one_sided": [False, True],
    "exponent": [None, 0.1, 0.5, 1.0],
    "nesterov": [True, False],
    "moving_average_momentum": [True, False],
    "momentum_dtype": [None, F32, BF16, F64, "int8", "int4"],
    "adam_dtype": [None, F32, "int8"],
    "sketch_dtype": [None, F32, F64, BF16],
    "adam_lr_scale": [1.0, 0.0, 3.0],
    "adam_betas": [None, *_BETAS],
    "precondition_1d": [False, True],
    "maximize": [False, True],
    "path": ["auto", "sketch", "adam"],
}
NAMES = {  # embeddings by name; the large one is stored in few bits on Adam's path; axes of 40 in four bits
    "layer": [(6, 5), (5, 6), (8, 8), (40, 3), (3, 40), (1, 7), (7, 1), (1, 1), (0, 3)],
    "vector": [(5,), (), (1,), (17,)],
    "conv": [(4, 3, 2, 2), (2, 3, 4), (3, 1, 4), (1, 1, 1)],
    "embed": [(7, 4), (32, 128)],
}


@dataclass(frozen=True)
class Weight:
    """A weight to be made."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    transposed: bool  # in memory

    def make(self, index: int) -> torch.nn.Parameter:
        x = torch.randn(self.shape, generator=generator(0, index), dtype=F64).to(self.dtype)
        return torch.nn.Parameter(self.arranged(x))

    def arranged(self, x: Tensor) -> Tensor:
        return x.mT.contiguous().mT if self.transposed and x.dim() > 1 else x


def options(kind: Any, *, without: tuple[str, ...] = ()) -> st.SearchStrategy[dict[str, Any]]:
    """Some options of an optimizer; the others keep their defaults."""
    names = [name for name in VALUES if name not in kind.without and name not in without]
    return st.fixed_dictionaries({}, optional={name: st.sampled_from(VALUES[name]) for name in names})


def weights() -> st.SearchStrategy[list[Weight]]:
    shapes = st.sampled_from([(name, shape) for name, those in NAMES.items() for shape in those])
    one = st.builds(
        lambda named, dtype, transposed: Weight(*named, dtype, transposed),
        shapes,
        st.sampled_from([F32, F32, F64, BF16, F16]),
        st.sampled_from([False, False, True]),
    )
    # equal weights step as one stack
    return st.lists(st.tuples(one, st.integers(1, 2)), min_size=1, max_size=3).map(
        lambda drawn: [weight for weight, times in drawn for _ in range(times)]
    )


# ---- gradients

BAD = ("nan", "inf", "too large")
STREAMS = ("gaussian", "low rank", "zeros", "sparse rows", "spike", "constant", "none", *BAD)
SCALES = (1.0, 1e-3, 1e20, 1e-20, 1e6)


def gradient(kind: str, weight: Weight, scale: float, seed: int, index: int) -> Tensor | None:
    """One gradient of a weight; it depends on the arguments only. Bad ones are bad in one entry."""
    if kind == "none":
        return None
    shape, rng = weight.shape, generator(seed, index)
    x = torch.randn(shape, generator=rng, dtype=F64)
    rows = x.reshape(shape[0] if shape else 1, math.prod(shape[1:]))
    match kind:
        case "low rank":
            rows = rows[:, :1] * rows[:1]
        case "zeros":
            rows = torch.zeros_like(rows)
        case "sparse rows":
            rows = rows * (torch.rand(len(rows), 1, generator=rng) < 0.3)
        case "spike":
            rows = torch.where(rows == rows.max(), 1.0, 1e-6 * rows) if x.numel() else rows
        case "constant":
            rows = torch.ones_like(rows)
    x = (rows.reshape(shape) * min(scale, 1e-3 * torch.finfo(weight.dtype).max)).to(weight.dtype)
    if kind in BAD and x.numel():
        most = 1e200 if weight.dtype == F64 else torch.inf  # what is too large for float32 depends on options
        x.view(-1)[seed % x.numel()] = {"nan": torch.nan, "inf": -torch.inf, "too large": most}[kind]
    return weight.arranged(x)


# ---- the length of a step

# What few digits of the momentum add to the length of a step, and rounding everywhere else.
MARGIN = {"int8": 2.0, "int4": 2.0, "bfloat16": 1.5}
OWN = 4.0  # what bases that turn, row norms and whitening add to Adam's length in a basis


def has_own_length(kind: Any, path: str, group: Mapping[str, Any]) -> bool:
    """Whether nothing bounds the length of steps: with other exponents than the paper's, S-Shampoo's own step
    is no ratio of gradients, and its second moments may fade faster than its momentum."""
    return path == "sketch" and group["graft"] in (None, "own") and kind is not SketchySOAP


def longest_step(kind: Any, path: str, group: Mapping[str, Any], count: int, largest: float) -> float:
    """A bound on the root mean square of the step / lr after ``count`` gradients.

    By Cauchy-Schwarz: a step Σ c_i g_i / √(Σ u_i g_i²) is at most √(Σ c_i² / u_i). Here c are the weights of
    the momentum, one step ahead with Nesterov, and u are those of the second moment. If the second moment
    fades faster than the momentum, `moments.longest` is the limit. ``largest``: the root mean square of the
    largest gradient so far.
    """
    beta1, beta2 = group["betas"]
    graft = group["graft"] if path == "sketch" else "rmsprop"
    if has_own_length(kind, path, group):
        return math.inf
    average = group["moving_average_momentum"]
    filled = 1 - beta1**count if average else 1.0
    fresh = 1 - beta1 if average else 1.0
    c = [fresh / filled * beta1**age for age in range(count)]  # the newest first
    if group["nesterov"] and beta1 > 0:
        c = [beta1 * x for x in c]
        c[0] += fresh
    scale = max(1.0, group["graft_scale"]) if path == "sketch" and graft is not None else 1.0
    margin = MARGIN.get(group["momentum_dtype"], 1.1) * scale
    if graft == "sgd":
        return margin * sum(c) * largest
    if graft in ("rmsprop_normalized", "adagrad_normalized"):
        c = [1.0] + [0.0] * (count - 1)
    faded = graft not in ("adagrad", "adagrad_normalized") and beta2 < 1
    total = (1 - beta2**count) / (1 - beta2) if faded else 1.0
    u = [(beta2**age if faded else 1.0) / total for age in range(count)]
    bound = sum(x * x / y if y else (torch.inf if x else 0.0) for x, y in zip(c, u, strict=True)) ** 0.5
    limit = longest(beta1, beta2, moving_average=average)
    if limit is not None and faded and graft is not None:
        bound = min(bound, limit)
    if graft == "factored":
        bound = 4.0  # `moments.clipped`
    return margin * bound * (OWN if graft in (None, "own") else 1.0)

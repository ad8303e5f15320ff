"""Weights and options for the tests of state in few bits."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from optim.optimizers import BF16, F32, F64, advance
from sketchy import SketchyShampoo, SketchySOAP
from sketchy.optim import SMALL

# two of one shape are a stack; the embedding and the long bias have enough entries for 8 bits on Adam's path
SHAPES = {
    "tall.weight": (40, 24),
    "tall.again": (40, 24),
    "wide.weight": (24, 141),
    "conv.weight": (20, 3, 3, 2),
    "embed.weight": (70, 65),
    "bias": (4100,),
    "norm": (7,),
    "scale": (),
}
FORMS: dict[str, dict[str, Any]] = {
    "int8": {"momentum_dtype": "int8"},
    "int4": {"momentum_dtype": "int4"},
    "small": SMALL,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "": {},
    "heavy ball": {"moving_average_momentum": False},
    "no nesterov": {"nesterov": False, "betas": (0.5, 0.9)},
    "every third": {"update_every": 3},
    "blocks": {"block_size": 18},
    "bfloat16 bases": {"sketch_dtype": BF16},
    "float64 bases": {"sketch_dtype": F64},
    "one-sided": {"one_sided": True},
}
DTYPES = [*((variant, F32) for variant in VARIANTS), ("", BF16), ("", F64), ("blocks", F64)]
forms = pytest.mark.parametrize("form", FORMS)
variants = pytest.mark.parametrize("variant", VARIANTS)
classes = pytest.mark.parametrize("cls", [SketchySOAP, SketchyShampoo])


def parameters(dtype: torch.dtype = F32) -> list[tuple[str, nn.Parameter]]:
    return [(name, nn.Parameter(torch.ones(shape, dtype=dtype))) for name, shape in SHAPES.items()]


def made(cls: Any, steps: int = 0, dtype: torch.dtype = F32, **options: Any) -> tuple[Any, list[Tensor]]:
    named = parameters(dtype)
    optimizer = cls(named, **{"rank": 4, **options})
    params = [p for _, p in named]
    advance(optimizer, params, range(steps))
    return optimizer, params


def held(optimizer: torch.optim.Optimizer) -> int:
    return sum(tensor.nbytes for state in optimizer.state.values() for tensor in state.values())

"""What is checked: weights of all kinds, their gradients, and our optimizers with a few options."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sketchy import optim
from sketchy.optim import SMALL
from sketchy.optim.engine import Engine

F32, F64, BF16 = torch.float32, torch.float64, torch.bfloat16
EPS = torch.finfo(F32).eps

# axes longer and shorter than the rank, more than two axes, one axis, and Adam's path by name
WEIGHTS = {
    "wide.weight": (24, 40),
    "tall.weight": (48, 16),
    "square.weight": (32, 32),
    "short.weight": (5, 30),
    "conv.weight": (8, 4, 3, 3),
    "norm.weight": (24,),
    "embed_tokens.weight": (300, 16),  # large enough for few bits
}
_LONGEST = max(map(math.prod, WEIGHTS.values()))
RANK = 8
ROUNDINGS = 100  # steps may be as far off as if gradients had so many rounding errors


@dataclass(frozen=True)
class Case:
    """An optimizer with its options, and by how much gradients may change for a fair comparison."""

    name: str
    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)
    change: float = ROUNDINGS * EPS  # relative, of each entry of the gradients
    precision: str = "highest"  # of torch's float32 products
    judged: bool = True  # whether a distance that is too large is a failure, or only shown

    def made(self, named: list[tuple[str, torch.nn.Parameter]]) -> Engine:
        return getattr(optim, self.kind)(named, **self.options)


# In few bits, rounding may choose another code, a sixteenth of the range: rarely for one rounding, often
# enough for 4e-4. SketchyAdagrad's steps have length lr for a whole weight of d numbers, so its lr is larger.
# What its sketch has not seen is multiplied by √d more than the rest, and so are the rounding errors there.
CASES = (
    Case("SketchyShampoo", "SketchyShampoo", {"lr": 0.01, "rank": RANK}),
    Case("Shampoo", "Shampoo", {"lr": 0.01}),
    Case("SketchySOAP", "SketchySOAP", {"lr": 0.01, "rank": RANK}),
    Case("SketchySOAP, SMALL", "SketchySOAP", {"lr": 0.01, "rank": RANK, **SMALL}, change=4e-4),
    Case("SketchySOAP, polar=3", "SketchySOAP", {"lr": 0.01, "rank": RANK, "polar": 3}),
    Case(
        "SketchyAdagrad", "SketchyAdagrad", {"lr": 1.0, "rank": RANK}, change=ROUNDINGS * EPS * _LONGEST**0.5
    ),
)
# With torch.set_float32_matmul_precision("high"), a product rounds its factors to 11 bits. Shown, but not
# judged: in simulated TF32, SketchySOAP amplifies it in weights with an axis shorter than the rank.
TF32 = tuple(
    Case(
        f"{kind}, TF32", kind, {"lr": 0.01, "rank": RANK}, change=10 * 2**-11, precision="high", judged=False
    )
    for kind in ("SketchyShampoo", "SketchySOAP")
)


def cases(device: torch.device) -> tuple[Case, ...]:
    """Those that a device is checked with."""
    return CASES + TF32 if device.type == "cuda" else CASES


def start() -> list[Tensor]:
    """The weights before the first step: numbers that bfloat16 has, as float64."""
    generator = torch.Generator().manual_seed(1)
    return [_in_bfloat16(0.02 * torch.randn(s, generator=generator, dtype=F64)) for s in WEIGHTS.values()]


def gradients(steps: int) -> Iterator[list[Tensor]]:
    """Of each step, numbers that bfloat16 has. Rows become smaller, so that spectra decay."""
    generator = torch.Generator().manual_seed(2)
    for _ in range(steps):
        yield [_gradient(shape, generator) for shape in WEIGHTS.values()]


def _gradient(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    x = torch.randn(shape, generator=generator, dtype=F64)
    if len(shape) > 1:
        sizes = torch.arange(1, shape[0] + 1, dtype=F64).rsqrt()
        x *= sizes.view(-1, *[1] * (len(shape) - 1))
    return _in_bfloat16(x)


def _in_bfloat16(x: Tensor) -> Tensor:
    return x.to(BF16).to(F64)

"""Steps stay short in all dtypes of weights, bases and momenta: thresholds follow the stored digits."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from sketchy import SketchyShampoo, SketchySOAP

SHAPE, STEPS, LR = (16, 97), 5, 1e-3
LONGEST = 10  # times AdamW's step; before thresholds followed the stored digits, up to 3,900
STREAMS = ("gaussian", "low rank", "drifting")


def gradients(stream: str) -> Iterator[Tensor]:
    generator = torch.Generator().manual_seed(0)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    A, B = randn(SHAPE[0], 2), randn(2, SHAPE[1])
    for _ in range(STEPS):
        match stream:
            case "gaussian":
                yield randn(*SHAPE)
            case "low rank":
                yield A @ randn(2, 2) @ B
            case "drifting":
                yield A @ B
                A = A + 0.1 * randn(*A.shape)


def lengths(kind: type[torch.optim.Optimizer], stream: str, dtype: torch.dtype, **options: object) -> Tensor:
    """The length of each step, from zero weights: they have all digits of a step."""
    p = torch.nn.Parameter(torch.zeros(SHAPE, dtype=dtype))
    optimizer = kind([p], lr=LR, weight_decay=0.0, **options)
    found = []
    for G in gradients(stream):
        p.grad = G.to(dtype)
        optimizer.step()
        found.append(p.detach().double().norm())
        p.detach().zero_()
    return torch.stack(found)


@pytest.mark.parametrize("momentum", ["float32", "bfloat16", "float64", "int8", "int4"])
@pytest.mark.parametrize("basis", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("weight", ["float64", "float32", "bfloat16", "float16"])
def test_no_step_is_much_longer_than_adamws_whatever_the_dtypes(weight, basis, momentum):
    dtype = getattr(torch, weight)
    for stream in STREAMS:
        limit = LONGEST * lengths(torch.optim.AdamW, stream, torch.float64)
        for kind, rank in ((SketchySOAP, 4), (SketchySOAP, 64), (SketchyShampoo, 4)):
            found = lengths(kind, stream, dtype, rank=rank, sketch_dtype=basis, momentum_dtype=momentum)
            assert (found <= limit).all(), (
                f"{stream}, {kind.__name__}, rank {rank}: {found / limit * LONGEST}"
            )

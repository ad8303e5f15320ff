"""Sharded weights: every layout takes the steps of one process."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import sketchy
from ranks import layouts, on_ranks

F64 = torch.float64
STEPS = 8
# uneven parts, ranks without rows (3 x 11 on four), axes shorter and longer than the rank, a vector, a stack
SHAPES = [(13, 10), (7, 5), (3, 11), (9,), (16, 6), (3, 7, 4)]
SHAMPOO: list[tuple[str, dict[str, Any]]] = [
    ("SketchyShampoo", {"rank": 3}),
    ("SketchyShampoo", {"rank": 8, "graft": "factored", "update_every": 3}),
    ("SketchyShampoo", {"rank": 3, "graft": "rmsprop_normalized", "whiten": True, "row_norm": 0.9}),
    ("SketchyShampoo", {"rank": 3, "graft": "sgd", "one_sided": True, "start_step": 3}),
    ("SketchyShampoo", {"rank": 3, "graft": "adagrad", "betas": (0.9, 1.0), "nesterov": True}),
    ("SketchyShampoo", {"rank": 3, "block_size": 6}),
    ("SketchyShampoo", {"rank": 3, "solver": "exact"}),
    ("SketchyShampoo", {"rank": 3, "stacked": True}),
    ("Shampoo", {}),
    ("SketchyAdagrad", {"rank": 4}),
]
SOAP: list[tuple[str, dict[str, Any]]] = [
    ("SketchySOAP", {"rank": 3}),
    ("SketchySOAP", {"rank": 64}),
    ("SketchySOAP", {"rank": 3, "polar": 2, "update_every": 2, "weight_decay": 0.1}),
    ("SketchySOAP", {"rank": 2, "momentum_dtype": "int8", "graft": None}),
    ("SketchySOAP", {"rank": 2, "momentum_dtype": "int4"}),
    ("SketchySOAP", {"rank": 2, "momentum_dtype": "int8", "adam_dtype": "int8", "stacked": True}),
    ("SketchySOAP", {"rank": 2, "sketch_dtype": "bfloat16"}),
]


def stream(kind: str) -> Iterator[list[Tensor]]:
    """The gradients of each step, as whole tensors."""
    generator = torch.Generator().manual_seed(0)
    for step in range(STEPS):
        grads = [torch.randn(shape, generator=generator, dtype=F64) for shape in SHAPES]
        if kind == "low rank":
            grads = [g[:, :1] @ g[:1] if g.dim() == 2 else g for g in grads]
        elif kind == "troubled" and step % 3 == 1:  # NaN on one rank only, and zeros
            grads[0][-1, -1], grads[1] = torch.nan, torch.zeros_like(grads[1])
        elif kind == "extreme":
            grads = [g * 10.0 ** (20 if i % 2 else -20) for i, g in enumerate(grads)]
        yield grads


def train(
    name: str, options: dict[str, Any], kind: str, place: tuple[Any, list[Any]] | None = None, noise: int = 0
) -> tuple[list[Tensor], Any]:
    """The weights after some steps, as whole tensors, and the optimizer.

    ``noise``: a seed; gradients are multiplied by 1 + eps times random signs.
    """
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(shape, generator=generator, dtype=F64) for shape in SHAPES]
    params = [torch.nn.Parameter(sharded(w, place)) for w in weights]
    optimizer = getattr(sketchy, name)(params, lr=0.01, **options)
    signs = torch.Generator().manual_seed(noise)
    for grads in stream(kind):
        for p, grad in zip(params, grads, strict=True):
            if noise:
                grad = grad * (1 + 2e-16 * torch.randn(grad.shape, generator=signs, dtype=F64).sign())
            p.grad = sharded(grad, place)
        optimizer.step()
    return [whole(p.detach()) for p in params], optimizer


def sharded(x: Tensor, place: tuple[Any, list[Any]] | None) -> Tensor:
    if place is None:
        return x
    from torch.distributed.tensor import Replicate, distribute_tensor

    mesh, placements = place
    own = [Replicate() if getattr(q, "dim", 0) >= x.dim() else q for q in placements]
    return distribute_tensor(x, mesh, own, src_data_rank=None)


def whole(x: Any) -> Tensor:
    return x.full_tensor() if hasattr(x, "full_tensor") else x


def distance(one: list[Tensor], other: list[Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))


def check_layouts(world: int, cases: list[tuple[str, dict[str, Any]]], kinds: list[str]) -> None:
    for name, options in cases:
        for kind in kinds:
            one, _ = train(name, options, kind)
            bound = 1e-12
            if name == "SketchySOAP":  # small roots amplify: compare with one rounding of the gradients
                moved = (train(name, options, kind, noise=seed)[0] for seed in (1, 2, 3))
                bound += 10 * max(distance(one, other) for other in moved)
            for layout, mesh, placements in layouts(world):
                found, optimizer = train(name, options, kind, (mesh, placements))
                case = name, options, kind, layout
                assert distance(one, found) <= bound, (case, distance(one, found), bound)
                assert_replicas_agree(optimizer, case)


def assert_replicas_agree(optimizer: Any, case: Any) -> None:
    """Plain tensors of the state are the same to the bit on all ranks."""
    from torch import distributed

    own = [
        {name: value for name, value in optimizer.state[p].items() if not hasattr(value, "full_tensor")}
        for group in optimizer.param_groups
        for p in group["params"]
    ]
    found: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(found, own)
    for other in found:
        for mine, theirs in zip(own, other, strict=True):
            assert mine.keys() == theirs.keys(), case
            for name in mine:
                assert torch.equal(mine[name], theirs[name]), (case, name)


def test_two_ranks_take_the_steps_of_one_process() -> None:
    on_ranks(2, check_layouts, 2, SHAMPOO[:3] + SOAP[:1], ["plain", "troubled"])


def test_four_ranks_take_the_steps_of_one_process() -> None:
    on_ranks(4, check_layouts, 4, [SHAMPOO[7], SOAP[0]], ["plain"])


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
def test_all_options_on_all_layouts(world: int) -> None:
    on_ranks(world, check_layouts, world, SHAMPOO + SOAP, ["plain", "troubled", "low rank", "extreme"])


def test_the_package_does_not_import_distributed_tensors() -> None:
    """They are 500 modules. (Torch's own optimizers import them when one is made.)"""
    code = "import sys, sketchy; assert 'torch.distributed.tensor' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)

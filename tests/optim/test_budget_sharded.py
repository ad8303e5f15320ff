"""Budgets with sharded weights: checkpoints, and layouts that are refused. (`sharded.py` has the steps.)"""

from typing import Any

import pytest
import torch
from optimizers import assert_same
from sharded import F64, LR, sharded, whole

import sketchy
from ranks import on_threads

pytestmark = pytest.mark.cpu_only("its ranks are threads")

SHAPES = [(24, 20), (40, 12), (9,), (16, 30)]
BUDGET: dict[str, Any] = {"budget": 1.2, "budget_every": 2, "min_rank": 2}


def made(place: Any, **options: Any) -> tuple[Any, list[torch.nn.Parameter]]:
    g = torch.Generator().manual_seed(1)
    weights = [torch.randn(shape, generator=g, dtype=F64) for shape in SHAPES]
    params = [torch.nn.Parameter(sharded(w, place)) for w in weights]
    return sketchy.SketchySOAP(params, lr=LR, **{**BUDGET, **options}), params


def advance(optimizer: Any, params: list[torch.nn.Parameter], place: Any, steps: range) -> None:
    for step in steps:
        for i, p in enumerate(params):
            g = torch.Generator().manual_seed(100 * step + i)
            grad = torch.randn(p.shape, generator=g, dtype=F64)
            steep = torch.arange(1, len(grad) + 1, dtype=F64) ** -(2.0 if (i + step // 3) % 2 else 0.1)
            p.grad = sharded(grad * steep.reshape(-1, *[1] * (grad.dim() - 1)), place)
        optimizer.step()


def ranks(optimizer: Any) -> list[Any]:
    return [row.ranks for row in optimizer.report()]


def snapshot(optimizer: Any, params: list[torch.nn.Parameter]) -> dict[str, torch.Tensor]:
    states = [{"weight": p.detach(), **optimizer.state[p]} for p in params]
    return {f"{i}.{name}": whole(x).clone() for i, own in enumerate(states) for name, x in own.items()}


def resume_elsewhere() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard

    place = init_device_mesh("cpu", (2,)), [Shard(0)]
    optimizer, params = made(place)
    first = ranks(optimizer)
    advance(optimizer, params, place, range(5))
    assert ranks(optimizer) != first  # otherwise nothing is tested
    resumed, others = made(place)
    with torch.no_grad():
        for p, q in zip(others, params, strict=True):
            p.copy_(q)
    resumed.load_state_dict(optimizer.state_dict())
    for each, own in ((optimizer, params), (resumed, others)):
        advance(each, own, place, range(5, 9))
    assert_same(snapshot(resumed, others), snapshot(optimizer, params))
    alone, plain = made(None)
    advance(alone, plain, None, range(9))
    assert ranks(alone) == ranks(optimizer)


def test_a_sharded_run_resumes_to_the_bit_with_the_ranks_of_one_process() -> None:
    on_threads(2, resume_elsewhere)


def two_meshes() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard

    first, second = (init_device_mesh("cpu", (2,), mesh_dim_names=(name,)) for name in "ab")
    params = [
        torch.nn.Parameter(sharded(torch.ones(16, 12, dtype=F64), (m, [Shard(0)]))) for m in (first, second)
    ]
    optimizer = sketchy.SketchySOAP(params, lr=LR, **{**BUDGET, "budget_every": 1})
    for p in params:
        p.grad = torch.ones_like(p)
    with pytest.raises(ValueError, match="lie on 2 meshes: give those of each mesh a group"):
        optimizer.step()


def test_weights_of_one_budget_lie_on_one_mesh() -> None:
    on_threads(2, two_meshes)

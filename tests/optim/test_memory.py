"""The size of the state: planned from shapes, and measured on the real state."""

import sys
import tracemalloc
from array import array
from itertools import pairwise
from typing import Any

import pytest
import torch
from benchmarks.common.memory import live, settle
from benchmarks.registry.dense_soap import SOAP
from torch import nn

from optim.optimizers import BF16, CASES, CLASSES, F16, F32, F64, Case, advance, gradient, weights
from sketchy import SketchyShampoo, SketchySOAP

pytestmark = pytest.mark.cpu_only("it measures the memory of the CPU")

ODD = ((1, 1), (1, 7, 1), (3, 1, 5), (2, 2, 2, 2), (17, 3), (3, 17), (13,), (), (0,), (5, 0, 2), (9, 8))


def held(optimizer: torch.optim.Optimizer) -> int:
    return sum(tensor.nbytes for state in optimizer.state.values() for tensor in state.values())


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize(
    "options",
    [{}, {"block_size": 3}, {"momentum_dtype": BF16, "sketch_dtype": BF16}, {"sketch_dtype": F64}],
    ids=str,
)
def test_planned_bytes_equal_the_bytes_of_the_state_for_odd_shapes(
    case: Case, options: dict[str, Any]
) -> None:
    for dtype in (F32, F16, F64):
        params = weights(dtype, ODD)
        optimizer = case.make(params, **options)
        planned = optimizer.report().bytes
        advance(optimizer, params, range(2))
        assert optimizer.report().bytes == planned == held(optimizer)
        assert all(p.isfinite().all() for p in params)


@pytest.mark.parametrize("cls", [SketchyShampoo, SketchySOAP])
def test_a_large_weight_holds_little_more_than_its_momentum(cls: type[torch.optim.Optimizer]) -> None:
    """A 4096 x 1024 weight, default options: floats per weight, from the real state after two steps."""
    p = nn.Parameter(torch.zeros(4096, 1024))
    optimizers = {
        "float32": cls([p]),
        "bfloat16": cls([p], momentum_dtype=torch.bfloat16),
        "AdamW": torch.optim.AdamW([p]),
    }
    p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(0))
    floats = {}
    for name, optimizer in optimizers.items():
        optimizer.step()
        optimizer.step()
        floats[name] = held(optimizer) / 4 / p.numel()
    assert floats["float32"] <= 1.15
    assert floats["bfloat16"] <= 0.65
    assert floats["AdamW"] == pytest.approx(2.0, abs=1e-3)


@pytest.mark.parametrize("case", CLASSES, ids=str)
def test_nothing_but_the_planned_state_survives_a_step(case: Case) -> None:
    if "torch._dynamo" in sys.modules and torch._dynamo.utils.counters["frames"]:
        pytest.skip("an earlier test compiled something, and the compiler keeps tensors: run this file alone")
    params = weights(F32, [(23, 19), (23, 19), (19, 23), (29,)])
    for i, p in enumerate(params):
        p.grad = gradient(p, i, 0)
    before = live().bytes
    optimizer = case.make(params)
    optimizer.step()
    optimizer.step()
    assert live().bytes - before == optimizer.report().bytes


@pytest.mark.parametrize("case", CLASSES, ids=str)
def test_memory_of_python_does_not_grow_from_twenty_to_a_hundred_steps(case: Case) -> None:
    """What looked like growth was Python's cache of attributes (`settle` empties it).

    A leak would show in each of four windows. Beside other tests, one of them may hold something more.
    """
    params = weights()
    optimizer = case.make(params)
    advance(optimizer, params, range(10))
    tracemalloc.start(1)
    try:
        bytes = array("q", [0] * 5)  # it needs no new objects for new numbers
        for i in range(5):
            advance(optimizer, params, range(20 * i, 20 * (i + 1)))
            settle()
            bytes[i] = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert min(after - before for before, after in pairwise(bytes)) < 20  # a byte for each step


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_optimizer_refers_to_tensors_through_groups_and_state_only(case: Case) -> None:
    params = weights()
    optimizer = case.make(params)
    advance(optimizer, params, range(2))
    kept = {k for k, v in vars(optimizer).items() if k not in ("param_groups", "state", "defaults")}
    bare = torch.optim.SGD(weights(), lr=0.1)
    assert kept <= set(vars(bare)), kept - set(vars(bare))


def test_soap_keeps_ten_and_a_half_numbers_a_weight() -> None:
    """The SOAP that ours are compared with keeps 2 mn + 2 m² + 2 n² numbers. For m = 4 n this is 10.5 mn."""
    p = torch.nn.Parameter(torch.zeros(64, 16))
    optimizer = SOAP([p])
    for step in range(2):
        p.grad = gradient(p, 0, step)
        optimizer.step()
    matrices = [t for t in optimizer.state[p].values() if isinstance(t, torch.Tensor) and t.dim() == 2]
    assert sum(t.numel() for t in matrices) / p.numel() == 10.5

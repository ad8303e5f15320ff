"""`torch.compile(optimizer.step)` is the eager step from the first on; compiling takes minutes."""

import shutil
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

from optim.optimizers import CLASSES, Case, assert_near, gradient, snapshot, weights

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),  # the compiler's own
    pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs g++ here"),
]

# a stack of two, another shape, two whose axes are merged, a vector
SHAPES = {
    "first": (6, 5),
    "second": (6, 5),
    "third": (5, 7),
    "conv": (4, 3, 2),
    "wide": (5, 2, 3),
    "bias": (5,),
}
STEPS, BAD = 5, 2  # the first weight's gradient has a NaN at the bad step
TOLERANCE = 1e-5  # relative to the largest entry; measured with SketchyShampoo: 2e-7
GRAPHS = 30  # measured with SketchyShampoo: 16; 67 when its decompositions were compiled, too


def follow(case: Case, compiled: bool) -> list[dict[str, Tensor]]:
    """Weights and state after each step."""
    params = weights(shapes=SHAPES.values())
    optimizer: Any = case.make(list(zip(SHAPES, params, strict=True)), lr=0.01)
    step = torch.compile(optimizer.step) if compiled else optimizer.step
    result = []
    for t in range(STEPS):
        for i, p in enumerate(params):
            p.grad = gradient(p, i, t)
            if (i, t) == (0, BAD):
                p.grad[0, 0] = torch.nan
        step()
        result.append(snapshot(optimizer))
    return result


def agree(case: Case) -> None:
    torch._dynamo.reset()
    counters.clear()
    now, then = follow(case, compiled=True), follow(case, compiled=False)
    for t in range(STEPS):
        assert_near(now[t], then[t], TOLERANCE)
        assert now[t]["0.0.skipped"] == (t >= BAD)
    assert torch.equal(now[BAD]["0.0"], now[BAD - 1]["0.0"])


@pytest.mark.parametrize("case", CLASSES, ids=str)
def test_a_compiled_step_equals_the_eager_one_from_the_first_on(case: Case) -> None:
    agree(case)
    print(case, counters["stats"]["unique_graphs"])
    assert 0 < counters["stats"]["unique_graphs"] <= GRAPHS


def test_with_more_shapes_than_the_compiler_keeps_graphs_for_the_rest_runs_eagerly() -> None:
    with torch._dynamo.config.patch(recompile_limit=1):
        agree(CLASSES[0])

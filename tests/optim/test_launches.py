"""How many operations a step starts on an accelerator, counted on tensors without values."""

import re
from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

import sketchy
from sketchy.analysis.operations import Launches, Passes

pytestmark = pytest.mark.cpu_only("on meta tensors, as everywhere")

# Of a GPT with any number of layers. Lower them when a step gets better.
MOST = {"SketchySOAP": 1000, "SketchyShampoo": 736}
WIDTH, RANK = 768, 64


def launches(kind: str, layers: int, **options: Any) -> Counter[str]:
    """Of the third step."""
    d = WIDTH
    layer = [(3 * d, d), (3 * d,), (d, d), (4 * d, d), (4 * d,), (d, 4 * d), *[(d,)] * 6]
    shapes = [(50257, d), (1024, d), *layers * layer]
    params = [nn.Parameter(torch.empty(shape, device="meta")) for shape in shapes]
    optimizer = getattr(sketchy, kind)([(f"{i}", p) for i, p in enumerate(params)], **options)
    for _ in range(3):
        for p in params:
            p.grad = torch.empty_like(p)
        with Launches() as count:
            optimizer.step()
    return count.found


@pytest.mark.parametrize("kind", MOST)
def test_a_step_starts_few_operations_and_no_more_for_more_layers(kind: str) -> None:
    few, many = (launches(kind, layers, rank=RANK) for layers in (2, 24))
    assert few.total() <= MOST[kind], few.most_common()
    assert many == few
    for name in ("linalg_cholesky_ex", "_linalg_eigh", "linalg_qr"):
        assert few[name] <= 6, name  # all weights of a wave in one batch


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("SketchySOAP", {"rank": RANK}),
        ("SketchySOAP", {"rank": 2 * WIDTH}),  # whole covariances of most axes
        ("SketchySOAP", {"rank": RANK, "polar": 3, **sketchy.optim.SMALL}),
        ("SketchySOAP", {"rank": RANK, "update_every": 2, "graft": "rows", "whiten": False}),
        ("SketchyShampoo", {"rank": RANK}),
        ("SketchyShampoo", {"rank": RANK, "block_size": 512, "sketch_dtype": torch.bfloat16}),
        ("SketchyAdagrad", {"rank": RANK}),
    ],
    ids=str,
)
def test_with_sweeps_a_step_decomposes_nothing_that_waits(kind: str, options: dict[str, Any]) -> None:
    found = launches(kind, 1, solver="sweeps", **options)
    assert not [name for name in found if re.search("eig|svd|_qr|item|nonzero", name)], found
    assert launches(kind, 1, **options | {"solver": "subspace"})["_linalg_eigh"]  # the test sees them


# Reads and writes of a whole weight, beside products. The goal is 14.
MOST_PASSES = {"SketchySOAP": 20, "SketchyShampoo": 16}


@pytest.mark.parametrize("kind", MOST_PASSES)
def test_a_step_reads_and_writes_weights_seldom(kind: str) -> None:
    p = nn.Parameter(torch.empty(2048, 1024, device="meta"))
    optimizer = getattr(sketchy, kind)([p], rank=RANK)
    for _ in range(2):
        p.grad = torch.empty_like(p)
        with Passes(p.numel()) as count:
            optimizer.step()
    assert count.found.total() <= MOST_PASSES[kind], count.found


def test_passes_are_reads_and_writes_but_not_of_products() -> None:
    x, y = torch.empty(8, 8, device="meta"), torch.empty(8, 8, device="meta")
    with Passes(64) as count:
        torch.add(x, y, out=y)
        x.mul_(2)
        torch._foreach_add_([x], [y])
        x.sum(0)
        x.mT @ y
        x.view(64)
    assert count.found == {"add": 3, "mul_": 2, "_foreach_add_": 3, "sum": 1}


def test_the_count_sees_an_operation_more() -> None:
    x = torch.empty(3, 4, device="meta")
    with Launches() as count:
        (x.mT.unsqueeze(0) * 2).add_(1)
        torch.empty_like(x)
    assert count.found == {"mul": 1, "add_": 1}

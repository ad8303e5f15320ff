"""State in few bits: how large it is, and what a step needs beside it."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from optim.few_bits import DTYPES, FORMS, VARIANTS, classes, forms, held, made
from optim.optimizers import F32
from optim.test_scratch import COUNT, SHAPE, STACK, measured
from sketchy import SketchySOAP


@pytest.mark.parametrize(("variant", "dtype"), DTYPES)
@forms
@classes
def test_planned_bytes_are_those_of_the_state(cls: Any, form: str, variant: str, dtype: torch.dtype) -> None:
    optimizer, _ = made(cls, 2, dtype, **FORMS[form], **VARIANTS[variant])
    assert optimizer.report().bytes == held(optimizer)
    dtypes = {tensor.dtype for state in optimizer.state.values() for tensor in state.values()}
    assert torch.int8 in dtypes and (torch.uint8 in dtypes) == (form != "int8")
    assert all(
        type(tensor) is type(torch.empty(0))
        for state in optimizer.state.values()
        for tensor in state.values()
    )


@pytest.mark.parametrize(("form", "most"), [("int8", 0.35), ("int4", 0.25)])
def test_floats_per_weight_of_a_large_matrix(form: str, most: float) -> None:
    """The whole state of a 4096 x 1024 weight at rank 64, with row norms: 0.342 and 0.225."""
    p = nn.Parameter(torch.zeros(4096, 1024))
    optimizer = SketchySOAP([p], row_norm=0.95, **FORMS[form])
    p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(0))
    optimizer.step()
    assert held(optimizer) / 4 / p.numel() <= most
    assert p.isfinite().all() and p.any()


def gpt2_small() -> Iterator[tuple[str, tuple[int, ...]]]:
    """The weights of GPT-2 small; the head is tied to the embedding."""
    yield from (("wte.weight", (50257, 768)), ("wpe.weight", (1024, 768)))
    for i in range(12):
        for name, shape in (
            ("attn.c_attn", (2304, 768)),
            ("attn.c_proj", (768, 768)),
            ("mlp.c_fc", (3072, 768)),
            ("mlp.c_proj", (768, 3072)),
        ):
            yield from ((f"h.{i}.{name}.weight", shape), (f"h.{i}.{name}.bias", shape[:1]))
        for norm in ("ln_1", "ln_2"):
            yield from ((f"h.{i}.{norm}.weight", (768,)), (f"h.{i}.{norm}.bias", (768,)))
    yield from (("ln_f.weight", (768,)), ("ln_f.bias", (768,)))


@pytest.mark.parametrize(("momentum", "most"), [("int8", 0.45), ("int4", 0.35)])
def test_floats_per_weight_of_gpt2_small(momentum: str, most: float) -> None:
    """By plans, whose bytes are those of real states: 0.423 and 0.347, embeddings included."""
    options = {"momentum_dtype": momentum, "adam_dtype": "int8", "row_norm": 0.95}
    count = size = 0
    for name, shape in gpt2_small():
        count += torch.Size(shape).numel()
        size += SketchySOAP.plan_of(shape, F32, name, **options).bytes
    assert count == 124_439_808
    assert size / 4 / count <= most


@pytest.mark.cpu_only("it measures the memory of the CPU")
@classes
@pytest.mark.parametrize("bad", [False, True], ids=["good", "bad"])
@pytest.mark.parametrize(
    "options",
    [
        {"momentum_dtype": "int8"},
        {"momentum_dtype": "int4"},
        {"momentum_dtype": "int4", "block_size": 200},
        {"momentum_dtype": "int4", "stack_size": 1},
        {"path": "adam", "adam_dtype": "int8"},
    ],
    ids=str,
)
def test_a_step_holds_no_more_than_the_report_says_and_not_much_less(
    cls: Any, options: dict[str, Any], bad: bool
) -> None:
    optimizer, most = measured(cls, bad=bad, rank=8, **options)
    bound = optimizer.report().scratch
    assert most <= bound <= most + 1.6 * STACK, f"{most / STACK:.2f} stacks, said {bound / STACK:.2f}"


def test_codes_take_half_a_stack_more_than_floats_and_products_in_blocks_two_stacks_more() -> None:
    def scratch(**options: Any) -> int:
        params = [nn.Parameter(torch.zeros(SHAPE)) for _ in range(COUNT)]
        return SketchySOAP(params, rank=8, **options).report().scratch

    plain, blocks = scratch(), scratch(block_size=128)
    assert scratch(path="adam") < plain < 3 * STACK
    assert scratch(momentum_dtype="int8") - plain == scratch(momentum_dtype="int4") - plain == STACK // 2
    assert scratch(momentum_dtype="int4", block_size=128) - blocks == 5 * STACK // 2

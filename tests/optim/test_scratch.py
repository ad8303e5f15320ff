"""The scratch memory of a step: measured, at most what the report says, and limited by ``stack_size``."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from optim.optimizers import BF16, CASES, F32, Case, assert_near, gradient, run
from sketchy import SketchyShampoo, SketchySOAP
from sketchy.core.tuned import sizes

pytestmark = pytest.mark.cpu_only("it measures the memory of the CPU")

COUNT, SHAPE, RANK = 4, (512, 384), 8
STACK = COUNT * SHAPE[0] * SHAPE[1] * 4
BASES = COUNT * RANK * sum(SHAPE) * 4
PANELS = 3 * max(1 << 19, STACK // 8)  # the cache-sized pieces of elementwise chains


def peak(run: Callable[[], object]) -> int:
    """The most bytes that were allocated at a time and not before, by torch's own count."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        run()
    assert recorded.profiler is not None
    events = [e for e in recorded.profiler.kineto_results.events() if e.name() == "[memory]"]
    assert events
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


def measured(make: Callable[..., Any], dtype: torch.dtype = F32, bad: bool = False, **options: Any) -> Any:
    """An optimizer of one stack, and the peak of its third step."""
    params = [nn.Parameter(torch.zeros(SHAPE, dtype=dtype)) for _ in range(COUNT)]
    optimizer = make(params, **options)
    for step in range(2):
        for i, p in enumerate(params):
            p.grad = gradient(p, i, step)
        optimizer.step()
    if bad:
        params[1].grad[0, 0] = torch.nan
    return optimizer, peak(optimizer.step)


def test_the_meter_sees_what_is_held_at_a_time() -> None:
    def work() -> None:
        for _ in range(3):
            torch.zeros(1000, dtype=torch.uint8)
        a = torch.zeros(5000, dtype=torch.uint8)
        del a
        torch.zeros(3000, dtype=torch.uint8)

    assert 5000 <= peak(work) < 6000


@pytest.mark.parametrize("bad", [False, True], ids=["good", "bad"])
@pytest.mark.parametrize(
    "options",
    [{}, {"path": "adam"}, {"momentum_dtype": BF16}, {"graft": "rmsprop"}, {"graft": "adagrad_normalized"}],
    ids=str,
)
@pytest.mark.parametrize("rank", [RANK, 64])
@pytest.mark.parametrize("cls", [SketchyShampoo, SketchySOAP])
def test_a_step_holds_two_stacks_and_some_bases_also_when_a_gradient_is_bad(
    cls: Any, rank: int, options: dict[str, Any], bad: bool
) -> None:
    optimizer, most = measured(cls, bad=bad, rank=rank, **options)
    bound = 2 * STACK + 10 * BASES * rank // RANK + PANELS
    assert most <= bound, f"{most / STACK:.2f} stacks"
    assert optimizer.report().scratch <= bound


@pytest.mark.parametrize("bad", [False, True], ids=["good", "bad"])
@pytest.mark.parametrize("rule", ["rmsprop", "adagrad_normalized"])
@pytest.mark.parametrize("options", [{"start_step": 5}, {"one_sided": True}, {"betas": (0.0, 0.99)}], ids=str)
@pytest.mark.parametrize("cls", [SketchyShampoo, SketchySOAP])
def test_grafts_by_entries_hold_no_more_than_the_report_says(
    cls: Any, options: dict[str, Any], rule: str, bad: bool
) -> None:
    optimizer, most = measured(cls, bad=bad, rank=4, graft=rule, **options)
    assert most <= optimizer.report().scratch, f"{most / STACK:.2f} stacks"


def test_a_single_weight_holds_one_stack() -> None:
    _, most = measured(SketchyShampoo, rank=RANK, stack_size=1)
    assert most <= (STACK + 10 * BASES) / COUNT + (1 << 20), f"{most / STACK:.2f} stacks"


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_no_step_holds_more_than_the_report_says(case: Case, dtype: torch.dtype) -> None:
    blocks = {"block_size": 200} if "block_size" in case.options else {}
    optimizer, most = measured(case.make, dtype, **blocks)
    assert most <= optimizer.report().scratch, f"{most / STACK:.2f} stacks"


def test_stack_size_bounds_what_a_step_holds() -> None:
    one = SHAPE[0] * SHAPE[1]
    bounds = []
    for stack_size in (4 * one, 2 * one, one, 1):
        optimizer, most = measured(SketchyShampoo, rank=RANK, stack_size=stack_size)
        bounds.append(optimizer.report().scratch)
        assert most <= bounds[-1]
    assert bounds[0] > bounds[1] > bounds[2] == bounds[3]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_results_do_not_depend_on_stack_size(case: Case) -> None:
    together = run(case, stack_size=1 << 40)
    for stack_size in (1, 59, 60):  # the two alike have 30 entries each
        assert_near(run(case, stack_size=stack_size), together, 5e-3)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_results_do_not_depend_on_which_stacks_go_together(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = run(case)
    monkeypatch.setattr(sizes, "WAVE_BYTES", 0)
    assert_near(run(case), together, 1e-4)

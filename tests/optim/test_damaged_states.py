"""Each slot of each optimizer, damaged: loading refuses it by its name, or the next steps are harmless."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from optim.optimizers import CASES, F32, F64, Case, advance, assert_same, gradient, snapshot, weights

# The length of a step in units of lr √size. If a second moment is lost and momentum is not, entries with tiny
# gradients make long steps.
LONGEST = 5000
LARGEST = {F32: 1e100, F64: 1e300}  # masses and moments that load


def _filled(number: float) -> Callable[[Tensor], Tensor]:
    """With a number in each entry. Integers become float64, as if an old version had saved them."""
    return lambda x: torch.full_like(x, number, dtype=F64).to(x.dtype if x.is_floating_point() else F64)


def _extreme(end: str) -> Callable[[Tensor], Tensor]:
    def damage(x: Tensor) -> Tensor:
        info = torch.finfo(x.dtype) if x.is_floating_point() else torch.iinfo(x.dtype)
        return torch.full_like(x, getattr(info, end))

    return damage


WAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "negative": _extreme("min"),
    "NaN": _filled(torch.nan),
    "Inf": _filled(torch.inf),
    "zero": torch.zeros_like,
    "ascending": lambda x: torch.arange(x.numel()).reshape(x.shape).to(x.dtype),
    "askew": lambda x: (x * 1.02).to(x.dtype),  # a basis that is almost orthonormal
    "1e200": _filled(1e200),
    "largest": _extreme("max"),
}
TRIED = [*((way, F32) for way in WAYS), ("1e200", F64), ("largest", F64)]


def walked(case: Case, dtype: torch.dtype) -> Any:
    """An optimizer after three steps."""
    first = (4, 3, 2) if "merge_dims" in case.options else (12, 5)
    last = 4096 if case.options.get("adam_dtype") else 5  # few bits need 4096 entries on Adam's path
    params = weights(dtype, [first, (last,)])
    optimizer = case.make(params)
    advance(optimizer, params, range(3))
    return optimizer


def assert_harmless(optimizer: Any, index: int, what: str) -> None:
    (group,) = optimizer.param_groups
    p = group["params"][index]
    for step in range(3, 6):
        before, p.grad = p.detach().clone(), gradient(p, index, step)
        optimizer.step()
        length = (p.detach() - before).double().norm() / (group["lr"] * p.numel() ** 0.5)
        assert length < LONGEST, f"{what}: a step of length {length:.0e}"  # not NaN either


def damaged(optimizer: Any, index: int, key: str, value: Tensor) -> dict[str, Any]:
    saved = optimizer.state_dict()
    return {**saved, "state": {**saved["state"], index: {**saved["state"][index], key: value}}}


every_case = pytest.mark.parametrize("case", CASES, ids=str)


@every_case
@pytest.mark.parametrize(("way", "dtype"), TRIED, ids=str)
def test_a_damaged_slot_is_refused_by_its_name_or_does_no_harm(
    case: Case, dtype: torch.dtype, way: str
) -> None:
    optimizer = walked(case, dtype)
    before = snapshot(optimizer)
    for index, state in optimizer.state_dict()["state"].items():
        for key, value in state.items():
            other = copy.deepcopy(optimizer)
            try:
                other.load_state_dict(damaged(optimizer, index, key, WAYS[way](value)))
            except ValueError as refusal:
                assert f"has {key} " in str(refusal)
                assert_same(snapshot(other), before)
            else:
                assert_harmless(other, index, key)


@every_case
@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_the_largest_masses_and_moments_that_load_do_no_harm(case: Case, dtype: torch.dtype) -> None:
    optimizer = walked(case, dtype)
    for index, state in optimizer.state_dict()["state"].items():
        for key, value in state.items():
            if value.dtype == F64 and not key.endswith(("_basis", "momentum", "_scale")):
                other, p = copy.deepcopy(optimizer), optimizer.param_groups[0]["params"][index]
                most = LARGEST[case.cls.plan_of(p.shape, dtype, **case.options).range]
                other.load_state_dict(damaged(optimizer, index, key, torch.full_like(value, most)))
                assert_harmless(other, index, key)

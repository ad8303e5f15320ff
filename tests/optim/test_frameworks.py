"""The table of optimizers x schedulers, autocast, scalers, closures and what training frameworks do."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

from optim.optimizers import (
    CASES,
    CLASSES,
    F64,
    Case,
    advance,
    assert_near,
    assert_same,
    gradient,
    run,
    snapshot,
    weights,
)

every_case = pytest.mark.parametrize("case", CASES, ids=str)
every_class = pytest.mark.parametrize("case", CLASSES, ids=str)

SCHEDULERS: dict[str, Callable[[Any], lr_scheduler.LRScheduler]] = {
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.8**step),
    "exponential": lambda o: lr_scheduler.ExponentialLR(o, 0.8),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=4),
    "warmup from zero": lambda o: lr_scheduler.LambdaLR(o, lambda step: min(1.0, step / 3)),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=6),
    "sequential": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=2), lr_scheduler.CosineAnnealingLR(o, 4)], [2]
    ),
}


@every_class
def test_a_closure_is_called_once_under_grad_and_its_value_returned(case: Case) -> None:
    p = nn.Parameter(torch.ones(4, 3))
    optimizer = case.make([p])
    seen = []

    def closure() -> Tensor:
        seen.append(torch.is_grad_enabled())
        optimizer.zero_grad()
        loss = p.square().sum()
        loss.backward()
        return loss

    with torch.no_grad():
        assert optimizer.step(closure).item() == 12.0
    assert seen == [True]
    assert optimizer.step(closure=lambda: None) is None
    assert optimizer.step() is None


@every_class
def test_step_hooks_run_before_and_after(case: Case) -> None:
    params, calls = weights(), []
    optimizer = case.make(params)
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    advance(optimizer, params, range(2))
    assert calls == ["before", "after"] * 2


@every_class
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_sets_the_rate_of_each_step(case: Case, name: str) -> None:
    """A scheduled run equals one in which the same options were written into the group by hand."""
    params, twins = weights(), weights()
    scheduled, manual = case.make(params, lr=0.05), case.make(twins, lr=0.05)
    scheduler = SCHEDULERS[name](scheduled)
    seen = set()
    for step in range(5):
        manual.param_groups[0].update({k: scheduled.param_groups[0][k] for k in ("lr", "betas")})
        seen.add(scheduled.param_groups[0]["lr"])
        advance(scheduled, params, [step])
        advance(manual, twins, [step])
        scheduler.step()
    assert len(seen) > 2
    assert_same(snapshot(scheduled), snapshot(manual))


@every_class
@pytest.mark.parametrize("shape", [(), (1,), (1, 1)], ids=str)
def test_a_rate_may_be_a_tensor(case: Case, shape: tuple[int, ...]) -> None:
    params = weights()
    rate = torch.full(shape, 0.05)
    optimizer = case.make(params, lr=rate)
    advance(optimizer, params, range(3))
    assert_near(snapshot(optimizer), run(case, 3, lr=0.05), 1e-6)

    rate.fill_(0.0)  # schedulers write into the tensor, and the next step obeys
    frozen = [p.detach().clone() for p in params]
    advance(optimizer, params, [3])
    assert all(torch.equal(p, old) for p, old in zip(params, frozen, strict=True))


@every_class
@pytest.mark.parametrize("name", ["exponential", "one cycle"])
def test_a_scheduler_and_a_tensor_rate_equal_a_scheduler_and_a_number(case: Case, name: str) -> None:
    ends = []
    for rate in (0.05, torch.tensor(0.05)):
        params = weights()
        optimizer = case.make([{"params": params[:3]}, {"params": params[3:]}], lr=rate)
        scheduler = SCHEDULERS[name](optimizer)
        for step in range(4):
            advance(optimizer, params, [step])
            scheduler.step()
        ends.append(snapshot(optimizer))
    assert_near(ends[1], ends[0], 1e-5)


@every_case
def test_autocast_around_a_step_changes_nothing(case: Case) -> None:
    params = weights()
    optimizer = case.make(params)
    with torch.autocast(params[0].device.type, torch.bfloat16):
        advance(optimizer, params, range(4))
    assert_same(snapshot(optimizer), run(case))


@every_class
def test_grad_scaler_unscales_and_its_skipped_steps_do_not_count(case: Case) -> None:
    params, twins = weights(), weights()
    scaled, plain = case.make(params), case.make(twins)
    scaler = torch.amp.GradScaler(params[0].device.type, init_scale=4.0, growth_interval=100)
    for step in range(4):
        for i, p in enumerate(params):
            p.grad = gradient(p, i, step) * 4.0
        if step == 2:
            params[0].grad[0, 0] = torch.inf
        scaler.scale(torch.zeros(()))  # the scale exists from here on
        before = snapshot(scaled)
        scaler.step(scaled)
        scaler.update(4.0)
        if step == 2:
            assert_same(snapshot(scaled), before)
        else:
            advance(plain, twins, [step])
    assert_same(snapshot(scaled), snapshot(plain))


@every_case
def test_one_optimizer_per_parameter_equals_one_for_all(case: Case) -> None:
    """Optimizer-in-backward; and weights stacked for a step equal weights alone."""
    turns = {name: 1 for name in ("update_every", "roots_every") if name in case.options}
    case = Case(case.name, case.cls, {**case.options, **turns})  # turns go by the neighbours
    joint, single = weights(F64), weights(F64)
    advance(case.make(joint), joint, range(6))
    optimizers = {p: case.make([p]) for p in single}

    def step_in_backward(p: Tensor) -> None:
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in single:
        p.register_post_accumulate_grad_hook(step_in_backward)
    for step in range(6):
        sum((gradient(p, i, step) * p).sum() for i, p in enumerate(single)).backward()
    for p, q in zip(joint, single, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-10)


@every_class
def test_parameters_may_be_replaced_in_the_groups(case: Case) -> None:
    """As Accelerate does for FSDP2: the user moves the state; ``param.data`` may be swapped too."""
    params, twins = weights(), weights()
    optimizer, still = case.make(params), case.make(twins)
    advance(optimizer, params, range(3))
    advance(still, twins, range(3))

    replaced = [nn.Parameter(p.detach().clone()) for p in params]
    optimizer.param_groups[0]["params"] = replaced
    for old, new in zip(params, replaced, strict=True):
        if old in optimizer.state:
            optimizer.state[new] = optimizer.state.pop(old)
    advance(optimizer, replaced, range(3, 5))
    for p in replaced:
        p.data = p.data.clone()
    advance(optimizer, replaced, range(5, 7))
    advance(still, twins, range(3, 7))
    assert_same(snapshot(optimizer), snapshot(still))


@every_class
def test_zero_redundancy_builds_it_from_its_own_defaults(case: Case) -> None:
    params, twins = weights(), weights()
    first = copy.deepcopy(case.make(params, lr=0.02))
    again = type(first)([{"params": twins[:2]}, {"params": twins[2:]}, {"params": []}], **first.defaults)
    advance(first, first.param_groups[0]["params"], range(3))
    advance(again, twins, range(3))
    assert first.defaults == again.defaults
    assert all(torch.equal(p, q) for p, q in zip(first.param_groups[0]["params"], twins, strict=True))
    assert "lr: 0.02" in repr(first) and not hasattr(first, "train") and not hasattr(first, "eval")


class Wrapper:
    """What Lightning does: borrow an optimizer's attributes, and become a subclass of its class."""

    def __init__(self, optimizer: Any) -> None:
        self.__dict__ = {k: v for k, v in optimizer.__dict__.items() if k != "step"}
        name = type(optimizer).__name__
        self.__class__ = type("Lightning" + name, (Wrapper, type(optimizer)), {})
        self.inner, self.calls = optimizer, 0

    def step(self, closure: Any = None, **_: Any) -> Any:
        self.calls += 1
        return self.inner.step(closure)


@every_class
def test_lightning_wraps_it_and_moves_its_state(case: Case) -> None:
    params = weights()
    wrapped: Any = Wrapper(case.make(params))
    assert isinstance(wrapped, case.cls)
    advance(wrapped, params, range(2))
    for state in wrapped.inner.state.values():
        for key, value in state.items():
            state[key] = value.clone()  # moved to a device: the tensors are new ones
    advance(wrapped, params, range(2, 4))
    assert wrapped.calls == 4
    assert_same(snapshot(wrapped), run(case))


@every_class
def test_a_copy_goes_its_own_way(case: Case) -> None:
    for steps in (0, 3):
        params = weights()
        optimizer = case.make(params)
        advance(optimizer, params, range(steps))
        twin = copy.deepcopy(optimizer)
        before = snapshot(twin)
        advance(optimizer, params, range(steps, 5))
        assert_same(snapshot(twin), before)
        advance(twin, twin.param_groups[0]["params"], range(steps, 5))
        assert_same(snapshot(twin), snapshot(optimizer))

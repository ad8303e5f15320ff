"""The table of optimizers x what torch and its users expect of a step."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

from optim.optimizers import (
    BF16,
    CASES,
    CLASSES,
    F16,
    F32,
    F64,
    Case,
    advance,
    assert_near,
    assert_same,
    gradient,
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


def run(case: Case, steps: int = 4, *, dtype: torch.dtype = F32, **options: Any) -> dict[str, Tensor]:
    params = weights(dtype)
    optimizer = case.make(params, **options)
    advance(optimizer, params, range(steps))
    return snapshot(optimizer)


@every_case
def test_a_step_moves_every_weight_and_leaves_gradients_alone(case: Case) -> None:
    params = weights()
    optimizer = case.make(params)
    for step in range(5):
        before = [p.detach().clone() for p in params]
        advance(optimizer, params, [step])
        for i, (p, old) in enumerate(zip(params, before, strict=True)):
            assert p.grad is not None and torch.equal(p.grad, gradient(p, i, step))
            assert p.isfinite().all()
            assert p.numel() == 0 or not torch.equal(p, old)


@every_case
def test_two_runs_agree_bit_for_bit_whatever_the_global_seed(case: Case) -> None:
    torch.manual_seed(1)
    first = run(case)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    assert_same(run(case), first)
    assert torch.equal(torch.get_rng_state(), before)


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
    with torch.autocast("cpu", torch.bfloat16):
        advance(optimizer, params, range(4))
    assert_same(snapshot(optimizer), run(case))


@every_class
def test_grad_scaler_unscales_and_its_skipped_steps_do_not_count(case: Case) -> None:
    params, twins = weights(), weights()
    scaled, plain = case.make(params), case.make(twins)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=100)
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
def test_a_parameter_without_gradient_gets_no_state_and_does_not_age(case: Case) -> None:
    params, twins = weights(), weights()
    optimizer, alone = case.make(params), case.make(twins[:1])
    rest = case.make(twins[1:])
    for step in range(4):
        for i, (p, q) in enumerate(zip(params, twins, strict=True)):
            p.grad = q.grad = None if i == 0 and step < 2 else gradient(p, i, step)
        optimizer.step()
        rest.step()
        if step >= 2:
            alone.step()
        assert (params[0] in optimizer.state) == (step >= 2)
    assert float(optimizer.state[params[0]]["step"]) == 2
    for p, q in zip(params, twins, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


def test_nothing_happens_without_gradients() -> None:
    for case in CLASSES:
        params = weights()
        optimizer = case.make(params)
        optimizer.step()
        assert not optimizer.state
        assert all(torch.equal(p, q) for p, q in zip(params, weights(), strict=True))


@every_case
def test_the_layout_in_memory_changes_no_result(case: Case) -> None:
    """Channels-last and transposed weights, with gradients in one layout or the other."""
    plain = [p.detach() for p in weights(F64, [(6, 5), (4, 3, 2, 2), (4, 3, 2, 2)])]
    expected = [nn.Parameter(p.clone()) for p in plain]
    optimizer = case.make(expected)
    advance(optimizer, expected, range(4))

    odd = [
        nn.Parameter(plain[0].t().contiguous().t()),
        nn.Parameter(plain[1].contiguous(memory_format=torch.channels_last)),
        nn.Parameter(plain[2].clone()),
    ]
    assert not odd[0].is_contiguous() and not odd[1].is_contiguous()
    other = case.make(odd)
    for step in range(4):
        for i, p in enumerate(odd):
            grad = gradient(p, i, step)
            p.grad = grad.contiguous(memory_format=torch.channels_last) if p.dim() == 4 and step % 2 else grad
        strides = [p.stride() for p in odd]
        other.step()
        assert [p.stride() for p in odd] == strides
    assert_near(snapshot(other), snapshot(optimizer), 1e-9)


@every_case
@pytest.mark.parametrize("dtype", [F16, BF16, F64], ids=str)
def test_weights_of_any_real_dtype_train_and_keep_it(case: Case, dtype: torch.dtype) -> None:
    params = weights(dtype)
    optimizer = case.make(params, lr=0.02)
    start = [p.detach().clone() for p in params]
    advance(optimizer, params, range(5))
    single = weights()
    advance(case.make(single, lr=0.02), single, range(5))
    tolerance = {F16: 4e-3, BF16: 3e-2, F64: 2e-3}[dtype]
    for p, old, q in zip(params, start, single, strict=True):
        assert p.dtype == dtype and p.isfinite().all()
        assert p.numel() == 0 or not torch.equal(p, old)
        torch.testing.assert_close(p.float(), q, rtol=tolerance, atol=tolerance)
    for name, tensor in snapshot(optimizer).items():
        assert name.count(".") < 2 or tensor.dtype in (F32, F64), name


@every_case
def test_each_groups_options_count(case: Case) -> None:
    """Two groups with options of their own equal two optimizers."""
    own: list[dict[str, Any]] = [
        {"lr": 0.03, "weight_decay": 0.0, "eps": 1e-4, "update_every": 1},  # turns go by the neighbours
        {"lr": 0.01, "weight_decay": 0.3, "betas": (0.5, 0.9), "graft": "sgd", "update_every": 1},
    ]
    if "rank" in case.options:
        own[1]["rank"] = 4
    params, twins = weights(), weights()
    together = case.make([{"params": params[:1], **own[0]}, {"params": params[1:], **own[1]}])
    apart = [case.make(twins[:1], **own[0]), case.make(twins[1:], **own[1])]
    for step in range(4):
        for i, (p, q) in enumerate(zip(params, twins, strict=True)):
            p.grad, q.grad = gradient(p, i, step), gradient(q, i, step)
        together.step()
        for optimizer in apart:
            optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(params, twins, strict=True))


@every_case
def test_maximize_equals_minimising_the_negative(case: Case) -> None:
    params = weights()
    optimizer = case.make(params, maximize=True)
    advance(optimizer, params, range(4), scale=-1.0)
    assert_same(snapshot(optimizer), run(case))


@every_case
def test_one_optimizer_per_parameter_equals_one_for_all(case: Case) -> None:
    """Optimizer-in-backward; and weights stacked for a step equal weights alone."""
    if case.options.get("update_every", 1) > 1:
        case = Case(case.name, case.cls, {**case.options, "update_every": 1})  # turns go by the neighbours
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
def test_groups_may_be_empty_and_may_come_later(case: Case) -> None:
    """The two groups of Hugging Face's Trainer, one of them empty, and a layer that is thawed later."""
    params, twins = weights(), weights()
    decayed = {"params": params[:2], "weight_decay": 0.1}
    optimizer = case.make([decayed, {"params": [], "weight_decay": 0.0}])
    advance(optimizer, params[:2], range(2))
    optimizer.add_param_group({"params": params[2:], "lr": 0.01})
    assert optimizer.param_groups[2]["lr"] == 0.01 and optimizer.param_groups[2]["maximize"] is False
    advance(optimizer, params, range(2, 4))

    early = case.make(twins[:2], weight_decay=0.1)
    advance(early, twins[:2], range(4))
    late = case.make(twins[2:], lr=0.01)
    for step in (2, 3):
        for i, p in enumerate(twins):
            p.grad = gradient(p, i, step)
        late.step()
    assert all(torch.equal(p, q) for p, q in zip(params, twins, strict=True))
    assert len(optimizer.report()) == len(params)


@every_class
def test_frameworks_build_it_their_ways(case: Case) -> None:
    """ZeroRedundancyOptimizer calls the class with its defaults, Lightning derives from it."""
    params, twins = weights(), weights()
    first = case.make(params, lr=0.02)
    again = type(first)([{"params": twins}], **first.defaults)
    assert again.param_groups[0]["rank" if "rank" in again.defaults else "lr"] is not None
    derived = type("Lightning" + case.cls.__name__, (case.cls,), {})
    third = weights()
    lightning = derived(third, **{**case.options, "lr": 0.02})
    for optimizer, mine in ((first, params), (again, twins), (lightning, third)):
        advance(optimizer, mine, range(3))
    assert_same(snapshot(again), snapshot(first))
    assert_same(snapshot(lightning), snapshot(first))
    assert "lr: 0.02" in repr(first) and not hasattr(first, "train") and not hasattr(first, "eval")


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

"""The table of optimizers x what torch and its users expect of a step."""

from typing import Any

import pytest
import torch
from torch import nn

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
    generator,
    gradient,
    run,
    snapshot,
    weights,
)

every_case = pytest.mark.parametrize("case", CASES, ids=str)
every_class = pytest.mark.parametrize("case", CLASSES, ids=str)


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
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)


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
        in_few_bits = "int" in str(case.options) and "momentum" in name
        is_counter = tensor.dtype == torch.int64
        assert name.count(".") < 2 or tensor.dtype in (F32, F64) or is_counter or in_few_bits, name


@every_case
def test_dtypes_may_be_mixed_and_gradients_may_share_a_buffer(case: Case) -> None:
    """Weights of one shape and three dtypes; gradients that are views of one flat tensor, or expanded."""
    dtypes = (F64, BF16, F32, F64)
    params = [weights(dtype, [(6, 5)])[0] for dtype in dtypes]
    twins = [weights(dtype, [(6, 5)])[0] for dtype in dtypes]
    together, alone = case.make(params), [case.make([q]) for q in twins]
    for step in range(3):
        flat = torch.randn(60, generator=generator(step), dtype=F64)
        grads = [flat[:30].view(6, 5), gradient(params[1], 1, step), gradient(params[2], 2, step)]
        grads.append(flat[30:35].expand(6, 5))
        for p, q, grad in zip(params, twins, grads, strict=True):
            p.grad, q.grad = grad, grad.clone()
        together.step()
        for optimizer in alone:
            optimizer.step()
        assert torch.equal(grads[0].flatten(), flat[:30]), "gradients are left alone"
    for p, q in zip(params, twins, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-9, atol=1e-9)


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

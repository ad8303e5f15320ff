"""Ranks under a budget: bytes, checkpoints, certificates, and mistakes."""

import copy
import io
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from optimizers import F32, F64, advance, assert_same, snapshot, tensors
from torch import Tensor
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

import sketchy
from checks import assert_psd_leq
from sketchy import SketchyShampoo, SketchySOAP
from sketchy.core.arguments import parse_bytes
from sketchy.optim import SMALL, budget
from sketchy.optim.menus import KINDS

SHAPES = ((48, 20), (48, 20), (24, 40), (30, 12), (16,), (9, 4))
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    SMALL,
    {"sketch_dtype": "bfloat16"},
    {"block_size": 24},
    {"one_sided": True},
)
Optimizer = SketchyShampoo | SketchySOAP


def weights(dtype: torch.dtype = F32) -> list[torch.nn.Parameter]:
    g = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape, generator=g, dtype=F64).to(dtype)) for shape in SHAPES]


def steep(params: list[torch.nn.Parameter], step: int) -> None:
    """Gradients whose spectra differ: those of the first weights have few directions, then the others."""
    for i, p in enumerate(params):
        g = torch.Generator().manual_seed(100 * step + i)
        grad = torch.randn(p.shape, generator=g, dtype=F64)
        if p.dim() == 2:
            few = (i < 2) == (step < 8)
            index = torch.arange(1, p.shape[0] + 1, dtype=F64).unsqueeze(-1)
            grad = grad * index ** (-2.0 if few else -0.1)
        p.grad = grad.to(p.dtype)


def made(kind: type[Optimizer], size: int | float, **options: Any) -> tuple[Any, list[torch.nn.Parameter]]:
    params = weights()
    given = f"{size}B" if isinstance(size, int) else size
    return kind(params, budget=given, **{"budget_every": 3, "min_rank": 2, **options}), params


def run(optimizer: Any, params: list[torch.nn.Parameter], steps: range) -> None:
    for step in steps:
        steep(params, step)
        optimizer.step()


def state_bytes(optimizer: Any) -> int:
    return sum(x.numel() * x.element_size() for state in optimizer.state.values() for x in state.values())


def ranks(optimizer: Any) -> list[tuple[int | None, ...]]:
    return [row.ranks for row in optimizer.report() if row.path == "sketch"]


def least(kind: type[Optimizer], **options: Any) -> int:
    """The bytes of the state with the smallest ranks."""
    return int(kind(weights(), rank=2, **options).report().bytes)


@settings(max_examples=15)
@given(st.sampled_from((SketchyShampoo, SketchySOAP)), st.sampled_from(OPTIONS), st.floats(1.0, 2.0))
def test_the_state_never_has_more_bytes_than_the_budget(kind, options, share):
    """Also after each single weight of a reallocation."""
    if kind is SketchySOAP and options.get("one_sided") is None:
        options = {**options, "graft": "own"}
    size = int(share * least(kind, **options))
    optimizer, params = made(kind, size, **options)
    seen = []
    usual = budget.converted

    def watched(p: Tensor, *given: Any) -> Any:
        seen.append(state_bytes(optimizer))
        return usual(p, *given)

    budget.converted = watched
    try:
        for step in range(10):
            run(optimizer, params, range(step, step + 1))
            seen.append(state_bytes(optimizer))
    finally:
        budget.converted = usual
    assert max(seen) <= size
    assert optimizer.report().bytes == state_bytes(optimizer)
    assert all(p.isfinite().all() for p in params)


def test_ranks_follow_the_spectra() -> None:
    """Weights get columns when their spectra become flat less quickly than those of others."""
    optimizer, params = made(SketchySOAP, int(1.4 * least(SketchySOAP)))
    run(optimizer, params, range(7))
    early = ranks(optimizer)
    run(optimizer, params, range(7, 40))
    assert ranks(optimizer) != early


def test_floats_are_of_sketches_for_each_sketched_weight() -> None:
    optimizer, params = made(SketchySOAP, 1.5)
    run(optimizer, params, range(7))
    sketched = [p for p in params if p.dim() == 2]
    names = ("basis", "eigenvalues", "escaped_mass", "error_bound", "second_moment", "turn")
    used = sum(
        x.numel() * x.element_size()
        for p in sketched
        for name, x in optimizer.state[p].items()
        if name.endswith(names)
    )
    allowed = 1.5 * 4 * sum(p.numel() for p in sketched)
    assert 0.8 * allowed < used <= allowed


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", (SketchyShampoo, SketchySOAP))
def test_a_run_resumes_to_the_bit_after_a_reallocation(
    kind: type[Optimizer], options: dict[str, Any]
) -> None:
    size = int(1.4 * least(kind, **options))
    optimizer, params = made(kind, size, **options)
    run(optimizer, params, range(8))
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    resumed, others = made(kind, size, **options)
    with torch.no_grad():
        for p, q in zip(others, params, strict=True):
            p.copy_(q)
    resumed.load_state_dict(torch.load(file))
    assert ranks(resumed) == ranks(optimizer)
    for each, own in ((optimizer, params), (resumed, others)):
        run(each, own, range(8, 14))
    assert_same(snapshot(resumed), snapshot(optimizer))


def test_torchs_state_dicts_take_ranks_that_have_changed() -> None:
    def built() -> tuple[torch.nn.Sequential, SketchySOAP]:
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(48, 32), torch.nn.Linear(32, 48))
        return net, SketchySOAP(net.named_parameters(), budget="30kB", budget_every=2, min_rank=2)

    (net, optimizer), (other, fresh) = built(), built()
    for step in range(3):
        for p in net.parameters():
            p.grad = torch.randn(p.shape) / torch.arange(1, len(p) + 1).reshape(-1, *[1] * (p.dim() - 1)) ** 2
        optimizer.step()
        assert step < 2 or ranks(optimizer) != ranks(fresh)
    set_optimizer_state_dict(other, fresh, get_optimizer_state_dict(net, optimizer))
    assert ranks(fresh) == ranks(optimizer)
    assert state_bytes(fresh) == state_bytes(optimizer) <= 30_000


def test_a_copy_goes_on_alike() -> None:
    optimizer, params = made(SketchySOAP, int(1.4 * least(SketchySOAP)))
    run(optimizer, params, range(5))
    twin, others = copy.deepcopy((optimizer, params))
    run(optimizer, params, range(5, 10))
    run(twin, others, range(5, 10))
    assert_same(snapshot(twin), snapshot(optimizer))


def test_loading_into_another_budget_chooses_ranks_anew_and_says_so() -> None:
    base = least(SketchySOAP)
    optimizer, params = made(SketchySOAP, int(1.6 * base))
    run(optimizer, params, range(5))
    smaller, others = made(SketchySOAP, int(1.2 * base))
    with pytest.warns(UserWarning, match="of another budget: ranks of . weights changed; columns: .* cut"):
        smaller.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert state_bytes(smaller) <= 1.2 * base < state_bytes(optimizer)
    run(smaller, others, range(5, 9))
    assert state_bytes(smaller) <= 1.2 * base


def test_a_checkpoint_without_a_budget_gets_one() -> None:
    plain = SketchySOAP(params := weights(), rank=12)
    run(plain, params, range(3))
    size = int(1.2 * least(SketchySOAP))
    optimizer, _ = made(SketchySOAP, size)
    with pytest.warns(UserWarning, match="another budget"):
        optimizer.load_state_dict(plain.state_dict())
    assert state_bytes(optimizer) <= size < state_bytes(plain)


def test_others_make_room_for_a_new_group() -> None:
    size = int(1.5 * least(SketchySOAP))
    params = weights()
    optimizer = SketchySOAP(params[:3], budget=f"{size}B", min_rank=2)
    run(optimizer, params[:3], range(2))
    before = ranks(optimizer)
    optimizer.add_param_group({"params": params[3:]})
    assert sum(map(sum, ranks(optimizer)[:3])) < sum(map(sum, before))
    run(optimizer, params, range(2, 4))
    assert state_bytes(optimizer) <= size


def test_weights_that_were_frozen_are_counted_when_they_step() -> None:
    size = int(1.4 * least(SketchySOAP))
    params = weights()
    for p in params[1:3]:
        p.requires_grad_(False)
    optimizer = SketchySOAP(params, budget=f"{size}B", min_rank=2)
    run(optimizer, [p for p in params if p.requires_grad], range(2))
    for p in params:
        p.requires_grad_(True)
    run(optimizer, params, range(2, 4))
    assert optimizer.report().bytes == state_bytes(optimizer) <= size


def test_a_copy_that_has_not_stepped_starts_alike() -> None:
    optimizer, params = made(SketchySOAP, int(1.4 * least(SketchySOAP)))
    twin, others = copy.deepcopy((optimizer, params))
    run(optimizer, params, range(2))
    run(twin, others, range(2))
    assert_same(snapshot(twin), snapshot(optimizer))


def _covariances(stream: list[list[Tensor]], i: int, beta2: float) -> Iterator[Tensor]:
    for turned in (False, True):
        C = torch.zeros(())
        for grads in stream:
            G = grads[i].mT if turned else grads[i]
            C = beta2 * C + (G @ G.mT).double()
        yield C


def test_certificates_hold_after_reallocations() -> None:
    params = weights(F64)
    size = int(1.3 * least(SketchySOAP))
    optimizer = SketchySOAP(params, budget=f"{2 * size}B", budget_every=2, min_rank=2, whiten=False)
    stream = []
    for step in range(11):
        steep(params, step)
        stream.append([p.grad.clone() for p in params if p.grad is not None])
        optimizer.step()
    for p, known in ((k.parameter, k) for k in optimizer.covariances()):
        i = next(i for i, q in enumerate(params) if q is p)
        left, right = _covariances(stream, i, 0.95)
        C = left if known.axis == "left" else right
        B = known.sketch.factor()[0]
        top = torch.linalg.matrix_norm(C, 2)
        bound = known.sketch.error_bound * torch.eye(len(C), dtype=F64)
        assert_psd_leq(C, B @ B.mT + bound, scale=top, tolerance=1e-10)
        assert_psd_leq(B @ B.mT, C + (bound if known.exact else 0 * bound), scale=top, tolerance=1e-10)


def test_weights_of_one_shape_have_few_ranks() -> None:
    g = torch.Generator().manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(64, 64, generator=g)) for _ in range(24)]
    optimizer = SketchyShampoo(params, budget=0.8, budget_every=2)
    index = torch.arange(1, 65).unsqueeze(-1)
    for _ in range(2):
        for i, p in enumerate(params):
            p.grad = torch.randn(64, 64, generator=g) * index ** (-i / 12)
        optimizer.step()
    assert 1 < len(set(ranks(optimizer))) <= KINDS


def test_every_step_is_of_the_same_state_without_a_budget() -> None:
    """Ranks for left and right may be given, and then stay."""
    optimizer = SketchySOAP(params := weights(), rank=(4, 8))
    advance(optimizer, params, range(3))
    assert ranks(optimizer) == [(4, 8)] * 4 + [(4, 4)]
    assert all(x.shape[-1] == 4 for name, x in tensors(optimizer) if name.endswith("left_eigenvalues"))


MISTAKES = (
    ({"budget": "100B"}, r"is 100 bytes, and with even the smallest ranks .* would have 1,752\. Mom"),
    ({"budget": 0.1, "rank": 6}, "with the given rank the sketches would have"),
    ({"budget": "1 banana"}, "must be a number with a unit"),
    ({"budget": "1MB", "merge_dims": 1}, "has 3 axes with a sketch"),
    ({"budget": -0.1}, "budget=-0.1: must be above 0"),
    ({"rank": (2, 3, 4)}, "has 3 numbers, but a weight has 2 axes"),
)


@pytest.mark.parametrize(("options", "message"), MISTAKES, ids=[message for _, message in MISTAKES])
def test_mistakes_are_refused(options: dict[str, Any], message: str) -> None:
    p = torch.nn.Parameter(torch.zeros(8, 6, 5))
    with pytest.raises(ValueError, match=message):
        SketchyShampoo([p], **options).report()


def test_dense_optimizers_have_no_budget() -> None:
    with pytest.raises(ValueError, match="Shampoo has no such option"):
        sketchy.Shampoo(weights(), budget=0.1)


def test_a_text_is_a_number_of_bytes() -> None:
    sizes = {"1.5GiB": 3 << 29, "300MB": 300_000_000, "64 kib": 65536, "7B": 7}
    assert {text: parse_bytes("budget", text) for text in sizes} == sizes

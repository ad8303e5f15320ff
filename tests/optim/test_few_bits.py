"""State in few bits: momentum in 8 and 4 bits, and both moments of Adam's path in 8 bits."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from optim.few_bits import FORMS, classes, made
from optim.optimizers import BF16, F32, F64, advance, assert_same, gradient, snapshot, weights
from optim.test_precision import COLUMNS, ROWS, cosines, steps, stream
from sketchy import Shampoo, SketchyAdagrad, SketchyShampoo, SketchySOAP
from sketchy.core import quantize
from sketchy.core.axes import fold, unfold
from sketchy.core.tasks import readable, run
from sketchy.core.tuned import sizes
from sketchy.optim import SMALL
from sketchy.optim.stack import Stack

# ---- the rules, compared with plain ones


def rounded(R: Tensor, levels: int, G: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Codes and scales of a matrix, number by number; to the nearest where the gradient G is not zero."""
    m, n = R.shape
    codes, scales = torch.zeros(m, n, dtype=torch.int8), torch.zeros(m, -(-n // 128), dtype=R.dtype)
    for i in range(m):
        for b in range(scales.shape[1]):
            block = R[i, 128 * b : 128 * (b + 1)]
            scales[i, b] = s = block.abs().max()
            for j, x in enumerate(block.tolist()):
                t = levels * x / float(s) if s else 0.0
                if G is not None and G[i, 128 * b + j] != 0:
                    codes[i, 128 * b + j] = round(t)
                else:
                    codes[i, 128 * b + j] = int(t + max(-0.5, min(0.5, 0.1 * t)))
    return codes, scales


def unrounded(codes: Tensor, scales: Tensor, levels: int) -> Tensor:
    return codes * scales.repeat_interleave(128, -1)[:, : codes.shape[1]] / levels


def nibbles(packed: Tensor, n: int) -> Tensor:
    both = torch.cat([packed & 15, packed >> 4], -1)[:, :n].to(torch.int8)
    return torch.where(both > 7, both - 16, both)


@pytest.mark.parametrize("average", [True, False])
def test_eight_bits_are_the_plain_rule(average: bool) -> None:
    p = nn.Parameter(torch.zeros(5, 300, dtype=F64))
    optimizer = SketchyShampoo([p], rank=4, momentum_dtype="int8", moving_average_momentum=average)
    M = torch.zeros_like(p)
    for step in range(6):
        p.grad = gradient(p, 0, step)
        M = 0.9 * M + (0.1 if average else 1.0) * p.grad
        codes, scales = rounded(M.detach(), 127)
        M = unrounded(codes, scales, 127)
        optimizer.step()
        state = optimizer.state[p]
        assert torch.equal(state["momentum"], codes)
        torch.testing.assert_close(state["momentum_scale"], scales)


TWINS: dict[str, tuple[type, tuple[int, ...], dict[str, Any], int]] = {
    "left, since m >= n": (SketchySOAP, (40, 24), {}, 0),
    "right, since m < n": (SketchySOAP, (24, 141), {}, 1),
    "between refreshes": (SketchyShampoo, (40, 24), {"update_every": 3}, 0),
    "stored bases between refreshes": (
        SketchyShampoo,
        (40, 24),
        {"update_every": 3, "sketch_dtype": BF16},
        0,
    ),
    "bases as they are stored": (SketchyShampoo, (24, 40), {"sketch_dtype": BF16}, 1),
    "the other one is not sketched": (SketchyShampoo, (24, 40), {"one_sided": True}, 0),
    "the other one is square": (SketchyShampoo, (20, 4), {}, 0),
    "a convolution": (SketchySOAP, (20, 3, 3, 2), {}, 0),
    "blocks with padding": (SketchyShampoo, (39, 24), {"block_size": 20}, 0),
    "many axes": (SketchyShampoo, (5, 18, 6), {"merge_dims": 1}, 1),
    "merged from the front": (SketchyShampoo, (4, 5, 18), {"merge_dims": 20}, 0),
}


@pytest.mark.parametrize("name", TWINS)
def test_four_bits_are_the_plain_rule_and_a_step_uses_unrounded_momentum(name: str) -> None:
    """M = U C + R with the old basis; then C = bf16(Uᵀ M), R = M - U C with the new one, as it is stored."""
    cls, shape, options, index = TWINS[name]
    p = nn.Parameter(torch.zeros(shape, dtype=F64))
    # before start_step, a step of this rule is the momentum itself
    fixed = {"rank": 4, "graft": "sgd", "start_step": 100, "nesterov": False, "lr": 1.0, "weight_decay": 0.0}
    optimizer = cls([p], momentum_dtype="int4", **fixed, **options)
    plan = cls.plan_of(shape, F64, momentum_dtype="int4", **fixed, **options)
    layout, axis, matrix = plan.layout, plan.axes[index], (shape[0], p.numel() // shape[0])
    assert axis is not None

    def times(U: Tensor, C: Tensor) -> Tensor:
        return layout.join(fold(U @ C, index, torch.empty(len(U), *layout.block)))[0]

    M = torch.zeros(shape, dtype=F64)
    for step in range(7):
        p.grad = gradient(p, 0, step)
        if step > 1:
            p.grad[:, 0] = 0.0
        before = p.detach().clone()
        if step == 4:  # a bad gradient changes nothing
            old = snapshot(optimizer)
            p.grad[0] = torch.nan
            optimizer.step()
            now = snapshot(optimizer)
            changed = {key for key in old if not torch.equal(old[key], now[key])}
            # elsewhere the host doesn't know that a step was skipped
            assert changed == ({"0.0.skipped"} if readable(p) else {"0.0.skipped", "0.0.turn"})
            continue
        M = 0.9 * M + 0.1 * p.grad
        optimizer.step()
        state = optimizer.state[p]
        taken = (before - p.detach()) * (1 - 0.9 ** float(state["step"]))
        torch.testing.assert_close(taken, M, rtol=1e-9, atol=1e-9)

        U = plan.statistics.codec.decode(state[f"{axis.name}_basis"])
        C = (U.mT @ unfold(layout.split(M.unsqueeze(0)), index)).bfloat16()
        codes, scales = rounded((M - times(U, C.double())).reshape(matrix), 7, p.grad.reshape(matrix))
        assert torch.equal(state["momentum_coordinates"], C)
        assert torch.equal(nibbles(state["momentum"], matrix[1]), codes)
        torch.testing.assert_close(state["momentum_scale"], scales)
        M = times(U, C.double()) + unrounded(codes, scales, 7).reshape(shape)


def test_where_four_bits_would_not_be_smaller_there_are_eight() -> None:
    def form(cls: Any, shape: tuple[int, ...], **options: Any) -> str:
        slots = cls.plan_of(shape, F32, momentum_dtype="int4", **options).slots
        return "int4" if "momentum_coordinates" in slots else str(slots["momentum"].codec.dtype)

    assert form(SketchySOAP, (40, 24), rank=4) == form(SketchySOAP, (17, 17), rank=4) == "int4"
    assert form(SketchySOAP, (16, 16), rank=4) == "torch.int8"  # 4 columns of 16: no smaller than 8 bits
    assert form(Shampoo, (400, 300)) == "torch.int8"
    assert form(SketchyAdagrad, (400, 300), betas=(0.9, 1.0)) == "torch.int8"
    assert form(SketchySOAP, (70, 65), path="adam") == form(SketchySOAP, (4096,)) == "torch.int8"
    assert form(SketchySOAP, (4095,)) == form(SketchySOAP, ()) == "torch.float32"


def test_codes_lie_as_the_weight_and_scales_follow_its_first_axis_that_is_longer_than_one() -> None:
    for shape, rows, follows in (
        ((2, 2500), 2, (0, None)),
        ((1, 5000), 1, (None, None)),
        ((1, 3, 5000), 3, (1, None)),
        ((20, 30, 9), 20, (0, None)),
        ((5000,), 1, (None, None)),
    ):
        slots = SketchySOAP.plan_of(shape, F32, path="adam", momentum_dtype="int8", adam_dtype="int8").slots
        for name in ("momentum", "root_moment"):
            assert slots[name].shape == shape and slots[name].follows == tuple(range(len(shape)))
            scale = slots[f"{name}_scale"]
            assert scale.shape[0] == rows and scale.follows == follows, shape
    packed = SketchySOAP.plan_of((20, 30, 9), F32, rank=4, momentum_dtype="int4").slots["momentum"]
    assert packed.shape == (20, 135) and packed.follows == (0, None)


def test_roots_of_few_entries_keep_the_dtype_of_the_weight() -> None:
    def stored(count: int, dtype: torch.dtype, adam_dtype: Any) -> torch.dtype:
        return SketchySOAP.plan_of((count,), dtype, adam_dtype=adam_dtype).slots["root_moment"].codec.dtype

    assert stored(4096, F32, "int8") == torch.uint8
    assert stored(4095, F32, "int8") == F32 and stored(4095, F64, "int8") == F64
    assert stored(4096, F32, BF16) == stored(4095, F32, BF16) == BF16


def test_roots_are_dithered_from_the_first_row_on() -> None:
    p = nn.Parameter(torch.zeros(70, 65, dtype=F64))
    p.grad = gradient(p, 0, 0)
    optimizer = SketchySOAP([p], path="adam", adam_dtype="int8", betas=(0.9, 0.99))
    optimizer.step()
    dither = quantize.spread(torch.ones(1), 0, 70, 65).double()
    codes, scale = quantize.encode_roots((1 - 0.99) ** 0.5 * p.grad.abs().unsqueeze(0), dither, F64)
    assert torch.equal(optimizer.state[p]["root_moment"], codes[0])
    torch.testing.assert_close(optimizer.state[p]["root_moment_scale"], scale[0])


# ---- errors and lengths


@pytest.mark.parametrize("form", ["int8", "int4"])
def test_the_report_has_the_error_of_the_stored_momentum(form: str) -> None:
    p = nn.Parameter(torch.zeros(256, 192))
    optimizer = SketchySOAP([p], rank=8, **FORMS[form], betas=(0.9, 0.99))
    assert [row.momentum_error for row in optimizer.report()] == [None]
    M = None
    for step in range(5):
        p.grad = gradient(p, 0, step)
        M = 0.1 * p.grad if M is None else 0.9 * M + 0.1 * p.grad
        optimizer.step()
        plan, state = optimizer._plan(optimizer.param_groups[0], p, None), optimizer.state[p]
        stack = Stack([p], [state], plan, optimizer.param_groups[0], False)
        stored = plan.momentum.read(stack, run(plan.statistics.read(stack)))[0]
        (row,) = optimizer.report()
        true = float((stored - M).norm() / M.norm())
        assert row.momentum_error == pytest.approx(true, rel=0.1)
        M = stored
    assert "rounding" in str(optimizer.report())
    plain, _ = made(SketchySOAP, 1)
    assert "rounding" not in str(plain.report())


def test_preconditioners_damp_against_a_little_more_than_two_roundings_of_normal_numbers() -> None:
    x = torch.randn(64, 1024, generator=torch.Generator().manual_seed(0))
    once = float(quantize.relative_error(x, quantize.encode(x, 127, F32)[1], 127))
    for dtype in ("int8", "int4"):
        plan = SketchySOAP.plan_of((512, 384), F32, momentum_dtype=dtype, rank=8)
        assert 2 * once <= plan.momentum.rounding <= 2.5 * once
    bases = SketchySOAP.plan_of((512, 384), F32, sketch_dtype=BF16).preconditioner
    assert bases.rounding == pytest.approx(torch.finfo(BF16).eps / 12**0.5)


def streams() -> Iterator[tuple[str, tuple[Tensor, ...]]]:
    g = torch.Generator().manual_seed(1)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=F64)

    few, across = randn(ROWS, 3), 10 ** (-4 * torch.rand(1, COLUMNS, generator=g, dtype=F64))
    yield "gaussian", tuple(randn(ROWS, COLUMNS) for _ in range(40))
    yield "low rank", tuple(few @ randn(3, COLUMNS) for _ in range(40))
    yield "columns of many sizes", tuple(across * randn(ROWS, COLUMNS) for _ in range(40))
    yield "falling", tuple(randn(ROWS, COLUMNS) * (1e-3 if i > 20 else 1.0) for i in range(40))
    for power in (1.0, 2.0, 3.0):
        yield f"drifting, steep {power}", stream(power)


@pytest.mark.parametrize("form", ["int8", "int4"])
@classes
def test_steps_are_no_longer_than_with_float32_momentum(cls: Any, form: str) -> None:
    """Without damping against rounding, SketchySOAP's were up to 44 times as long."""
    for name, given in streams():
        short, long = (steps(cls, F32, given, rank=6, **o) for o in (FORMS[form], {}))
        ratio = (short.norm(dim=1) / long.norm(dim=1)).max()
        assert ratio <= 1.6, f"{name}: {ratio:.2f}"
        if name == "gaussian":
            assert cosines(short, long).min() >= (0.999 if form == "int8" else 0.97)


@pytest.mark.parametrize("form", ["int8", "int4"])
def test_momentum_of_dead_columns_vanishes(form: str) -> None:
    """As that of inputs that are always zero. Rounded to the nearest code, it would stay for ever."""
    p = nn.Parameter(torch.zeros(96, 64))
    optimizer = SketchySOAP([p], rank=4, lr=1.0, weight_decay=0.0, **FORMS[form])
    for step in range(120):
        p.grad = gradient(p, 0, step)
        if step > 20:
            p.grad[:, 10] = 0.0
        optimizer.step()
    state = optimizer.state[p]
    codes = state["momentum"] if form == "int8" else nibbles(state["momentum"], 64)
    assert not codes[:, 10].any()
    assert form == "int8" or state["momentum_coordinates"][..., 10].abs().max() < 1e-3


def embedding_steps(steps: int, **options: Any) -> list[Tensor]:
    """Steps for rows with scales of 1e-4 to 1 that are zero in most steps, as those of rare words."""
    rows, columns = 64, 128
    g = torch.Generator().manual_seed(0)
    sizes = 10 ** (-4 * torch.rand(rows, 1, generator=g)) * 10 ** (-torch.rand(rows, columns, generator=g))
    often = torch.rand(rows, 1, generator=g) ** 2
    p = nn.Parameter(torch.zeros(rows, columns))
    optimizer = SketchySOAP([p], lr=1.0, weight_decay=0.0, path="adam", **options)
    taken = []
    for _ in range(steps):
        seen = torch.rand(rows, 1, generator=g) < often
        p.grad = seen * sizes * (0.3 + torch.randn(rows, columns, generator=g))
        before = p.detach().clone()
        optimizer.step()
        taken.append(p.detach() - before)
    return taken


def test_codes_do_not_depend_on_how_rows_are_cut_into_panels(monkeypatch: pytest.MonkeyPatch) -> None:
    states = []
    for panel in (1 << 30, 1 << 11):
        monkeypatch.setattr(sizes, "PANEL_BYTES", panel)
        monkeypatch.setattr(sizes, "MOST_PANELS", 1000)
        params = weights(F32, [(70, 65), (70, 65)])
        optimizer = SketchySOAP(params, path="adam", adam_dtype="int8")
        advance(optimizer, params, range(3))
        states.append(snapshot(optimizer))
    assert_same(*states)


def test_adams_path_in_eight_bits_takes_its_steps_on_embeddings() -> None:
    """Within a factor of 1.3 in length row by row, and no entry far beyond Adam's largest."""
    short, long = embedding_steps(400, adam_dtype="int8"), embedding_steps(400)
    for a, b in zip(short[20:], long[20:], strict=True):
        lengths, wanted = a.norm(dim=1), b.norm(dim=1)
        live = wanted > 1e-3
        assert (lengths[live] <= 1.3 * wanted[live]).all() and (lengths[live] >= wanted[live] / 1.3).all()
        assert a.abs().max() <= 1.5 * b.abs().max()
        assert torch.nn.functional.cosine_similarity(a.flatten(), b.flatten(), 0) >= 0.98


def test_the_small_preset_trains_nearly_as_well_as_float32() -> None:
    g = torch.Generator().manual_seed(0)
    X, W = torch.randn(512, 64, generator=g), torch.randn(64, 64, generator=g)
    Y = torch.tanh(X @ W / 8)

    def loss(**options: Any) -> float:
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))
        optimizer = SketchySOAP(net.named_parameters(), lr=3e-3, rank=8, **options)
        for _ in range(100):
            optimizer.zero_grad()
            error = (net(X) - Y).square().mean()
            error.backward()
            optimizer.step()
        return error.item()

    assert loss(**SMALL) <= 1.15 * loss()

"""Each graft rule compared with its dense formula, and the length that it gives to a step."""

from typing import Any

import pytest
import torch
from torch import Tensor

from cases import F32, F64
from checks import assert_close
from sketchy import SketchyShampoo
from sketchy.core import moments, tasks
from sketchy.core.axes import as_matrix
from sketchy.core.extremes import frobenius
from sketchy.core.moments import like
from sketchy.optim import OPTIONS
from sketchy.optim.parts.grafts import RULES
from sketchy.optim.stack import Stack

BLOCKS = ((4, 3), (5,), (2, 3, 4))
BETA2, EPS = 0.9, 1e-3
EXACT = 1e-12


def stepped(rule: str | None, G: Tensor, beta2: float = BETA2, eps: float = EPS) -> tuple[Any, Stack, Any]:
    """The rule's part after the gradients G (T, S, *block), its stack, and what its last update returned."""
    block = tuple(G.shape[2:])
    options = {"path": "sketch", "graft": rule, "merge_dims": 1, "betas": (0.0, beta2), "eps": eps}
    plan = SketchyShampoo.plan_of(block, G.dtype, **options)
    group = {name: option.default for name, option in OPTIONS.items()} | options
    params = [torch.nn.Parameter(torch.zeros(block, dtype=G.dtype)) for _ in range(G.shape[1])]
    states = [plan.create(p.device) for p in params]
    for g in G:
        for p, own in zip(params, g, strict=True):
            p.grad = own.clone()
        stack = Stack(params, states, plan, group, due=True)
        length = tasks.run(plan.graft.update(stack, tasks.run(stack.gradients())))
        if g is not G[-1]:
            tasks.run(stack.keep())
    return plan.graft, stack, length


def run(rule: str | None, G: Tensor, x: Tensor, beta2: float = BETA2) -> Tensor:
    """The rule's step for x (S, *block) after the gradients G (T, S, *block)."""
    part, stack, lent = stepped(rule, G, beta2)
    ones = torch.ones(len(x), dtype=F64)
    if rule is not None and rule.endswith("_normalized"):
        of_gradient = tasks.run(part._length(stack, G[-1], over=frobenius(as_matrix(G[-1]))))
        assert_close(lent, of_gradient, scale=lent.max(), tolerance=EXACT)
        length = tasks.run(part._length(stack, x, over=frobenius(as_matrix(x))))
    else:
        assert lent is None
        length = tasks.run(part.length(stack, x, ones))
    step = tasks.run(part.step(stack, x, length))
    if length is not None:
        found = as_matrix(step).flatten(1).norm(dim=1).double()
        assert_close(length, found, scale=found.max(), tolerance=1e-5 if x.dtype == F32 else EXACT)
    return step


def rescaled(direction: Tensor, wanted: Tensor) -> Tensor:
    return direction * like(tasks.run(moments.ratio(wanted, direction)), direction)


def unit(x: Tensor) -> Tensor:
    return x / x.norm()


def damped(v: Tensor) -> Tensor:
    return v.sqrt() + EPS * v.sqrt().max()


def average(squares: list[Tensor]) -> Tensor:
    """Adam's bias-corrected second moment."""
    v = torch.zeros_like(squares[0])
    for s in squares:
        v = BETA2 * v + (1 - BETA2) * s
    return v / (1 - BETA2 ** len(squares))


def by_hand(rule: str, G: list[Tensor], x: Tensor) -> Tensor:
    """The step of one block, by a plain formula."""
    match rule:
        case "sgd":
            return x
        case "adagrad":
            return x / damped(sum(g**2 for g in G))
        case "rmsprop":
            return x / damped(average([g**2 for g in G]))
        case "adagrad_normalized":
            return unit(x) / damped(sum(unit(g) ** 2 for g in G))
        case "rmsprop_normalized":
            return unit(x) / damped(average([unit(g) ** 2 for g in G]))
        case "rows" | "own":
            v = average([g.reshape(len(g), -1) ** 2 for g in G]).mean(1)
            return x / damped(v).reshape(-1, *[1] * (x.dim() - 1))
        case "factored":
            v = average([g.reshape(len(g), -1) ** 2 for g in G])
            step = x.reshape(v.shape) / torch.outer(damped(v.sum(1)), damped(v.sum(0) / v.sum()))
            return step.reshape(x.shape)
    raise KeyError(rule)


@pytest.mark.parametrize("block", BLOCKS, ids=str)
@pytest.mark.parametrize("rule", [rule for rule in RULES if rule])
def test_every_rule_equals_its_dense_formula(rule, block, rng):
    """Two blocks of unlike scales, stacked; the rule sees each alone."""
    scales = torch.tensor([1.0, 1e4], dtype=F64).reshape(2, *[1] * len(block))
    G = torch.randn(7, 2, *block, generator=rng, dtype=F64) * scales
    x = torch.randn(2, *block, generator=rng, dtype=F64) * scales
    found = run(rule, G, x)
    for i in range(2):
        expected = by_hand(rule, list(G[:, i]), x[i])
        assert_close(found[i], expected, scale=expected.abs().max(), tolerance=EXACT)


@pytest.mark.parametrize("rule", ["rmsprop", "rmsprop_normalized", "factored", "rows"])
def test_with_beta2_of_one_a_moving_average_becomes_a_sum(rule, rng):
    """Four equal squares add up to four times one, and the step halves."""
    g = torch.randn(1, 4, 3, generator=rng, dtype=F64)
    one, four = (run(rule, g.expand(count, 1, 4, 3), g, beta2=1.0) for count in (1, 4))
    assert_close(four, one / 2, scale=one.abs().max(), tolerance=EXACT)


def test_rmsprop_is_the_step_of_adam(rng):
    G = torch.randn(5, 1, 4, 3, generator=rng, dtype=F64)
    p = torch.nn.Parameter(torch.zeros(4, 3, dtype=F64))
    adam = torch.optim.Adam([p], lr=1.0, betas=(0.0, BETA2), eps=0.0)
    for g in G:
        before = p.detach().clone()
        p.grad = g[0].clone()
        adam.step()
    expected = before - p.detach()
    # the relative damping: at most EPS times the largest root over the smallest
    v = average([g[0] ** 2 for g in G]).sqrt()
    found = run("rmsprop", G, G[-1])[0]
    assert_close(found * (v + EPS * v.max()) / v, expected, scale=1, tolerance=1e-10)


def test_a_step_of_its_own_length_is_lengthened_to_half_the_lent_one_and_others_are_given_it(rng):
    direction = torch.randn(3, 4, 3, generator=rng, dtype=F64)
    length = frobenius(direction)
    own, lent = torch.tensor([1.0, 1.0, 0.0], dtype=F64), torch.tensor([1.9, 2.1, 0.0], dtype=F64)
    for rule, expected in (("own", torch.tensor([1.0, 1.05, 0.0])), ("rows", lent), (None, own / 2)):
        part, stack, _ = stepped(rule, direction.unsqueeze(0))
        found = tasks.run(part.rescale(stack, direction, own, lent * length))
        assert_close(found, 2 * expected, scale=1, tolerance=1e-7)  # graft_scale


@pytest.mark.parametrize("rule", ["adagrad_normalized", "rmsprop_normalized"])
def test_a_normalized_rule_does_not_mind_the_smallest_numbers(rule):
    """The inverse of such a length is beyond float32's range."""
    signs = torch.tensor([[1.0, -1.0, 1.0], [-1.0, 1.0, -1.0]]).unsqueeze(0)
    expected = run(rule, signs.unsqueeze(0), signs)
    for scale in (1e-30, 1e-40, 1e-44):
        found = run(rule, scale * signs.unsqueeze(0), scale * signs)
        assert_close(found, expected, scale=expected.abs().max(), tolerance=0.1 if scale < 1e-42 else 1e-3)


def test_the_factored_rule_keeps_m_plus_n_numbers():
    def shapes(rule: str | None) -> list[tuple[int, ...]]:
        plan = SketchyShampoo.plan_of((6, 5, 4), F32, graft=rule, merge_dims=1)
        return [slot.shape for slot in plan.graft.slots.values()]

    assert shapes("factored") == [(6,), (20,)]
    assert shapes(None) == shapes("sgd") == []


@pytest.mark.parametrize(("shape", "axis"), [((6, 5), 1), ((6, 5, 4), None)])
def test_the_factored_rules_columns_are_an_axis_only_of_a_matrix(shape, axis):
    plan = SketchyShampoo.plan_of(shape, F32, graft="factored", merge_dims=1)
    assert plan.graft.slots["column_moment"].follows == (axis,)


@pytest.mark.parametrize("dtype", [F32, F64])
def test_rescaling_takes_the_direction_of_one_and_the_length_of_the_other(dtype, rng):
    direction, to = (torch.randn(3, 4, 2, generator=rng, dtype=F64).to(dtype) for _ in range(2))
    direction[2] = 0
    result = rescaled(direction, frobenius(to)).double()
    tolerance = 1e-6 if dtype == F32 else EXACT
    for i in range(2):
        assert_close(unit(result[i]), unit(direction[i].double()), scale=1, tolerance=tolerance)
        assert_close(result[i].norm(), to[i].double().norm(), scale=to[i].norm(), tolerance=tolerance)
    assert (result[2] == 0).all()


def test_rescaling_survives_lengths_whose_squares_leave_the_range(rng):
    direction, to = torch.randn(1, 4, 2, generator=rng), torch.randn(1, 4, 2, generator=rng)
    wanted = frobenius(to)
    expected = rescaled(direction, wanted)
    for scale in (1e-30, 1e30):
        assert_close(rescaled(scale * direction, wanted), expected, scale=1, tolerance=1e-5)


@pytest.mark.parametrize("outlier", [1.0, 1e3, 1e6])
def test_one_large_entry_does_not_lengthen_the_factored_step(outlier, rng):
    """Then moments by rows and columns are far too small for all other entries."""
    G = torch.randn(1, 32, 24, generator=rng, dtype=F64)
    G[0, 0, 0] = outlier
    part, stack, _ = stepped("factored", G.unsqueeze(0), beta2=0.99, eps=0.0)
    limit = 4 * (32 * 24) ** 0.5
    length = tasks.run(part.length(stack, G, torch.ones(1, dtype=F64)))
    free = tasks.run(moments.factored_length(G, *tasks.run(part._factors(stack))))
    step = tasks.run(part.step(stack, G, length))
    assert_close(step.flatten(1).norm(dim=1), length, scale=limit, tolerance=1e-12)
    assert length <= limit * (1 + 1e-12)
    assert (free > limit) == (outlier > 1)

"""Cutting a weight into blocks and putting it together again: shapes only, so equalities are exact."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cases import F64
from checks import assert_close
from sketchy.core import sketch
from sketchy.core.axes import Layout, fold, layout, merge, unfold
from sketchy.core.preconditioner import inverse_root, precondition_
from sketchy.core.tasks import run

TOLERANCE = 1e-9


@st.composite
def layouts(draw):
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=4)))
    return layout(
        shape,
        merge_dims=draw(st.none() | st.integers(1, 40)),
        block_size=draw(st.none() | st.integers(1, 9)),
        flat=draw(st.booleans()),
        stacked=draw(st.booleans()),
    )


def numbered(plan: Layout, weights: int = 2) -> torch.Tensor:
    """Weights whose entries are all different and none is zero."""
    count = weights * math.prod(plan.shape)
    return torch.arange(1, count + 1, dtype=F64).reshape(weights, *plan.shape)


@given(layouts(), st.integers(1, 3))
def test_join_undoes_split(plan, weights):
    x = numbered(plan, weights)
    assert torch.equal(plan.join(plan.split(x)), x)


@given(layouts())
def test_blocks_hold_every_entry_once_and_zeros_beside(plan):
    x = numbered(plan)
    blocks = plan.split(x)
    assert blocks.shape == (len(x) * plan.count, *plan.block)
    assert torch.equal(blocks[blocks != 0].sort().values, x.flatten())


@given(layouts())
def test_each_block_is_a_slice_of_the_merged_weight(plan):
    x = numbered(plan)
    merged = x.reshape(-1, *plan.merged)
    blocks = plan.split(x).reshape(len(x), *plan.cuts, *plan.block)
    for place in torch.cartesian_prod(*(torch.arange(c) for c in plan.cuts)).reshape(plan.count, -1).tolist():
        corner = [slice(i * b, (i + 1) * b) for i, b in zip(place, plan.block, strict=True)]
        whole = merged[(slice(None), *corner)]
        block = blocks[(slice(None), *place)]
        assert torch.equal(block[tuple(slice(size) for size in whole.shape)], whole)


@given(layouts(), st.integers(1, 9))
def test_no_block_is_longer_than_asked_no_cut_is_needless_and_padding_is_less_than_a_row_a_cut(
    plan, block_size
):
    plan = layout(plan.shape, merge_dims=None, block_size=block_size)
    for d, b, c in zip(plan.merged, plan.block, plan.cuts, strict=True):
        assert b <= block_size and 0 <= c * b - d < c == max(1, math.ceil(d / block_size))


@given(st.lists(st.integers(1, 9), min_size=0, max_size=5), st.none() | st.integers(1, 80))
def test_merging_keeps_the_entries_and_at_least_two_axes(shape, merge_dims):
    merged = merge(tuple(shape), merge_dims)
    assert math.prod(merged) == math.prod(shape)
    long = [size for size in shape if size != 1]
    assert len(merged) == 1 if len(long) < 2 else len(merged) >= 2
    if merge_dims is not None and len(merged) > 2:
        assert all(size in long or size <= merge_dims for size in merged)


@pytest.mark.parametrize(
    ("shape", "merge_dims", "merged"),
    [
        ((64, 3, 5, 5), None, (64, 75)),
        ((64, 3, 5, 5), 1, (64, 3, 5, 5)),
        ((64, 3, 5, 5), 15, (64, 15, 5)),
        ((64, 3, 5, 5), 25, (64, 15, 5)),
        ((64, 3, 5, 5), 75, (64, 75)),
        ((4, 3, 2), 1000, (4, 6)),
        ((2, 3, 4), 6, (6, 4)),
        ((1, 6, 1, 4), 1, (6, 4)),
        ((6, 1), None, (6,)),
        ((), None, (1,)),
    ],
)
def test_merging_by_hand(shape, merge_dims, merged):
    assert merge(shape, merge_dims) == merged


@pytest.mark.parametrize("block", [(5,), (4, 6), (3, 4, 5), (2, 3, 2, 4)])
def test_unfolding_puts_the_fibres_of_an_axis_in_columns_and_folding_undoes_it(block, rng):
    x = torch.randn(3, *block, generator=rng, dtype=F64)
    for axis in range(len(block)):
        matrix = unfold(x, axis)
        assert matrix.shape[1] == block[axis]
        assert torch.equal(fold(matrix, axis, like=x), x)
        others = [i for i in range(1, x.dim()) if i != axis + 1]
        covariance = torch.stack([torch.tensordot(y, y, ([i - 1 for i in others],) * 2) for y in x])
        assert_close(matrix @ matrix.mT, covariance, scale=covariance.abs().max(), tolerance=1e-14)


def preconditioned(gradients: list[torch.Tensor], rank: int) -> torch.Tensor:
    """The last of some gradients (1, m, n), preconditioned by the sketches of all."""
    sketches = [sketch.empty(d, rank, batch=(1,), dtype=F64) for d in gradients[0].shape[1:]]
    for G in gradients:
        sketches = [sketch.update(s, unfold(G, i)) for i, s in enumerate(sketches)]
    x, factor = run(precondition_(gradients[-1].clone(), [inverse_root(s, 1 / 4, eps=0.0) for s in sketches]))
    return x * factor.reshape(-1, 1, 1)


@given(st.integers(2, 6), st.integers(2, 6), st.integers(2, 8), st.integers(1, 3), st.integers(0, 99))
def test_padding_changes_no_number(m, n, rank, extra, seed):
    """Padding does not change the preconditioned gradient (sketched along both axes)."""
    generator = torch.Generator().manual_seed(seed)
    gradients = list(torch.randn(4, 1, m, n, generator=generator, dtype=F64))
    padding = (0, extra, 0, extra)
    padded = preconditioned([torch.nn.functional.pad(G, padding) for G in gradients], rank)
    expected = torch.nn.functional.pad(preconditioned(gradients, rank), padding)
    assert_close(padded, expected, scale=expected.abs().max(), tolerance=TOLERANCE)


@pytest.mark.parametrize(
    ("shape", "options", "plan"),
    [
        ((4, 3, 5), {}, Layout((4, 3, 5), (12, 5), (3, 5), (4, 1), stacked=True)),
        ((4, 3, 5, 2), {}, Layout((4, 3, 5, 2), (12, 10), (3, 10), (4, 1), stacked=True)),
        ((4, 3, 5, 2), {"merge_dims": 1},
         Layout((4, 3, 5, 2), (12, 5, 2), (3, 5, 2), (4, 1, 1), stacked=True)),
        ((4, 3), {}, Layout((4, 3), (4, 3), (4, 3), (1, 1))),
        ((4, 1, 5), {}, Layout((4, 1, 5), (4, 5), (4, 5), (1, 1))),  # of vectors, as a depthwise convolution
        ((4, 3, 5), {"stacked": False}, Layout((4, 3, 5), (4, 15), (4, 15), (1, 1))),
        ((4, 3, 5), {"flat": True}, Layout((4, 3, 5), (60,), (60,), (1,))),
    ],
)  # fmt: skip
def test_each_matrix_of_a_stack_is_one_block(shape, options, plan):
    """A weight with two axes is no stack, and a flat one is one vector."""
    found = layout(shape, **{"merge_dims": None, "block_size": None, "stacked": True} | options)
    assert found == plan and found.count == math.prod(plan.cuts)
    x = numbered(plan)
    assert torch.equal(plan.split(x), x.reshape(-1, *plan.block)) and torch.equal(plan.join(plan.split(x)), x)


def test_by_default_a_weight_is_neither_flat_nor_a_stack():
    options = {"merge_dims": None, "block_size": 2}
    assert layout((4, 3, 5), **options) == layout((4, 3, 5), **options, flat=False, stacked=False)
    assert not layout((4, 3, 5), **options).stacked


def test_a_value_of_a_weight_holds_for_each_of_its_blocks():
    plan = layout((4, 3), merge_dims=None, block_size=2)
    assert plan.each(torch.tensor([5, 7])).tolist() == [5] * 4 + [7] * 4

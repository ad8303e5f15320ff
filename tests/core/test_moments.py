"""Second moments against their definitions: β₂ v + (1 - β₂) g², entry by entry and factored."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, distributed

from cases import F32, F64
from checks import assert_close
from ranks import cut, on_threads
from sketchy.core import moments, row_norms
from sketchy.core.extremes import energies
from sketchy.core.spread import Spreads, part
from sketchy.core.tasks import run

BETAS = (0.0, 0.9, 0.999, 1.0)
SCALES = (1e-30, 1e-20, 1.0, 1e20, 1e30)  # float32 squares of all but one leave the range
EXACT, SINGLE = 1e-12, 1e-5


def gradients(rng: torch.Generator, count: int = 6) -> torch.Tensor:
    """(count, 2, 4, 3): stacks of two matrices, of unlike scales."""
    G = torch.randn(count, 2, 4, 3, generator=rng, dtype=F64)
    return G * torch.tensor([1.0, 1e-3], dtype=F64).reshape(2, 1, 1)


def second_moment(G: torch.Tensor, beta2: float) -> torch.Tensor:
    """Σ β₂^(T-t) (1 - β₂) G_t², or the plain sum."""
    old, new = (beta2, 1 - beta2) if beta2 < 1 else (1.0, 1.0)
    v = torch.zeros_like(G[0])
    for g in G:
        v = old * v + new * g**2
    return v


@pytest.mark.parametrize("beta2", BETAS)
def test_the_root_is_that_of_the_moving_average_or_sum_of_squares(beta2, rng):
    G = gradients(rng)
    root = torch.zeros_like(G[0])
    for g in G:
        assert moments.observe_root_(root, g, beta2) is root
    assert_close(root, second_moment(G, beta2).sqrt(), scale=root.max(), tolerance=EXACT)


@pytest.mark.parametrize("beta2", BETAS)
def test_a_constant_square_is_read_without_bias(beta2):
    """v / (1 - β₂ᵗ) of a constant is that constant at every t; a sum needs no correction."""
    for t in (1, 2, 7):
        v = second_moment(torch.full((t, 1), 3.0, dtype=F64), beta2)
        filled = moments.correction(torch.tensor([float(t)]), beta2)
        assert_close(v / filled, torch.tensor(9.0 if beta2 < 1 else 9.0 * t), scale=9 * t, tolerance=EXACT)


@pytest.mark.parametrize("eps", [0.0, 1e-7, 0.1])
def test_the_division_is_damped_by_the_largest_root_of_its_own_matrix(eps, rng):
    G = gradients(rng)
    root, filled = second_moment(G, 0.9).sqrt(), torch.tensor([0.3, 0.8], dtype=F64)
    x = torch.randn(2, 4, 3, generator=rng, dtype=F64)
    corrected = root / filled.sqrt().reshape(2, 1, 1)
    expected = x / (corrected + eps * corrected.amax((1, 2), keepdim=True))
    actual = run(moments.divide_by_root(x, root, filled, eps))
    assert_close(actual, expected, scale=expected.abs().max(), tolerance=EXACT)


@pytest.mark.parametrize("eps", [0.0, 1e-7])
def test_what_was_never_seen_gets_no_step(eps):
    root = torch.tensor([[0.0, 0.0], [0.0, 2.0]], dtype=F64)
    x = torch.tensor([[0.0, 0.0], [0.0, 1.0]], dtype=F64)
    step = run(moments.divide_by_root(x, root, torch.ones(2, dtype=F64), eps))
    assert step.flatten().tolist()[:3] == [0.0, 0.0, 0.0]
    assert step[1, 1].item() == pytest.approx(0.5, rel=1e-6)


@pytest.mark.parametrize("scale", SCALES)
def test_scaling_every_gradient_changes_no_step_in_float32(scale, rng):
    G = torch.randn(5, 1, 4, 3, generator=rng)

    def step(c: float) -> torch.Tensor:
        root, rows, columns = torch.zeros(1, 4, 3), torch.zeros(1, 4).double(), torch.zeros(1, 3).double()
        for g in c * G:
            moments.observe_root_(root, g, 0.9)
            r, k = energies(g)
            rows, columns = 0.9 * rows + 0.1 * r, 0.9 * columns + 0.1 * k
        x, filled = c * G[-1], torch.ones(1, dtype=F64)
        a, b = run(moments.factored_inverse_roots(rows, columns, 1e-7))
        return torch.stack([run(moments.divide_by_root(x, root, filled, 1e-7)), (x.double() * a * b).float()])

    assert_close(step(scale), step(1.0), scale=1, tolerance=SINGLE)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("dtype", [F32, F64])
def test_the_energies_of_rows_and_columns_are_sums_of_squares(dtype, scale, rng):
    G = torch.randn(3, 5, 4, generator=rng, dtype=F64) * torch.tensor([1.0, 1e-3, 0.0]).reshape(3, 1, 1)
    G = (scale * G).to(dtype)
    rows, columns = energies(G)
    assert rows.dtype == columns.dtype == F64
    for found, axis in ((rows, 2), (columns, 1)):
        expected = (G.double() ** 2).sum(axis)
        for mine, true in zip(found, expected, strict=True):
            assert_close(mine, true, scale=true.max(), tolerance=SINGLE if dtype == F32 else EXACT)


@pytest.mark.parametrize("number", [1e-30, 1e30])
def test_the_energies_of_a_single_number_are_its_square(number):
    for found in energies(torch.tensor([[number]])):
        assert found.item() == pytest.approx(number**2)


def test_the_factored_moment_has_the_right_sums_and_is_exact_for_rank_one(rng):
    v = torch.rand(2, 4, 3, generator=rng, dtype=F64) + 0.1
    v[1] = torch.outer(v[1, :, 0], v[1, 0])
    rows, columns = v.sum(2), v.sum(1)
    a, b = run(moments.factored_inverse_roots(rows, columns, eps=0.0))
    estimate = (a * b) ** -2
    assert_close(estimate.sum(2), rows, scale=1, tolerance=EXACT)
    assert_close(estimate.sum(1), columns, scale=1, tolerance=EXACT)
    assert_close(estimate[1], v[1], scale=1, tolerance=EXACT)


def test_the_factored_moment_of_nothing_gives_no_step():
    rows = torch.tensor([[0.0, 0.0], [0.0, 4.0]], dtype=F64)
    columns = torch.tensor([[0.0, 0.0, 0.0], [4.0, 0.0, 0.0]], dtype=F64)
    a, b = run(moments.factored_inverse_roots(rows, columns, eps=0.0))
    expected = torch.zeros(2, 2, 3, dtype=F64)
    expected[1, 1, 0] = 0.5
    assert_close(a * b, expected, scale=1, tolerance=EXACT)


@pytest.mark.parametrize("size", [1e-9, 1e9])
def test_normalized_directions_of_any_size_keep_their_length(size, rng):
    D = size * torch.randn(1, 6, 5, generator=rng, dtype=F64)
    X, one = D.clone(), torch.ones(1, dtype=F64)
    X, _, scale, _ = run(row_norms.normalize_rows_(X, one, torch.zeros(1, 6, dtype=F64), 0.9, one))
    assert_close((scale * X).norm() / D.norm(), one, scale=1, tolerance=1e-12)


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e18])
def test_normalized_rows_have_equal_lengths_at_last_and_the_direction_keeps_its_length(scale, rng):
    """With one and the same direction D each row tends to the same norm; zeros stay zeros."""
    D = torch.randn(2, 6, 5, generator=rng, dtype=F64) * torch.logspace(-1, 1, 6, dtype=F64).unsqueeze(-1)
    D[1, 2] = 0
    factor = torch.tensor([scale, 3 * scale], dtype=F64)
    moment, count = torch.zeros(2, 6, dtype=F64), torch.zeros(2)
    for _ in range(3):
        count = count + 1
        X = D.clone()
        X, moment, new, _ = run(row_norms.normalize_rows_(X, factor, moment, 0.9, count))
        found = X * new.reshape(2, 1, 1)
        length = (D * factor.reshape(2, 1, 1)).norm(dim=(1, 2))
        assert_close(found.norm(dim=(1, 2)) / length, torch.ones(2), scale=1, tolerance=1e-12)
        rows = found.norm(dim=2) / length.unsqueeze(1)
        assert (found[1, 2] == 0).all()
        assert_close(rows[0], rows[0].mean().expand(6), scale=rows.max(), tolerance=0.05)


def test_rows_of_a_direction_in_any_memory_layout_are_normalized(rng):
    """Along several axes a direction comes out of products with its axes in another order."""
    D = torch.randn(1, 6, 4, 3, generator=rng, dtype=F64) * torch.logspace(-1, 1, 6, dtype=F64).reshape(
        6, 1, 1
    )
    moved = D.movedim(1, 3).contiguous().movedim(3, 1)
    one, zero = torch.ones(1, dtype=F64), torch.zeros(1, 6, dtype=F64)
    (found, _, scale, _), (expected, _, same, _) = (
        run(row_norms.normalize_rows_(X, one, zero, 0.9, one)) for X in (moved, D.clone())
    )
    assert_close(scale * found, same * expected, scale=1, tolerance=1e-12)


def test_before_its_first_direction_and_for_zeros_nothing_is_normalized(rng):
    D = torch.randn(3, 4, 2, generator=rng, dtype=F64)
    D[2] = 0
    X, count = D.clone(), torch.tensor([0.0, 1.0, 1.0])
    X, moment, scale, energy = run(
        row_norms.normalize_rows_(X, torch.ones(3, dtype=F64), torch.zeros(3, 4, dtype=F64), 0.9, count)
    )
    assert torch.equal(X[0], D[0]) and (moment[0] == 0).all() and scale[0] == 1
    assert not torch.equal(X[1], D[1])
    assert (X[2] == 0).all() and scale[2] == 1 and moment.isfinite().all()
    assert_close(energy, X.square().sum((1, 2)), scale=1, tolerance=1e-14)


def test_the_limit_of_a_factored_step_is_that_of_its_own_matrix():
    """Its root mean square is at most 4, however many matrices are in the stack."""
    for count in (1, 3):
        length = moments.clipped(torch.tensor([1.0, *[1e9] * (count - 1)], dtype=F64), 36)
        assert length.tolist() == [1.0, *[24.0] * (count - 1)]


def test_a_direction_of_zeros_gets_the_factor_zero_and_others_the_wanted_length():
    direction = torch.stack([torch.zeros(2, 3), torch.full((2, 3), 2.0)]).double()
    factor = run(moments.ratio(torch.tensor([5.0, 5.0], dtype=F64), direction))
    assert factor[0] == 0
    assert (factor[1] * direction[1]).norm().item() == pytest.approx(5.0)


FILLED, EPS, DECAY = 0.5, 0.1, 0.9


def by_hand(X: Tensor, R: Tensor) -> dict[str, Tensor]:
    """All steps and lengths for a stack X (S, m, n) and roots R of its second moments, written out."""

    def damped(v: Tensor) -> Tensor:
        return v.sqrt() + EPS * v.sqrt().amax(tuple(range(1, v.dim())), keepdim=True)

    def length(x: Tensor) -> Tensor:
        return x.square().sum((1, 2)).sqrt()

    V, one = R.square() / FILLED, 1.0 + torch.arange(len(X), dtype=F64)
    rows, columns = V.sum(2, keepdim=True), V.sum(1, keepdim=True)
    factored = X / damped(rows) / damped(columns / rows.sum(1, keepdim=True))
    D = X * one.reshape(-1, 1, 1)
    moment = DECAY * R[..., 0] + (1 - DECAY) * D.square().mean(2)
    a = (moment / (1 - DECAY**2)).sqrt()
    normal = D / (a + 1e-3 * a.mean(1, keepdim=True)).unsqueeze(-1)
    return {
        "adam": X / damped(V),
        "its length": length(X / damped(V)),
        "by rows": X / damped(V.mean(2, keepdim=True)),
        "its length by rows": length(X / damped(V.mean(2, keepdim=True))),
        "factored": factored,
        "its factored length": length(factored),
        "normalized": normal * (length(D) / length(normal)).reshape(-1, 1, 1),
        "moment": moment,
        "shortened": one.minimum(0.1 * math.prod(X.shape[1:]) ** 0.5 / length(X)),
        "ratio": one / length(X),
    }


def of_parts(X: Tensor, R: Tensor, own: Callable[..., Tensor], spreads: Spreads) -> dict[str, Tensor]:
    """The same, on a rank that has its ``own`` parts only."""
    x, root, filled = own(X, 0, 1), own(R, 0, 1), torch.full((len(X),), FILLED, dtype=F64)
    rows, columns = own(R.square().sum(2), 0), own(R.square().sum(1), 1)
    one, two = 1.0 + torch.arange(len(X), dtype=F64), torch.full((len(X),), 2.0)
    a = run(moments.row_roots(rows, filled, EPS, math.prod(X.shape[1:]), spreads[0]))
    factors = run(moments.factored_roots(rows, columns, filled, EPS, spreads))
    before = own(R[..., 0], 0)
    direction, moment, scale, _ = run(row_norms.normalize_rows_(x.clone(), one, before, DECAY, two, spreads))
    return {
        "adam": run(moments.divide_by_root(x, root, filled, EPS, spreads=spreads)),
        "its length": run(moments.length_over_root(x, root, filled, EPS, spreads=spreads)),
        "by rows": moments.step_by_rows(x, a),
        "its length by rows": run(moments.length_by_rows(x, a, spreads)),
        "factored": run(moments.factored_step(x, *factors, spreads)),
        "its factored length": run(moments.factored_length(x, *factors, spreads)),
        "normalized": direction * scale.reshape(-1, 1, 1),
        "moment": moment,
        "shortened": run(moments.shortened(one, x, 0.1, spreads)),
        "ratio": run(moments.ratio(one, x, spreads)),
    }


@pytest.mark.cpu_only("its ranks are threads or processes")
@pytest.mark.parametrize(("world", "axes"), [(1, ()), (2, (0,)), (2, (1,)), (4, (0,)), (4, (0, 1))], ids=str)
def test_all_that_moments_give_is_as_written_out_wherever_rows_and_columns_lie(world, axes):
    X, R = torch.randn(2, 2, 3, 5, generator=torch.Generator().manual_seed(0), dtype=F64)
    X[0] /= 20  # the first is not shortened
    R = R.abs()
    expected = by_hand(X, R)

    def check() -> None:
        rank, (m, n) = distributed.get_rank(), X.shape[1:]
        spreads: Spreads = tuple(cut(size) if axis in axes else None for axis, size in enumerate((m, n)))
        if len(axes) == 2:
            across, along = (
                [distributed.new_group(ranks) for ranks in pairs]
                for pairs in (([0, 2], [1, 3]), ([0, 1], [2, 3]))
            )
            spreads = cut(m, across[rank % 2]), cut(n, along[rank // 2])

        def own(x: Tensor, *which: int) -> Tensor:
            for dim, axis in enumerate(which, 1):
                x = part(x, spreads[axis], dim)
            return x

        for name, found in of_parts(X, R, own, spreads).items():
            true = own(expected[name], *range(expected[name].dim() - 1))
            assert found.shape == true.shape, name
            torch.testing.assert_close(found, true, rtol=EXACT, atol=EXACT, msg=name)

    on_threads(world, check)


def test_where_moving_averages_do_not_limit_a_step_its_root_mean_square_is_at_most_four() -> None:
    assert moments.longest(0.9, 0.999) is None and moments.longest(0.9, 1.0) is None
    for betas in ((0.9, 0.75), (0.5, 0.25), (0.9, 0.0)):  # β₁² >= β₂
        assert moments.longest(*betas) == 4.0
        assert moments.longest(*betas, moving_average=False) == pytest.approx(4.0 / (1 - betas[0]))
    assert moments.longest(0.0, 0.0) == 4.0


def test_entries_of_a_step_are_limited_on_both_sides():
    x, root, one = torch.tensor([[[-6.0, 1.0, 6.0]]], dtype=F64), torch.ones(1, 1, 3).double(), torch.ones(1)
    step = run(moments.divide_by_root(x, root, one.double(), 0.0, limit=2 * one))
    assert step.flatten().tolist() == [-2.0, 1.0, 2.0]
    assert moments.cut_(torch.tensor([-torch.inf, 3.0, torch.inf])).square().isfinite().all()


def test_gradients_over_their_lengths_are_those_of_length_one_and_zero_stays_zero():
    x, length = torch.ones(3, 2, 2, dtype=F64), torch.tensor([0.0, 0.5, 8.0], dtype=F64)
    x[0] = 0.0
    expected = torch.tensor([0.0, 2.0, 0.125], dtype=F64).reshape(3, 1, 1).expand(3, 2, 2)
    assert torch.equal(moments.over_length(x, length), expected)
    root = moments.observe_root_(torch.zeros_like(x), x, 1.0, over=length)
    assert torch.equal(root, expected)


def test_a_factored_step_of_zeros_is_zero_and_a_long_one_is_shortened_to_its_limit():
    x, a = torch.ones(2, 3, 4, dtype=F64), torch.ones(2, 3, 1, dtype=F64)
    x[0] = 0.0
    step = run(moments.factored_step(x, a, 1e9 * torch.ones(2, 1, 4, dtype=F64)))
    assert torch.equal(step, 4.0 * x)


def test_a_direction_that_does_not_count_or_has_no_length_leaves_the_moments_of_rows_alone(rng):
    D = torch.randn(2, 4, 3, generator=rng, dtype=F64)
    scale, count = torch.tensor([1.0, 0.0], dtype=F64), torch.tensor([0.0, 1.0])
    for size in (0.0, 1.0):
        before = size * torch.rand(2, 4, generator=rng, dtype=F64)
        X, moment, same, _ = run(row_norms.normalize_rows_(D.clone(), scale, before, 0.9, count))
        assert torch.equal(X[0], D[0]) and same[0] == 1.0 and same[1] == 0.0
        assert torch.equal(moment[0], before[0])
        assert_close(moment[1], 0.9 * before[1], scale=1, tolerance=1e-15)
        assert (moment[1] == 0).all() or size == 1.0

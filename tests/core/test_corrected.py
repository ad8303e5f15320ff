"""Core, edges and rest compared with a dense version: square bases, and a moment for every entry."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cases import F32, F64
from checks import assert_close
from sketchy.core import corrected
from sketchy.core.tasks import gather, run

EXACT = 1e-10
SINGLE = 2e-5  # float32, relative to the whole step
RAISED_ROUNDING = 0.05  # without the threshold for noise: 1 to 1.8


def complete(U: Tensor) -> Tensor:
    """[U, U⊥], a square orthonormal basis."""
    projector = torch.eye(len(U), dtype=F64) - U @ U.T
    return torch.cat([U, torch.linalg.eigh(projector)[1][:, U.shape[1] :]], 1)


@dataclass(frozen=True)
class Twin:
    """Two bases and their dense version, for a stack of one."""

    U: Tensor  # (m, l)
    V: Tensor  # (n, r)

    @property
    def ranks(self) -> tuple[int, int]:
        return self.U.shape[1], self.V.shape[1]

    @property
    def sizes(self) -> tuple[int, int]:
        return len(self.U), len(self.V)

    def coordinates(self, X: Tensor) -> Tensor:
        return complete(self.U).T @ X @ complete(self.V)

    def back(self, Y: Tensor) -> Tensor:
        return complete(self.U) @ Y @ complete(self.V).T

    def multiplicity(self) -> Tensor:
        """How many entries share each of the (l + 1) x (r + 1) moments."""
        a, b = (
            torch.cat([torch.ones(l), torch.tensor([d - l])])
            for l, d in zip(self.ranks, self.sizes, strict=True)
        )
        return torch.outer(a, b).double()

    def pool(self, Y: Tensor) -> Tensor:
        """Entries (m, n) averaged over those that share a moment; 0 where there is none."""
        A, B = self._memberships()
        return A @ Y @ B.T / self.multiplicity().clamp(min=1)

    def spread(self, moments: Tensor) -> Tensor:
        """A moment for every entry."""
        A, B = self._memberships()
        return A.T @ moments @ B

    def _memberships(self) -> list[Tensor]:
        return [_membership(l, d) for l, d in zip(self.ranks, self.sizes, strict=True)]


def _membership(l: int, d: int) -> Tensor:
    """(l + 1, d): which coordinate belongs to which group."""
    A = torch.zeros(l + 1, d, dtype=F64)
    A[torch.arange(d).clamp(max=l), torch.arange(d)] = 1
    return A


@st.composite
def twins(draw):
    sizes = draw(st.integers(1, 8)), draw(st.integers(1, 8))
    ranks = [draw(st.sampled_from((0, d // 2, d)) | st.integers(0, d)) for d in sizes]
    return twin(sizes, ranks, draw(st.integers(0, 10**6)))


def twin(sizes, ranks, seed: int) -> Twin:
    generator = torch.Generator().manual_seed(seed)
    bases = [torch.randn(d, d, generator=generator, dtype=F64) for d in sizes]
    return Twin(*(torch.linalg.qr(A)[0][:, :l] for A, l in zip(bases, ranks, strict=True)))


def random(shape, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def project(X: Tensor, case: Twin) -> corrected.Coordinates:
    return run(corrected.project(X[None], case.U[None], case.V[None]))


@given(twins())
def test_the_parts_are_orthogonal_and_add_up(case):
    """Four matrices, dense: core, left edge, right edge, rest."""
    X = random(case.sizes, 1)
    parts = project(X, case)
    core = case.U @ parts.core[0] @ case.V.T
    left = case.U @ parts.left[0] - core
    right = parts.right[0] @ case.V.T - core
    rest = X - core - left - right
    Y, (l, r) = case.coordinates(X), case.ranks
    rows, columns = torch.arange(case.sizes[0])[:, None] < l, torch.arange(case.sizes[1]) < r
    masks = (rows & columns, rows & ~columns, ~rows & columns, ~rows & ~columns)
    for part, mask in zip((core, left, right, rest), masks, strict=True):
        assert_close(part, case.back(torch.where(mask, Y, 0.0)), scale=X.abs().max(), tolerance=EXACT)
    gram = torch.stack([p.flatten() for p in (core, left, right, rest)])
    gram = gram @ gram.T
    assert_close(gram, gram.diagonal().diag(), scale=gram.max(), tolerance=EXACT)


@given(twins())
def test_squares_are_the_mean_squares_of_the_dense_parts(case):
    X = random(case.sizes, 2)
    found = run(corrected.squares(project(X, case), case.U[None], case.V[None], X.square().sum()[None]))[0]
    assert found.dtype == F64 and (found >= 0).all()
    assert_close(found, case.pool(case.coordinates(X) ** 2), scale=X.square().max(), tolerance=EXACT)
    total = X.square().sum()
    assert_close(corrected.mass(found[None], case.sizes)[0], total, scale=total, tolerance=EXACT)


@given(twins(), st.integers(0, 99))
def test_transport_is_the_dense_one_by_squared_cosines_averaged_over_what_shares_a_moment(case, seed):
    """V' = (O_L ∘ O_L) V (O_R ∘ O_R)ᵀ with O = U_newᵀ U_old; at full rank there is nothing to average."""
    new = twin(case.sizes, case.ranks, seed)
    moments = random([l + 1 for l in case.ranks], 3).square()
    O_L, O_R = complete(new.U).T @ complete(case.U), complete(new.V).T @ complete(case.V)
    expected = new.pool((O_L * O_L) @ case.spread(moments) @ (O_R * O_R).T)
    exists = case.multiplicity() > 0
    bases = ((b.U[None], b.V[None]) for b in (case, new))
    found = torch.where(exists, run(corrected.transport(moments[None], *bases))[0], 0.0)
    assert_close(found, expected, scale=moments.max(), tolerance=EXACT)
    before, after = (corrected.mass(each[None], case.sizes) for each in (moments, found))
    assert_close(after, before, scale=before, tolerance=EXACT)


def applied(*arguments, **options):
    """The result of `corrected.apply_` as one tensor."""
    direction, scale = run(corrected.apply_(*arguments, **options))
    return scale.to(direction).reshape(-1, 1, 1) * direction


@given(twins(), st.sampled_from((0.0, 1e-7, 0.1)))
def test_apply_divides_every_entry_by_the_root_that_it_shares(case, eps):
    X = random(case.sizes, 4)
    moments = random([l + 1 for l in case.ranks], 5).square() + 1e-3
    moments = torch.where(case.multiplicity() > 0, moments, 0.0)
    root = moments.sqrt() + eps * moments.sqrt().max()
    expected = case.back(case.coordinates(X) / case.spread(root))
    found = applied(X[None].clone(), case.U[None], case.V[None], project(X, case), moments[None], eps)
    assert_close(found[0], expected, scale=expected.abs().max(), tolerance=EXACT)


@given(twins(), st.sampled_from((0.01, 0.5)))
def test_against_rounding_roots_are_raised_by_a_share_of_their_root_mean_square(case, rounding):
    """That of all m n entries, of which many share a moment."""
    X = random(case.sizes, 6)
    moments = random([l + 1 for l in case.ranks], 7).square() + 1e-3
    moments = torch.where(case.multiplicity() > 0, moments, 0.0)
    raised = moments.sqrt() + 1e-3 * moments.sqrt().max() + rounding * case.spread(moments).mean().sqrt()
    expected = case.back(case.coordinates(X) / case.spread(raised))
    bases = case.U[None], case.V[None]
    found = applied(X[None].clone(), *bases, project(X, case), moments[None], 1e-3, rounding)
    assert_close(found[0], expected, scale=expected.abs().max(), tolerance=EXACT)


RANKS = [(0, 0), (0, 4), (6, 0), (3, 2), (8, 3), (3, 6), (8, 6)]


@pytest.mark.parametrize("ranks", RANKS, ids=str)
def test_float32_agrees_with_float64(ranks):
    """Also if one basis is square: outside it are only rounding errors, and roots that are as small."""
    case, steps = twin((8, 6), ranks, seed=0), []
    X = random((5, 8, 6), 6)
    for dtype in (F32, F64):
        x, U, V = X.to(dtype), case.U.to(dtype).expand(5, -1, -1), case.V.to(dtype).expand(5, -1, -1)
        parts = run(corrected.project(x, U, V))
        moments = run(corrected.squares(parts, U, V, x.double().square().sum((1, 2))))
        steps.append(applied(x.clone(), U, V, parts, moments, eps=1e-7))
    assert_close(steps[0], steps[1], scale=steps[1].abs().max(), tolerance=SINGLE)


def test_rounding_is_not_raised_to_a_step_in_float32(rng):
    """A gradient of rank 2 has two entries in its own singular basis; the others are rounding."""
    G = torch.randn(40, 2, generator=rng) @ torch.randn(2, 30, generator=rng)
    U, _, Vt = torch.linalg.svd(G, full_matrices=True)
    for l, r in ((40, 30), (12, 30), (12, 12)):
        bases = U[None, :, :l], Vt.T[None, :, :r]
        parts = run(corrected.project(G[None], *bases))
        moments = run(corrected.squares(parts, *bases, G.double().square().sum()[None]))
        step = applied(G[None].clone(), *bases, parts, moments, eps=1e-7)[0]
        expected = U[:, :2] @ Vt[:2]
        assert (step - expected).norm() <= RAISED_ROUNDING * expected.norm()


def test_where_nothing_was_seen_nothing_moves():
    case = twin((4, 3), (2, 2), seed=0)
    X = torch.zeros(4, 3, dtype=F64)
    for eps in (0.0, 1e-7):
        step = applied(
            X[None], case.U[None], case.V[None], project(X, case), torch.zeros(1, 3, 3, dtype=F64), eps
        )
        assert (step == 0).all()


def test_a_stack_equals_its_members(rng):
    cases = [twin((5, 4), (3, 2), seed=s) for s in range(3)]
    U, V = torch.stack([c.U for c in cases]), torch.stack([c.V for c in cases])
    X, moments = torch.randn(3, 5, 4, generator=rng, dtype=F64), torch.rand(3, 4, 3, generator=rng).double()
    together = applied(X.clone(), U, V, run(corrected.project(X, U, V)), moments, 1e-7, 0.1)
    for i, c in enumerate(cases):
        alone = applied(
            X[i][None].clone(), U[i][None], V[i][None], project(X[i], c), moments[i][None], 1e-7, 0.1
        )
        assert_close(together[i], alone[0], scale=alone.abs().max(), tolerance=EXACT)


@pytest.mark.parametrize("size", [1e-38, 1e-30, 1.0, 1e30])
@pytest.mark.parametrize("ranks", RANKS, ids=str)
def test_directions_stay_in_the_range_of_float32_for_roots_of_any_size(ranks, size):
    """After a silence, moments may be much smaller than momentum. Only the scale shows it."""
    case = twin((8, 6), ranks, seed=0)
    X, U, V = random((1, 8, 6), 6).float() * 100, case.U[None].float(), case.V[None].float()
    parts = run(corrected.project(X, U, V))
    squares = run(corrected.squares(parts, U, V, X.double().square().sum((1, 2))))
    plain = applied(X.clone(), U, V, parts, squares, 1e-7)
    direction, scale = run(corrected.apply_(X.clone(), U, V, parts, size**2 * squares, 1e-7))
    assert direction.isfinite().all() and direction.abs().max() < 1e12
    found = direction.double() * scale * size
    assert_close(found, plain.double(), scale=plain.abs().max(), tolerance=SINGLE)


@pytest.mark.parametrize("ranks", [(8, 3), (3, 6)], ids=str)
def test_moments_outside_of_a_square_basis_do_not_count(ranks):
    """There is nothing but rounding errors, which their roots would amplify."""
    case, X = twin((8, 6), ranks, seed=0), random((1, 8, 6), 6)
    found = []
    for outside in (1.0, 1e-26):
        moments = torch.ones(1, ranks[0] + 1, ranks[1] + 1, dtype=F64)
        side = moments[:, -1, :] if ranks[0] == 8 else moments[:, :, -1]
        side.fill_(outside)
        found.append(applied(X.clone(), case.U[None], case.V[None], project(X[0], case), moments, 0.0))
    assert_close(found[0], found[1], scale=1, tolerance=1e-12)


def test_a_root_counts_as_noise_up_to_64_eps_of_the_largest_and_in_full_from_128_on():
    eps = torch.finfo(F64).eps
    roots = torch.tensor([1.0, 63 * eps, 96 * eps, 128 * eps, 300 * eps], dtype=F64)
    eye, X = torch.eye(5, dtype=F64)[None], torch.diag(roots)[None]
    moments = torch.zeros(1, 6, 6, dtype=F64)
    moments[0, :5, :5] = (roots.square()).expand(5, 5)
    found = applied(X, eye, eye, run(corrected.project(X, eye, eye)), moments, 0.0)
    assert_close(found[0].diagonal(), torch.tensor([1.0, 0.0, 0.5, 1.0, 1.0]), scale=1, tolerance=1e-9)
    assert found[0, 1, 1] == 0


def test_the_mass_of_the_rest_is_at_least_its_rounding_error():
    """X = e₁ e₁ᵀ lies in both bases; 16 eps of its mass are spread over 2 x 1 entries outside."""
    X, U, V = (torch.eye(*shape, dtype=F64)[None] for shape in ((4, 3), (4, 2), (3, 2)))
    X[:, 1:] = 0.0
    X *= 3
    found = run(corrected.squares(run(corrected.project(X, U, V)), U, V, X.square().sum((1, 2))))
    expected = torch.zeros(1, 3, 3, dtype=F64)
    expected[0, 0, 0], expected[0, 2, 2] = 9.0, 16 * torch.finfo(F64).eps * 9 / 2
    assert torch.equal(found, expected)


def test_stacks_of_several_sizes_that_run_together_give_what_they_give_alone(rng):
    """They have the same ranks, and other numbers of entries outside."""
    cases = [
        [twin(sizes, (2, 3), seed=s) for s in range(count)] for count, sizes in ((2, (5, 4)), (3, (7, 6)))
    ]
    stacks = [(torch.stack([c.U for c in own]), torch.stack([c.V for c in own])) for own in cases]
    Xs = [torch.randn(len(U), U.shape[1], V.shape[1], generator=rng, dtype=F64) for U, V in stacks]
    new = [(U.roll(1, -2), V.roll(1, -2)) for U, V in stacks]

    def moments(X, old, new):
        found = yield from corrected.squares(
            (yield from corrected.project(X, *old)), *old, X.square().sum((1, 2))
        )
        return (yield from corrected.transport(found, old, new))

    together = run(gather(map(moments, Xs, stacks, new)))
    for found, *one in zip(together, Xs, stacks, new, strict=True):
        assert_close(found, run(moments(*one)), scale=1, tolerance=1e-13)

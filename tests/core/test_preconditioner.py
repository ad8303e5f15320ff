"""Inverse roots against dense powers, and what happens to directions that were never seen."""

import pytest
import torch
from torch import Tensor

from cases import F32, F64, stream
from checks import assert_close
from sketchy import reference
from sketchy.core import dense as whole
from sketchy.core import sketch
from sketchy.core.preconditioner import STALE, InverseRoot, inverse_root, inverse_root_task, precondition_
from sketchy.core.sketch import Sketch
from sketchy.core.tasks import run

DIM = 12
EXPONENTS = (1 / 6, 1 / 4, 1 / 2, 1.0)
EXACT = 1e-9


def sketched(kind: str, rank: int, columns: int = 5, steps: int = 10, solver: str = "exact") -> Sketch:
    """A batch of one, as the optimizers have it."""
    state = sketch.empty(DIM, rank, batch=(1,), dtype=F64)
    for A in stream(kind, DIM, columns, steps):
        A = A.unsqueeze(0)
        state = (
            whole.update(state, A, beta2=0.9)
            if solver == "whole"
            else sketch.update(state, A, beta2=0.9, solver=solver)
        )
    return state


def compensated(state: Sketch) -> Tensor:
    """B Bᵀ + ρ I, dense."""
    U = state.basis[0]
    return (U * state.eigenvalues[0]) @ U.T + state.escaped_mass * torch.eye(DIM, dtype=F64)


def multiplied(x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
    return x * factor.reshape(-1, *[1] * (x.dim() - 1)).to(x)


def applied(root: InverseRoot, x: torch.Tensor) -> torch.Tensor:
    """G̃^(-e) x, and the same from the right."""
    left = multiplied(run(root.apply_(x.clone())), root.scale)
    right = multiplied(run(root.apply_right_(x.mT.clone())), root.scale).mT
    assert_close(
        left, right, scale=left.abs().max().clamp(min=1e-300), tolerance=1e-5 if x.dtype == F32 else EXACT
    )
    return left


@pytest.mark.parametrize("eps", [0.0, 1e-7, 0.1])
@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize(("rank", "solver"), [(4, "exact"), (4, "subspace"), (DIM, "exact"), (DIM, "whole")])
def test_an_inverse_root_is_the_dense_power_of_the_damped_sketch(rank, solver, exponent, eps, rng):
    """(B Bᵀ + ρ I + eps λ_max I)^(-e), with every eigenvalue positive."""
    state = sketched("power", rank, solver=solver)
    S = compensated(state)
    S = S + eps * torch.linalg.eigvalsh(S)[-1] * torch.eye(DIM, dtype=F64)
    x = torch.randn(1, DIM, 3, generator=rng, dtype=F64)
    expected = reference.pseudo_power((S + S.T) / 2, -exponent) @ x
    root = inverse_root(state, exponent, eps)
    assert_close(applied(root, x), expected, scale=expected.abs().max(), tolerance=EXACT)
    assert root.rest == (rank < DIM)


@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize(("rank", "solver"), [(6, "exact"), (6, "subspace"), (DIM, "exact"), (DIM, "whole")])
def test_an_unseen_direction_counts_as_an_average_one_in_the_basis_or_outside(rank, solver, exponent, rng):
    """A stream of rank 3: on the nine directions beside it the root is (tr C / d)^(-e), whatever the rank."""
    state = sketched("power", rank, columns=1, steps=3, solver=solver)
    C = compensated(state)
    lam, Q = torch.linalg.eigh(C)
    assert state.escaped_mass == 0 and (lam[:-3] < 1e-14 * lam[-1]).all()
    x = torch.randn(1, DIM, 2, generator=rng, dtype=F64)
    values = torch.cat([(C.trace() / DIM).expand(DIM - 3), lam[-3:]])
    for eps in (0.0, 1e-7):
        expected = Q * (values + eps * lam[-1]) ** -exponent @ Q.T @ x
        found = applied(inverse_root(state, exponent, eps), x)
        assert_close(found, expected, scale=expected.abs().max(), tolerance=EXACT)


def test_the_root_of_nothing_is_zero():
    for rank in (4, DIM):
        state = sketch.empty(DIM, rank, batch=(1,), dtype=F64)
        for eps in (0.0, 1e-7):
            assert (applied(inverse_root(state, 0.25, eps), torch.ones(1, DIM, 2, dtype=F64)) == 0).all()


@pytest.mark.parametrize("scale", [1e-20, 1e20])
def test_scaling_the_stream_by_c_scales_the_root_by_its_power(scale, rng):
    """(c² S)^(-1/4) = c^(-1/2) S^(-1/4): eps is relative, so that no scale is special."""
    x = torch.randn(1, DIM, 2, generator=rng).float()
    A = torch.stack(stream("power", DIM, 5, 6, dtype=F32))
    plain, scaled = (sketch.empty(DIM, 4, batch=(1,)) for _ in range(2))
    for a in A:
        plain, scaled = sketch.update(plain, a[None]), sketch.update(scaled, scale * a[None])
    expected = applied(inverse_root(plain, 0.25, 1e-7), x) * scale**-0.5
    assert_close(
        applied(inverse_root(scaled, 0.25, 1e-7), x), expected, scale=expected.abs().max(), tolerance=1e-5
    )


@pytest.mark.parametrize("block", [(5,), (4, 6), (3, 4, 5), (2, 3, 2, 4)], ids=str)
def test_preconditioning_multiplies_each_axis_by_its_own_root(block, rng):
    """The Kronecker product of the roots on the flattened block; an axis without one is left alone."""
    states = [sketch.empty(d, d, batch=(1,), dtype=F64) for d in block]
    for _ in range(4):
        states = [
            sketch.update(s, torch.randn(1, s.dim, 3, generator=rng, dtype=F64), beta2=0.9) for s in states
        ]
    x = torch.randn(1, *block, generator=rng, dtype=F64)
    for left_alone in (None, 0, len(block) - 1):
        roots = [None if i == left_alone else inverse_root(s, 0.25, 1e-3) for i, s in enumerate(states)]
        product = torch.ones(1, 1, dtype=F64)
        for root, d in zip(roots, block, strict=True):
            eye = torch.eye(d, dtype=F64)
            product = torch.kron(product, eye if root is None else applied(root, eye.unsqueeze(0))[0])
        expected = (product @ x.flatten()).reshape(x.shape)
        found = multiplied(*run(precondition_(x.clone(), roots)))
        assert_close(found, expected, scale=expected.abs().max(), tolerance=1e-12)


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_a_stale_sketch_lengthens_a_weak_direction_by_the_same_factor_for_every_exponent(exponent):
    """Relative to a direction with the average eigenvalue tr C / d, whatever is weaker in the sketch."""
    lam = torch.tensor([[5.0, 1.0, 1e-6, 0.0]], dtype=F64)
    U, zero = torch.eye(DIM, 4, dtype=F64)[None], torch.zeros(1, dtype=F64)
    eye = torch.eye(DIM, dtype=F64)[None]
    state = Sketch(U, lam, zero, zero)
    found = applied(inverse_root(state, exponent, 0.0, stale=True), eye)[0].diagonal()
    average = (6 / DIM) ** -exponent
    assert_close(found[:2], lam[0, :2] ** -exponent, scale=1, tolerance=1e-6)
    assert found[2].item() == pytest.approx(average * STALE**-0.25)
    for fresh in (inverse_root(state, exponent, 0.0), run(inverse_root_task(state, exponent, 0.0))):
        assert applied(fresh, eye)[0, 2, 2].item() == pytest.approx(1e-6**-exponent)
    assert_close(found[4:], torch.full((DIM - 4,), average, dtype=F64), scale=average, tolerance=1e-6)


@pytest.mark.parametrize("rounding", [0.01, 0.5])
def test_against_rounding_a_share_of_the_average_is_added_to_each_eigenvalue(rounding, rng):
    state = sketched("power", DIM, solver="whole")
    S = compensated(state)
    S = S + rounding * S.trace() / DIM * torch.eye(DIM, dtype=F64)
    x = torch.randn(1, DIM, 3, generator=rng, dtype=F64)
    expected = reference.pseudo_power((S + S.T) / 2, -0.25) @ x
    found = applied(inverse_root(state, 0.25, 0.0, rounding=rounding), x)
    assert_close(found, expected, scale=expected.abs().max(), tolerance=EXACT)


def test_an_eigenvalue_counts_as_never_seen_up_to_1e_14_of_the_largest():
    lam, zero = torch.tensor([[1.0, 1.1e-14, 0.9e-14]], dtype=F64), torch.zeros(1, dtype=F64)
    eye = torch.eye(3, dtype=F64)[None]
    found = applied(inverse_root(Sketch(eye, lam, zero, zero), 0.5, 0.0), eye)[0].diagonal()
    assert found.tolist() == pytest.approx([1.0, 1.1e-14**-0.5, 3**0.5])


def test_the_roots_of_a_stack_are_those_of_its_members(rng):
    """One has seen all directions, one a few, and one none."""
    A = torch.randn(3, DIM, 9, generator=rng, dtype=F64)
    A[1, :, 2:], A[2] = 0.0, 0.0
    state = sketch.update(sketch.empty(DIM, 5, batch=(3,), dtype=F64), A)
    together = inverse_root(state, 0.25, 1e-3, stale=True, rounding=0.01)
    for i in range(3):
        own = Sketch(*(x[i : i + 1] for x in state.tensors.values()))
        alone = inverse_root(own, 0.25, 1e-3, stale=True, rounding=0.01)
        assert_close(together.gain[i : i + 1], alone.gain, scale=1, tolerance=1e-14)
        assert_close(together.scale[i : i + 1], alone.scale, scale=1, tolerance=1e-14)

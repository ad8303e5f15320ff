"""The full covariance equals the definition, and a sketch of full rank."""

import pytest
import torch

from cases import DECAYS, F32, F64, covariance, stream
from checks import assert_close, dense, norm, orthonormality
from sketchy.core import dense as whole
from sketchy.core import sketch
from sketchy.core.sketch import Sketch

STEPS = 50
TOLERANCE = {F32: 5e-6, F64: 1e-13}  # relative to the largest eigenvalue
KINDS = ("power", "drifting", "white", "rank-deficient", "zero", "tiny", "huge")


def run(matrices: list[torch.Tensor], decay: float) -> sketch.Sketch:
    d = len(matrices[0])
    state = sketch.empty(d, d, dtype=matrices[0].dtype)
    for A in matrices:
        state = whole.update(state, A, beta2=decay)
    return state


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_factor_is_the_covariance(kind, decay, dtype):
    matrices = stream(kind, 12, 5, STEPS, dtype=dtype)
    state, C = run(matrices, decay), covariance(matrices, decay)
    assert_close(dense(state), C, scale=norm(C), tolerance=TOLERANCE[dtype])
    assert orthonormality(state.basis) < 20 * torch.finfo(dtype).eps
    assert (state.eigenvalues >= 0).all() and (state.eigenvalues.diff() <= 0).all()
    assert state.escaped_mass == 0


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("kind", ["power", "drifting", "white", "rank-deficient", "tiny", "huge"])
def test_a_sketch_of_full_rank_equals_the_factor(kind, decay):
    """B Bᵀ + ρ I of Alg. 1 at l = d, by the exact solver, at every step."""
    d = 10
    matrices = stream(kind, d, 4, STEPS)
    fd, factor = (sketch.empty(d, d, dtype=F64) for _ in range(2))
    for A in matrices:
        fd = sketch.update(fd, A, beta2=decay, solver="exact")
        factor = whole.update(factor, A, beta2=decay)
        compensated = dense(fd) + fd.escaped_mass * torch.eye(d, dtype=F64)
        C = dense(factor)
        assert_close(compensated, C, scale=norm(C), tolerance=TOLERANCE[F64])


@pytest.mark.parametrize(("d", "k"), [(3, 3), (4, 2000), (16, 64), (40, 5)])
@pytest.mark.parametrize("kind", ["power", "white"])
def test_the_error_bound_holds_at_every_step_in_float32(kind, d, k):
    matrices = stream(kind, d, k, 20, dtype=F32)
    state, C = sketch.empty(d, d), torch.zeros(d, d, dtype=F64)
    for A in matrices:
        state = whole.update(state, A, beta2=0.999)
        C = 0.999 * C + A.double() @ A.double().T
        assert norm(dense(state) - C) <= state.error_bound.item() <= 0.01 * norm(C)


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("dtype", [F32, F64])
def test_directions_that_were_always_empty_have_the_eigenvalue_zero(dtype, decay, rng):
    """`preconditioner.inverse_root` needs this to distinguish unseen directions from weak ones."""
    basis = torch.linalg.qr(torch.randn(40, 6, generator=rng, dtype=F64))[0]
    matrices = [(basis @ A).to(dtype) for A in stream("power", 6, 8, STEPS)]
    state = run(matrices * 10, decay)  # rounding must not add up
    assert (state.eigenvalues[6:] == 0).all() and (state.eigenvalues[:6] > 0).all()


def test_a_batch_equals_its_members(rng):
    A = torch.randn(7, 3, 5, 4, generator=rng, dtype=F64)
    batch = sketch.empty(5, 5, batch=(3,), dtype=F64)
    for step in A:
        batch = whole.update(batch, step, beta2=0.9)
    for i in range(3):
        alone = run(list(A[:, i]), 0.9)
        assert_close(batch.eigenvalues[i], alone.eigenvalues, scale=norm(dense(alone)), tolerance=1e-14)
        assert_close(batch.basis[i].abs(), alone.basis.abs(), scale=1, tolerance=1e-10)


@pytest.mark.parametrize(("d", "k"), [(4, 5), (9, 40)])
def test_the_allowance_for_rounding_has_a_part_that_grows_with_the_length_of_sums(d, k):
    A = torch.zeros(3, d, k, dtype=F64)
    A[:, 0, 0] = 1.0
    allowed = whole.update(sketch.empty(d, d, batch=(3,), dtype=F64), A).error_bound / torch.finfo(F64).eps
    assert allowed.tolist() == pytest.approx([16 + 2 * (d + k) ** 0.5] * 3)


@pytest.mark.parametrize(("dtype", "share"), [(F32, (10 * 2.0**-23) ** 2), (F64, 30 * 2.0**-52)], ids=str)
def test_an_eigenvalue_is_zero_up_to_the_share_that_rounding_errors_have(dtype, share):
    lam = torch.zeros(9, dtype=F64)
    lam[:3] = torch.tensor([1.0, 1.1 * share, 0.9 * share])
    zero = torch.tensor(0.0, dtype=F64)
    state = Sketch(torch.eye(9, dtype=dtype), torch.zeros(9, dtype=F64), zero, zero)
    found = whole.update(state, lam.sqrt().diag().to(dtype)).eigenvalues
    assert found.tolist() == pytest.approx([1.0, 1.1 * share] + [0.0] * 7, rel=1e-3, abs=0)


def test_columns_are_added_up_in_pieces_and_without_decay(monkeypatch, rng):
    monkeypatch.setattr(whole, "COLUMNS_IN_DOUBLE", 3)
    A = torch.randn(2, 5, 10, generator=rng, dtype=F64)
    found = whole.update(whole.update(sketch.empty(5, 5, batch=(2,), dtype=F64), A), A)
    U, C = found.basis, 2 * A @ A.mT
    assert_close(U * found.eigenvalues.unsqueeze(-2) @ U.mT, C, scale=C.abs().max(), tolerance=1e-13)

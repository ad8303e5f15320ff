"""The solver ``sweeps``: no eigenproblem, and a certificate that counts what the sweeps leave."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cases import F32, F64, STREAMS, stream
from checks import assert_close, norm, orthonormality
from sketchy.core import cholesky_qr, dense, sketch
from sketchy.core.tasks import run


def positive(l: int, rng: torch.Generator, *, power: float = 1.0, batch: int = 3) -> torch.Tensor:
    """Matrices (batch, l, l) with the eigenvalues i^-power."""
    Q = torch.linalg.qr(torch.randn(batch, l, l, generator=rng, dtype=F64))[0]
    return (Q * torch.arange(1, l + 1) ** -power) @ Q.mT


def unit(M: torch.Tensor) -> torch.Tensor:
    return torch.eye(M.shape[-1], dtype=M.dtype).expand_as(M)


@pytest.mark.parametrize("power", [0.0, 1.0, 4.0])
def test_sweeps_rotate_a_matrix_and_bound_what_they_leave(power, rng):
    M = positive(8, rng, power=power)
    V, values, apart = cholesky_qr.swept(unit(M), M.clone())
    assert orthonormality(V) < 1e-10
    assert (values.diff(dim=-1) <= 0).all()
    left = M - (V * values.unsqueeze(-2)) @ V.mT
    assert (torch.linalg.matrix_norm(left, 2) <= apart).all()
    assert (apart <= 1.7 * torch.linalg.matrix_norm(left, 2) + 1e-9).all()  # 8^(1/4)
    assert_close(values.sum(-1), M.diagonal(dim1=-2, dim2=-1).sum(-1), scale=1.0, tolerance=1e-10)


def test_many_sweeps_find_the_eigenvalues(rng, monkeypatch):
    monkeypatch.setattr(cholesky_qr, "_SWEEPS", 60)
    M = positive(6, rng, power=2.0)
    _, values, apart = cholesky_qr.swept(unit(M), M.clone())
    assert_close(values, torch.linalg.eigvalsh(M).flip(-1), scale=1.0, tolerance=1e-10)
    assert (apart < 1e-10).all()


def test_what_is_already_diagonal_stays(rng):
    values = torch.tensor([[4.0, 2.0, 1.0, 0.0]], dtype=F64)
    V, found, apart = cholesky_qr.swept(unit(values.diag_embed()), values.diag_embed())
    assert_close(found, values, scale=4.0, tolerance=1e-12)
    assert_close(V.abs(), unit(V), scale=1.0, tolerance=1e-6)
    assert float(apart) < 1e-10


@st.composite
def problems(draw):
    d = draw(st.integers(1, 14))
    seed, dtype = draw(st.integers(0, 10**6)), draw(st.sampled_from([F32, F64]))
    matrices = stream(
        draw(st.sampled_from(STREAMS)), d, draw(st.integers(1, 12)), draw(st.integers(1, 6)), seed=seed
    )
    return (
        [A.to(dtype) for A in matrices],
        draw(st.integers(2, d + 2)),
        draw(st.sampled_from([1.0, 0.95, 0.5])),
    )


@given(problems())
def test_the_certificate_of_sketches_and_whole_covariances_holds(problem):
    matrices, rank, decay = problem
    d, dtype = len(matrices[0]), matrices[0].dtype
    state, whole = sketch.empty(d, rank, dtype=dtype), sketch.empty(d, d, dtype=dtype, batch=(1,))
    C = torch.zeros(d, d, dtype=F64)
    for A in matrices:
        state = sketch.update(state, A, beta2=decay, solver="sweeps")
        whole = run(dense.update_task(whole, A.unsqueeze(0), beta2=decay, sweeps=True))
        C = decay * C + A.double() @ A.double().mT
        for found in (state, whole):
            B = found.factor().double()
            error = norm(C - (B @ B.mT).reshape(d, d))
            assert error <= float(found.error_bound) * (1 + 1e-9)
            assert orthonormality(found.basis) < (1e-5 if dtype == F32 else 1e-8)
            assert (found.eigenvalues.diff(dim=-1) <= 0).all()


def test_on_a_drifting_stream_the_error_is_nearly_that_of_the_eigenproblem(rng):
    d, l = 64, 16
    Q = torch.linalg.qr(torch.randn(d, d, generator=rng, dtype=F64))[0]
    turn = torch.randn(d, d, generator=rng, dtype=F64)
    turn = torch.matrix_exp((turn - turn.mT) * 0.02 / d**0.5)
    states = {solver: sketch.empty(d, l) for solver in ("subspace", "sweeps")}
    errors = dict.fromkeys(states, 0.0)
    C = torch.zeros(d, d, dtype=F64)
    for t in range(60):
        Q = turn @ Q
        A = (Q * torch.arange(1, d + 1) ** -0.5) @ torch.randn(d, 32, generator=rng, dtype=F64)
        C = 0.95 * C + A @ A.mT
        for solver, state in states.items():
            states[solver] = sketch.update(state, A.float(), beta2=0.95, solver=solver)
            B = states[solver].factor().double()
            errors[solver] += norm(C - B @ B.mT) / norm(C) * (t >= 20)
    assert errors["sweeps"] <= 1.4 * errors["subspace"], errors


@pytest.mark.parametrize("c", [2.0**66, 2.0**-66])
def test_extreme_streams_are_certified_like_moderate_ones(c, rng):
    states = [sketch.empty(6, 6, batch=(1,)) for _ in range(2)]
    thin = [sketch.empty(6, 3) for _ in range(2)]
    for _ in range(3):
        A = torch.randn(1, 6, 4, generator=rng)
        for i, scale in enumerate((1.0, c)):
            states[i] = run(dense.update_task(states[i], scale * A, beta2=0.9, sweeps=True))
            thin[i] = sketch.update(thin[i], scale * A[0], beta2=0.9, solver="sweeps")
    for moderate, extreme in (states, thin):
        assert float(moderate.error_bound) > 1e-6 * float(moderate.eigenvalues.max())  # sweeps left something
        for name in ("eigenvalues", "error_bound"):
            one, other = getattr(moderate, name), getattr(extreme, name) / c**2
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-9)


def test_a_rounded_basis_is_orthonormal_again_after_an_update(rng):
    U = torch.linalg.qr(torch.randn(5, 5, generator=rng, dtype=F64))[0]
    U = U + 1e-3 * torch.randn(5, 5, generator=rng, dtype=F64)
    _, Z, _ = dense._rotated(U.unsqueeze(0), positive(5, rng, batch=1))
    assert orthonormality(Z) < 1e-12

"""Bases by products, without reading a value, as on an accelerator."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cases import F32, F64, STREAMS, stream
from checks import assert_close, orthonormality
from sketchy.core import cholesky_qr, sketch
from sketchy.core.spread import WHOLE
from sketchy.core.tasks import run, without_reading

EPS = torch.finfo(F32).eps


def norm(A: torch.Tensor) -> torch.Tensor:
    return torch.linalg.matrix_norm(A.double(), 2)


def columns(kind: str, rng: torch.Generator) -> torch.Tensor:
    """K (3, 40, 6), float32."""
    K = torch.randn(3, 40, 6, generator=rng, dtype=F64)
    match kind:
        case "graded":
            K = K * 0.1 ** torch.arange(6)
        case "dependent":
            K[..., 2] = K[..., 0] + K[..., 1]
        case "nearly dependent":
            K[..., 2] = K[..., 0] + 1e-5 * K[..., 2]
        case "skew":
            K[..., 2] = K[..., 0] + 0.1 * K[..., 2]
        case "with zeros":
            K[1, :, 3], K[2] = 0, 0
    return K.to(F32)


KINDS = ["generic", "graded", "dependent", "nearly dependent", "skew", "with zeros"]


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_columns_become_orthonormal_in_their_order_and_dependent_ones_are_dropped(kind, known, rng):
    """Also below a diagonal matrix."""
    K = columns(kind, rng)
    root = K.norm(dim=-2).mean(-1, keepdim=True) * torch.full((3, 6), 0.5 * known)
    above, below, doubt = run(cholesky_qr.orthonormal_below(K, root))
    Q = torch.cat([above, below], -2).double()
    kept = Q.norm(dim=-2) > 0.5
    assert (norm(Q.mT @ Q - torch.diag_embed(kept.double())) <= 1000 * EPS * doubt**2).all()
    given = torch.cat([root.diag_embed(), K], -2).double()
    R = torch.linalg.lstsq(Q[0], given[0]).solution if kept[0].all() else None
    if R is not None:  # as Gram-Schmidt
        assert_close(R.tril(-1), torch.zeros_like(R), scale=float(R.abs().max()), tolerance=1e-5)
    if known:
        assert kept[:2].all() and (doubt == 1).all()
    elif kind == "with zeros":
        assert not kept[1, 3] and kept[1].sum() == 5 and not kept[2].any()
    else:  # of a dependent column, its rounding errors may be kept
        assert kept.sum(-1).min() >= 5 + (kind != "dependent")


@pytest.mark.parametrize("kind", KINDS)
def test_singular_vectors_have_all_the_mass_of_columns_that_are_not_dropped(kind, rng):
    T = columns(kind, rng)
    whole = T.double() @ T.double().mT
    for find in (cholesky_qr.left_singular_by_eigh, cholesky_qr.left_singular_by_sweeps):
        Z, sigma, doubt, apart = run(find(T, WHOLE))
        lost = whole - (Z.double() * sigma.double().square().unsqueeze(-2)) @ Z.double().mT
        allowed = 200 * EPS * doubt * norm(whole) + (0 if apart is None else apart)
        assert (torch.linalg.eigvalsh(lost)[..., 0] >= -allowed).all()
        if "dependent" not in kind:
            assert (norm(lost) <= allowed).all()
        assert (sigma.diff(dim=-1) <= 0).all()


@pytest.mark.parametrize("d", [6, 7, 40, 90])
def test_random_columns_become_orthonormal_beside_others(d, rng):
    M = torch.linalg.qr(torch.randn(4, d, 6, generator=rng))[0]
    M[..., 3:] = torch.randn(4, d, 3, generator=rng)
    M[0, :, 1] *= 1 + 1e-3
    Q = run(cholesky_qr.orthonormal_by_products(M, WHOLE))
    assert orthonormality(Q) < 30 * EPS
    assert_close(Q[..., :3], M[..., :3], scale=1, tolerance=2e-3)


def test_products_have_all_digits_where_torch_may_use_fewer(monkeypatch, rng):
    """The product with fewer digits is imitated: this processor may not have it."""
    A, B = torch.randn(2, 9, 5, generator=rng), torch.randn(2, 5, 3, generator=rng)
    plain = torch.Tensor.__matmul__
    monkeypatch.setattr(cholesky_qr, "product_eps", lambda x: 2.0**-10)
    monkeypatch.setattr(
        torch.Tensor,
        "__matmul__",
        lambda x, y: plain(x, y) if x.dtype == F64 else plain(x.bfloat16(), y.bfloat16()).float(),
    )
    assert norm((A @ B) - plain(A.double(), B.double())).max() > 1e-3
    assert_close(cholesky_qr.exactly(A, B), plain(A.double(), B.double()), scale=1, tolerance=1e-6)


@st.composite
def problems(draw):
    d = draw(st.integers(2, 40))
    matrices = stream(
        draw(st.sampled_from(STREAMS)),
        d,
        draw(st.integers(1, 30)),
        draw(st.integers(1, 8)),
        seed=draw(st.integers(0, 10**6)),
    )
    rank, decay = draw(st.integers(2, d)), draw(st.sampled_from([1.0, 0.95, 0.5]))
    return [A.to(F32) for A in matrices], rank, decay, draw(st.sampled_from(["subspace", "sweeps"]))


@given(problems())
def test_the_certificate_holds_on_a_device_whose_values_are_not_read(problem):
    matrices, rank, decay, solver = problem
    d = len(matrices[0])
    state, C = sketch.empty(d, rank), torch.zeros(d, d, dtype=F64)
    for A in matrices:
        with without_reading():
            state = sketch.update(state, A, beta2=decay, solver=solver)
        C = decay * C + A.double() @ A.double().mT
        B = state.factor().double()
        error = C - B @ B.mT
        assert norm(error) <= float(state.error_bound) * (1 + 1e-9)
        assert orthonormality(state.basis) < 60 * EPS
        assert (state.eigenvalues.diff(dim=-1) <= 0).all()


@pytest.mark.parametrize("kind", ["power", "steep", "drifting", "white"])
def test_after_some_steps_it_is_the_sketch_of_a_device_whose_values_are_read(kind):
    """And nothing is in doubt."""
    states = [sketch.empty(48, 12) for _ in range(2)]
    for A in stream(kind, 48, 20, 80, dtype=F32):
        states[0] = sketch.update(states[0], A, beta2=0.9, solver="subspace")
        with without_reading():
            states[1] = sketch.update(states[1], A, beta2=0.9, solver="subspace")
    B, other = (state.factor().double() for state in states)
    assert norm(B @ B.mT - other @ other.mT) <= 2e-3 * float(states[0].eigenvalues[0])
    # where the spectrum is steep, bounds are those of rounding errors
    assert float(states[1].error_bound) <= 3 * float(states[0].error_bound)
    *_, doubt = run(
        cholesky_qr.orthonormal_below(A.mT @ states[1].basis, states[1].eigenvalues.sqrt().float())
    )
    assert float(doubt) == 1

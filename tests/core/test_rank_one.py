"""The rank-one FD-update equals the exact solver; many sketches at once; vectors that are not finite."""

import pytest
import torch

from sketchy.core import sketch
from sketchy.core.rank_one import fold_, orthonormal

BATCH, DIM, RANK = 3, 20, 5


def test_each_sketch_of_a_batch_equals_the_exact_one(rng: torch.Generator) -> None:
    basis, eigenvalues = torch.zeros(BATCH, RANK, DIM).double(), torch.zeros(BATCH, RANK).double()
    escaped = torch.zeros(BATCH, 1).double()
    exact = sketch.empty(DIM, RANK, batch=(BATCH,), dtype=torch.float64)
    scale = torch.tensor([[1.0], [0.1], [30.0]]).double()
    for _ in range(60):
        x = torch.randn(BATCH, DIM, generator=rng, dtype=torch.float64) * 0.8 ** torch.arange(DIM)
        folded = fold_(basis, eigenvalues, x, scale)
        basis, eigenvalues, escaped = folded.basis(), folded.eigenvalues, escaped + folded.escaped
        exact = sketch.update(exact, (scale * x).unsqueeze(-1))
        B = basis * eigenvalues.sqrt().unsqueeze(-1)
        torch.testing.assert_close(B.mT @ B, exact.factor() @ exact.factor().mT, rtol=1e-9, atol=1e-10)
        # with the weights of the identity, `combine` gives the vector back
        torch.testing.assert_close(folded.combine(torch.ones_like(eigenvalues)), x, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(escaped.squeeze(-1), exact.escaped_mass, rtol=1e-10, atol=0)
    torch.testing.assert_close(
        basis[:, 1:] @ basis[:, 1:].mT, torch.eye(RANK - 1).double().expand(BATCH, -1, -1)
    )
    assert (eigenvalues[:, 0] == 0).all()


def test_rows_of_the_basis_without_mass_are_zero(rng: torch.Generator) -> None:
    basis, eigenvalues = torch.zeros(1, RANK, DIM).double(), torch.zeros(1, RANK).double()
    for count in (1, 2):
        x = torch.randn(1, DIM, generator=rng, dtype=torch.float64)
        folded = fold_(basis, eigenvalues, x)
        basis, eigenvalues = folded.basis(), folded.eigenvalues
        assert (basis[0, 1 : RANK - count] == 0).all() and (eigenvalues[0, : RANK - count] == 0).all()
        assert (basis[0, RANK - count :].norm(dim=-1) - 1).abs().max() < 1e-14


def test_a_sketch_that_meets_nan_leaves_the_others_alone(rng: torch.Generator) -> None:
    basis, eigenvalues = torch.zeros(BATCH, RANK, DIM).double(), torch.zeros(BATCH, RANK).double()
    for bad in (False, True, False):
        x = torch.randn(BATCH, DIM, generator=rng, dtype=torch.float64)
        if bad:
            x[1] = torch.nan
        folded = fold_(basis, eigenvalues, x)
        basis, eigenvalues = folded.basis(), folded.eigenvalues
    assert eigenvalues[1].isnan().all()
    assert eigenvalues[[0, 2]].isfinite().all() and basis[[0, 2]].isfinite().all()


@pytest.mark.parametrize("scale", [1e100, torch.inf, torch.nan])
def test_a_vector_whose_square_overflows_breaks_only_its_own_sketch(scale: float) -> None:
    """Some entries of v vᵀ are not finite. LAPACK would raise an error, even if no row is all infinite."""
    entries = [-1.5e82, 2e-159, -3.8e-64, 2e-272, 6.7e81, -8e-216, 4.6e44]
    eye, rank = torch.eye(DIM).double(), len(entries)
    basis = torch.stack([eye[:rank].clone()] * 2)
    eigenvalues, x = torch.linspace(0, 1, rank).double().repeat(2, 1), torch.zeros(2, DIM).double()
    x[0, 1], x[1, :rank] = 1.0, torch.tensor(entries, dtype=torch.float64)
    folded = fold_(basis, eigenvalues, x, torch.tensor([[1.0], [scale]], dtype=torch.float64))
    assert folded.eigenvalues[0].isfinite().all() and folded.eigenvectors[0].isfinite().all()
    assert folded.eigenvalues[1].isnan().all() and folded.eigenvectors[1].isnan().all()


def test_a_basis_whose_mass_has_all_been_subtracted_is_zero() -> None:
    basis, eigenvalues = torch.zeros(2, 3, DIM).double(), torch.zeros(2, 3).double()
    for i in range(3):  # the second sketch has one direction more than the others
        x = torch.eye(DIM).double()[[i, i]] * torch.tensor([[1.0], [1.0 if i else 2.0]])
        folded = fold_(basis, eigenvalues, x)
        basis, eigenvalues = folded.basis(), folded.eigenvalues
    assert folded.escaped.flatten().tolist() == [1.0, 1.0]
    assert (eigenvalues[0] == 0).all() and (basis[0] == 0).all()
    assert eigenvalues[1].tolist() == [0.0, 0.0, 3.0] and (basis[1, :2] == 0).all()
    assert basis[1, 2].abs().tolist() == torch.eye(DIM)[0].tolist()


def test_a_vector_is_taken_apart_exactly_even_if_rows_are_only_nearly_orthonormal(
    rng: torch.Generator,
) -> None:
    U = torch.linalg.qr(torch.randn(DIM, RANK, generator=rng, dtype=torch.float64))[0].T
    U = U + 1e-5 * torch.randn(U.shape, generator=rng, dtype=torch.float64)
    x = (U[1:].sum(0) + 1e-3 * U[0]).unsqueeze(0)
    folded = fold_(U.unsqueeze(0).clone(), torch.arange(RANK).double().unsqueeze(0), x)
    found = folded.combine(torch.ones(1, RANK).double())
    torch.testing.assert_close(found, x, rtol=0, atol=1e-13)


def test_a_vector_whose_square_underflows_leaves_the_sketch_as_it_was(rng: torch.Generator) -> None:
    basis, eigenvalues = torch.zeros(BATCH, RANK, DIM).double(), torch.zeros(BATCH, RANK).double()
    scales = (*[1.0] * 10, 1e-100, 1e-155, 1e-158, 1e-162, 1e-207, 1e-300, 5e-324, 0.0)
    for scale in scales:
        x = torch.randn(BATCH, DIM, generator=rng, dtype=torch.float64)
        before = eigenvalues
        folded = fold_(basis, eigenvalues, scale * x)
        basis, eigenvalues = orthonormal(folded.basis()), folded.eigenvalues
        if scale < 1:
            torch.testing.assert_close(eigenvalues, before, rtol=1e-13, atol=0)
        assert folded.combine(torch.ones_like(eigenvalues)).isfinite().all()
        assert (torch.linalg.vector_norm(basis, dim=-1) < 1 + 1e-10).all()


def test_orthonormal_repairs_small_errors_and_keeps_zero_rows(rng: torch.Generator) -> None:
    U = torch.linalg.qr(torch.randn(DIM, RANK, generator=rng, dtype=torch.float64))[0].T.unsqueeze(0)
    U = torch.cat(
        [torch.zeros(1, 1, DIM).double(), U + 1e-6 * torch.randn(U.shape, generator=rng).double()], 1
    )
    fixed = orthonormal(U)
    assert (fixed[:, 0] == 0).all()
    torch.testing.assert_close(fixed[0, 1:] @ fixed[0, 1:].T, torch.eye(RANK).double(), rtol=0, atol=1e-10)


def test_a_vector_almost_in_the_basis_leaves_it_orthonormal_whatever_its_length(rng: torch.Generator) -> None:
    U = torch.linalg.qr(torch.randn(DIM, RANK, generator=rng, dtype=torch.float64))[0].T
    other = torch.randn(DIM, generator=rng, dtype=torch.float64)  # of the same batch, and not in the basis
    for length in (1e-9, 1.0, 1e9):
        basis, eigenvalues = U.repeat(2, 1, 1), length**2 * torch.arange(RANK).double().repeat(2, 1)
        x = length * torch.stack([U[1:].sum(0) + 1e-6 * U[0], other])
        found = fold_(basis, eigenvalues, x).eigenvectors
        eye = torch.eye(RANK).double().repeat(2, 1, 1)
        torch.testing.assert_close(found @ found.mT, eye, rtol=0, atol=1e-13)

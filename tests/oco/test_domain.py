"""Projections by other means: root finding (ball), bounded least squares (box), every face (simplex)."""

import numpy as np
import pytest
import torch
from scipy import optimize
from torch import Tensor

from sketchy.oco.domain import Ball, Box, Domain, Everything, Simplex
from sketchy.oco.norm import Dense, Diagonal, LowRank, Norm

DIM, RANK, ROWS = 8, 3, 4
TOLERANCE = 1e-8
DOMAINS = {"ball": Ball(0.7), "box": Box(-0.5, 0.7), "simplex": Simplex(1.5)}
every_domain = pytest.mark.parametrize("domain", DOMAINS.values(), ids=DOMAINS)


def solve(domain: Domain, y: np.ndarray, S: np.ndarray) -> np.ndarray:
    """The projection by a dense method that shares nothing with ours."""
    if isinstance(domain, Ball):
        lam, V = np.linalg.eigh(S)
        z = V.T @ y
        if np.linalg.norm(y) <= domain.radius:
            return y
        excess = lambda log_mu: np.linalg.norm(lam / (lam + np.exp(log_mu)) * z) - domain.radius  # noqa: E731
        mu = np.exp(optimize.brentq(excess, -60.0, 60.0, xtol=1e-15, rtol=1e-15))
        return V @ (lam / (lam + mu) * z)
    L = np.linalg.cholesky(S).T
    if isinstance(domain, Box):
        ends = (float(domain.low), float(domain.high))
        return optimize.lsq_linear(L, L @ y, ends, method="bvls", tol=1e-15, max_iter=1000).x
    assert isinstance(domain, Simplex)
    best, least = y, np.inf
    for face in range(1, 2 ** len(y)):  # every set of free coordinates: on each, a linear system
        free = np.array([face >> i & 1 for i in range(len(y))], dtype=bool)
        m = free.sum()
        system = np.block([[S[np.ix_(free, free)], np.ones((m, 1))], [np.ones((1, m)), np.zeros((1, 1))]])
        x = np.zeros_like(y)
        x[free] = np.linalg.solve(system, np.append((S @ y)[free], domain.total))[:m]
        if (x >= -1e-12).all() and (x - y) @ S @ (x - y) < least:
            best, least = x, (x - y) @ S @ (x - y)
    return best


def norms(rng: torch.Generator, stiffness: float) -> dict[str, Norm]:
    def random(*shape: int) -> Tensor:
        return torch.randn(ROWS, *shape, generator=rng, dtype=torch.float64)

    outside = 0.1 + random(1).abs()
    low_rank = LowRank(
        torch.linalg.qr(random(DIM, RANK))[0].mT, outside + stiffness * random(RANK).abs(), outside
    )
    A = random(DIM, DIM)
    return {
        "diagonal": Diagonal(0.1 + stiffness * random(DIM).abs()),
        "low rank": low_rank,
        "dense": Dense(A @ A.mT + 0.1 * torch.eye(DIM)),
    }


@every_domain
@pytest.mark.parametrize("kind", ["diagonal", "low rank", "dense"])
@pytest.mark.parametrize("stiffness", [1.0, 1e3])
def test_projection_equals_a_dense_solver(
    domain: Domain, kind: str, stiffness: float, rng: torch.Generator
) -> None:
    for _ in range(5):
        norm = norms(rng, stiffness)[kind]
        y = 2 * torch.randn(ROWS, DIM, generator=rng, dtype=torch.float64)
        x = domain.project(y, norm)
        assert domain.contains(x).all()
        for row, point, S in zip(x, y, norm.dense(DIM), strict=True):
            expected = solve(domain, point.numpy(force=True), S.numpy(force=True))
            np.testing.assert_allclose(row.numpy(force=True), expected, atol=TOLERANCE)


@every_domain
def test_structure_does_not_change_the_projection(domain: Domain, rng: torch.Generator) -> None:
    y = torch.randn(ROWS, DIM, generator=rng, dtype=torch.float64)
    for norm in norms(rng, 10.0).values():
        dense = Dense(norm.dense(DIM))
        torch.testing.assert_close(domain.project(y, norm), domain.project(y, dense), rtol=0, atol=TOLERANCE)
    torch.testing.assert_close(
        domain.project(y, None),
        domain.project(y, Diagonal(torch.full((ROWS, 1), 3.0).double())),
        rtol=0,
        atol=1e-12,
    )


@every_domain
def test_a_point_of_the_domain_stays(domain: Domain, rng: torch.Generator) -> None:
    x = domain.project(torch.randn(ROWS, DIM, generator=rng, dtype=torch.float64), None)
    for norm in norms(rng, 10.0).values():
        torch.testing.assert_close(domain.project(x, norm), x, rtol=0, atol=1e-12)


@every_domain
def test_directions_of_zero_curvature_give_way(domain: Domain, rng: torch.Generator) -> None:
    """S = u uᵀ: the projection is exact along u, and nearly the nearest of all such points."""
    u = torch.nn.functional.normalize(torch.randn(1, 1, DIM, generator=rng, dtype=torch.float64), dim=-1)
    norm = LowRank(u, torch.ones(1, 1).double(), torch.zeros(1, 1).double())
    inside = domain.project(torch.randn(1, DIM, generator=rng, dtype=torch.float64), None)
    y = inside + torch.linalg.qr(torch.cat([u[0].T, torch.randn(DIM, 1, generator=rng).double()], 1))[0][:, 1]
    x = domain.project(y, norm)  # some point of K has the same u-coordinate as y: `inside`
    assert domain.contains(x).all()
    torch.testing.assert_close((u[0] @ x.T), (u[0] @ y.T), rtol=0, atol=1e-7)
    assert torch.linalg.vector_norm(x - y) <= torch.linalg.vector_norm(inside - y) + 1e-7


@every_domain
@pytest.mark.parametrize("outside", [0.0, 5.0])
def test_what_is_said_of_the_outside_of_a_whole_basis_does_not_matter(
    domain: Domain, outside: float, rng: torch.Generator
) -> None:
    U = torch.linalg.qr(torch.randn(ROWS, DIM, DIM, generator=rng, dtype=torch.float64))[0]
    inside = 0.1 + torch.rand(ROWS, DIM, generator=rng, dtype=torch.float64)
    S = U.mT @ (inside.unsqueeze(-1) * U)
    y = 2 * torch.randn(ROWS, DIM, generator=rng, dtype=torch.float64)
    spare = torch.zeros(ROWS, 1, DIM, dtype=torch.float64)  # a row not in use, as in GGT's window
    norm = LowRank(
        torch.cat([U, spare], 1),
        torch.cat([inside, spare[..., 0]], 1),
        torch.full((ROWS, 1), outside, dtype=torch.float64),
    )
    torch.testing.assert_close(domain.project(y, norm), domain.project(y, Dense(S)), rtol=0, atol=TOLERANCE)


@every_domain
def test_a_nan_row_stays_alone(domain: Domain, rng: torch.Generator) -> None:
    y = torch.randn(3, DIM, generator=rng, dtype=torch.float64)
    norm = LowRank(torch.zeros(3, 2, DIM).double(), torch.ones(3, 2).double(), torch.ones(3, 1).double())
    good = domain.project(y, norm)
    y[1] = torch.nan
    x = domain.project(y, norm)
    assert torch.equal(x[[0, 2]], good[[0, 2]]) and x[1].isnan().all()


@every_domain
def test_the_least_of_a_linear_function_is_in_the_domain_and_below_all_others(
    domain: Domain, rng: torch.Generator
) -> None:
    g = torch.randn(DIM, generator=rng, dtype=torch.float64)
    x = domain.least(g)
    assert domain.contains(x.unsqueeze(0)).all()
    others = domain.project(3 * torch.randn(200, DIM, generator=rng, dtype=torch.float64), None)
    assert (others @ g >= x @ g - 1e-12).all()
    spread = torch.cdist(others, others).max()
    assert spread <= domain.diameter(DIM) + 1e-12


def test_mistakes_are_named() -> None:
    for call, message in [
        (lambda: Ball(0.0), "radius=0.0"),
        (lambda: Box(1.0, 1.0), "low must be below high"),
        (lambda: Simplex(-1.0), "total=-1.0"),
        (lambda: Everything().least(torch.ones(2)), "bounded domain"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()

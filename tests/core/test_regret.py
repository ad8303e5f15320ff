"""Bounds against their definitions written out, and their order."""

import math

import pytest
import torch

from sketchy.core import regret
from sketchy.core.bounds import escaped_mass_bound

LAM = torch.tensor([9.0, 4.0, 1.0, 0.25, 0.0], dtype=torch.float64)


def test_thm_3_and_cor_4_are_as_printed() -> None:
    D, d, rank, trace = 3.0, 5, 3, 6.5
    omega = float(escaped_mass_bound(LAM, rank))
    assert float(regret.s_adagrad(LAM, rank, D)) == pytest.approx(
        D * (2**0.5 * trace + d * (omega / 2) ** 0.5)
    )
    expected = D * (2**0.5 * trace + (d * (d - rank) * omega / 2) ** 0.5)
    assert float(regret.s_adagrad_improved(LAM, rank, D)) == pytest.approx(expected)
    assert float(regret.full_adagrad(LAM, D)) == pytest.approx(2**0.5 * D * trace)


@pytest.mark.parametrize("rank", [1, 2, 3, 5])
def test_the_bounds_are_ordered(rank: int) -> None:
    D = 2.0
    full, improved, plain = (
        float(regret.full_adagrad(LAM, D)),
        float(regret.s_adagrad_improved(LAM, rank, D)),
        float(regret.s_adagrad(LAM, rank, D)),
    )
    assert full <= improved <= plain
    if rank == 5:
        assert improved == full


def test_the_rate_of_the_theorem_is_the_best_one_for_full_matrix_adagrad() -> None:
    D = 2.0
    best = float(regret.full_adagrad(LAM, D))
    assert all(
        best <= float(regret.full_adagrad(LAM, D, eta)) + 1e-12 for eta in (0.5, 1.0, D / 2**0.5, 2.0, 4.0)
    )


def test_the_epoch_error_is_the_integral(rng: torch.Generator) -> None:
    """ε = tr(G^(-1/2) S G^(-1/2) A) with S = ∫ exp(-τ√G) A exp(-τ√G) dτ, by quadrature."""
    A, B = (torch.randn(4, 4, generator=rng, dtype=torch.float64) for _ in range(2))
    G, A = A @ A.T + torch.eye(4), B @ B.T
    lam, V = torch.linalg.eigh(G)
    root, inverse = V @ torch.diag(lam.sqrt()) @ V.T, V @ torch.diag(lam.rsqrt()) @ V.T
    tau = torch.linspace(0, 40, 40001, dtype=torch.float64)
    E = torch.matrix_exp(-(tau[1] - tau[0]) * root)
    S, power = torch.zeros_like(A), torch.eye(4, dtype=torch.float64)
    for i in range(len(tau) // 4):
        S += power @ A @ power * (0.5 if i == 0 else 1.0)
        power = power @ E
    S *= tau[1] - tau[0]
    torch.testing.assert_close(root @ S + S @ root, A, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(
        regret.epoch_error(G, A), (inverse @ S @ inverse @ A).trace(), rtol=1e-4, atol=1e-5
    )


def test_the_step_skipping_bound_is_as_printed() -> None:
    G = [
        torch.diag(torch.tensor([1.0, 4.0])),
        torch.diag(torch.tensor([2.0, 4.0])),
        torch.diag(torch.tensor([2.0, 9.0])),
    ]
    G = [g.double() for g in G]
    errors = 1 / 2 + 25 / (4 * 4)  # A² / (2 λ^(3/2)) on a diagonal
    last, first, D, eta = math.sqrt(2) + 3, 3.0, 3.0, 0.5
    expected = D**2 / eta * last + eta / 2 * (2 * last - 2 * first + errors)
    assert float(regret.epoch_adagrad(G, D, eta)) == pytest.approx(expected)


def test_the_step_skipping_bound_of_a_sketch_adds_what_may_escape(rng: torch.Generator) -> None:
    """D²/(2η) √(d (d - l) Ω_l), with Ω_l of what was added to G_0; at l = d nothing escapes."""
    g, D, eta, rank = 0.1 * torch.randn(3, 20, 5, generator=rng, dtype=torch.float64), 3.0, 0.7, 2
    G = [
        torch.eye(5).double(),
        *(torch.eye(5) + torch.cat(list(g[:k])).T @ torch.cat(list(g[:k])) for k in (1, 3)),
    ]
    omega = float(escaped_mass_bound(torch.linalg.eigvalsh(G[-1] - G[0]), rank))
    plain = float(regret.epoch_adagrad(G, D, eta))
    found = float(regret.epoch_adagrad(G, D, eta, rank))
    assert found - plain == pytest.approx(D**2 / (2 * eta) * (5 * 3 * omega) ** 0.5)
    assert float(regret.epoch_adagrad(G, D, eta, 5)) == pytest.approx(plain)


def test_ada_fd_at_the_best_rate_is_the_geometric_mean() -> None:
    rho, D, trace = torch.tensor([1.0, 0.0, 1.0, 1.0]).double(), 2.0, 6.5
    delta = 1 + rho.sum().sqrt()
    eta = D * (rho.sqrt().sum() / (2 * trace)).sqrt()
    assert float(regret.ada_fd(LAM, rho, D, eta, delta)) == pytest.approx(D * math.sqrt(2 * trace * 3))


def test_ada_fd_is_as_written() -> None:
    rho, D, trace, eta = torch.tensor([4.0, 0.0, 1.0, 4.0]).double(), 3.0, 6.5, 0.5
    for delta, factor in ((2.0, 2.0), (8.0, 1.0)):
        expected = eta * factor * trace + D**2 / (2 * eta) * 5
        assert float(regret.ada_fd(LAM, rho, D, eta, delta)) == pytest.approx(expected)


def test_ada_fd_upper_is_as_written() -> None:
    rho, D, trace, eta, delta = torch.tensor([4.0, 0.0, 1.0, 4.0]).double(), 3.0, 6.5, 0.5, 2.0
    expected = eta * 3 / delta * trace + D**2 / (2 * eta) * (delta + trace + 3 * 5)
    assert float(regret.ada_fd_upper(LAM, rho, 3, D, eta, delta)) == pytest.approx(expected)
    none = torch.zeros(4).double()
    assert float(regret.ada_fd_upper(LAM, none, 3, D, eta, delta)) == pytest.approx(
        float(regret.ada_lr(LAM, D, eta, delta))
    )
    assert float(regret.ada_lr(LAM, D, eta, 3.0)) == pytest.approx(D**2 / (2 * eta) * (6.5 + 3) + eta * 6.5)


def test_the_newton_bounds_are_as_written() -> None:
    """Gradients along the axes: 2 e_1, then 4 e_2, then e_3; the covariances are diagonal."""
    G = torch.diag(torch.tensor([2.0, 4.0, 1.0])).double()
    D, eta, delta, sigma = 3.0, 0.5, 2.0, 1.5
    w = [1 / (eta * t**0.5) for t in (1, 2, 3)]
    energy = [w[0] * 4, w[1] * 16, w[2] * 1]  # the eigenvalues, too
    logs = [math.log(1 + e / delta) for e in energy]
    half = D**2 / 2
    son = half * (delta + sum(energy)) + sum(logs) / (2 * w[2])
    assert float(regret.son(G, D, eta, delta)) == pytest.approx(son)
    curved = half * (delta + (w[0] - sigma) * 4) + sum(logs) / (2 * w[2])  # w[1], w[2] < sigma
    assert float(regret.son(G, D, eta, delta, sigma)) == pytest.approx(curved)
    first, second, third = sorted(energy, reverse=True)
    omega = min((first + second + third) / 2, second + third)
    potential = math.log(1 + first / delta) + 2 * omega / delta
    fd_son = half * (delta + sum(energy)) + potential / (2 * w[2])
    assert float(regret.fd_son(G, 2, D, eta, delta)) == pytest.approx(fd_son)

    w = [1 / (eta * t) for t in (1, 2, 3)]
    energy = [w[0] * 4, w[1] * 16, w[2] * 1]
    first, second, third = sorted(energy, reverse=True)
    alpha = delta + min((first + second + third) / 2, second + third) / 2
    potential = math.log((first + alpha) / delta) + 3 * math.log(alpha / delta)
    rfd_son = half * (alpha + sum(energy)) + potential / (2 * w[2])
    assert float(regret.rfd_son(G, 2, D, eta, delta)) == pytest.approx(rfd_son)


@pytest.mark.parametrize(("delta", "factor"), [(4.0, 1 / 4), (0.04, 1.0)])
def test_the_parameter_free_bound_is_as_written(delta: float, factor: float) -> None:
    D, eta, T, rank = 2.0, 0.5, 9, 3
    L = sum(math.log(1 + lam / delta) for lam in LAM.tolist())
    norm = float(regret.s_adagrad_improved(LAM, rank, D, eta)) + D**2 / (2 * eta) * (1 + delta) ** 0.5
    expected = norm + eta / 2 * L + D * factor * math.sqrt(T * L)
    assert float(regret.s_adagrad_parameter_free(LAM, rank, D, T, eta, delta)) == pytest.approx(expected)


def test_the_observed_bound_of_gradient_descent_is_its_closed_form(rng: torch.Generator) -> None:
    """For norms of any scale, and with a round without a step."""
    T, d, eta, D = 12, 3, 0.7, 2.0
    g = torch.randn(T, d, generator=rng, dtype=torch.float64)
    g[4] = 0.0
    rates = eta / torch.arange(1, T + 1).double().sqrt()
    norms = 3 * torch.eye(d).double().expand(T, d, d)
    found = regret.observed(g, rates.unsqueeze(-1) * g, norms, D)
    torch.testing.assert_close(found, regret.ogd(g.norm(dim=-1), D, eta))


def test_the_observed_bound_is_as_written() -> None:
    """½ Σ s_tᵀ H_t s_t + D Σ ‖H_t s_t - g_t‖ + D²/2 Σ λ_max(H_t - H_{t-1})₊, with H_t = c_t S_t."""
    norms = torch.diag_embed(torch.tensor([[1.0, 2.0, 3.0], [4.0, 2.0, 1.0]])).double()
    steps = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 1.0]]).double()
    g = torch.tensor([[2.0, 4.0, 0.0], [4.0, 3.0, 1.0]]).double()  # c = 2 and 1
    expected = ((2 + 4) + (4 + 1)) / 2 + 3 * (0 + 3) + 9 / 2 * (6 + 2)  # H: (2, 4, 6), then (4, 2, 1)
    assert float(regret.observed(g, steps, norms, 3.0)) == pytest.approx(expected)


def test_the_observed_bound_of_a_learner_that_stands_still_is_the_trivial_one(rng: torch.Generator) -> None:
    g = torch.randn(6, 3, generator=rng, dtype=torch.float64)
    found = regret.observed(g, torch.zeros_like(g), torch.eye(3).double().expand(6, 3, 3), 2.0)
    one = regret.observed(g[:1], torch.zeros_like(g[:1]), torch.eye(3).double().expand(1, 3, 3), 2.0)
    assert float(one) == pytest.approx(2 * float(g[0].norm()))
    torch.testing.assert_close(found, 2 * g.norm(dim=-1).sum())


def test_ogd_and_adagrad_by_hand() -> None:
    norms, squares = torch.tensor([1.0, 2.0]).double(), torch.tensor([4.0, 9.0]).double()
    assert float(regret.ogd(norms, 2.0, 0.5)) == pytest.approx(4 * 2**0.5 + 0.25 * (1 + 4 / 2**0.5))
    assert float(regret.ogd(norms, 3.0, 0.5, delta=2.0)) == pytest.approx(9 * 2 + 0.25 * (1 / 3**0.5 + 4 / 2))
    assert float(regret.adagrad(squares, 2.0, 1.0)) == pytest.approx(3 * 5)
    assert float(regret.adagrad(squares, 3.0, 0.5, delta=7.0)) == pytest.approx(9 * (11**0.5 + 4) + 0.5 * 5)
    assert float(regret.adagrad(squares, 3.0)) == pytest.approx(2**0.5 * 3 * 5)  # the best rate
    assert float(regret.full_adagrad(squares[:1], 3.0)) == pytest.approx(2**0.5 * 3 * 2)


def test_the_epoch_error_in_the_eigenbasis_is_as_written_for_each_of_several_matrices() -> None:
    """ε = Σ_ij A_ij² / (√λ_i √λ_j (√λ_i + √λ_j)), with λ below and above one."""
    G = torch.diag_embed(torch.tensor([[0.25, 4.0, 9.0], [0.01, 0.04, 1.0]])).double()
    A = torch.tensor([[1.0, 2.0, 3.0], [2.0, 5.0, 0.0], [3.0, 0.0, 1.0]]).double()
    for roots, found in zip(((0.5, 2.0, 3.0), (0.1, 0.2, 1.0)), regret.epoch_error(G, A), strict=True):
        pairs = [(i, j) for i in range(3) for j in range(3)]
        terms = [A[i, j] ** 2 / (roots[i] * roots[j] * (roots[i] + roots[j])) for i, j in pairs]
        assert float(found) == pytest.approx(float(sum(terms)))
    last, first = 0.25 * torch.eye(2).double(), 0.01 * torch.eye(2).double()
    errors = 2 * 0.24**2 / (2 * 0.1**3)
    expected = 9 / 0.5 * 1.0 + 0.5 / 2 * (2 * 1.0 - 2 * 0.2 + errors)
    assert float(regret.epoch_adagrad([first, last], 3.0, 0.5)) == pytest.approx(expected)

"""The oracle itself against what needs no sketch: full-matrix AdaGrad, Shampoo, plain covariances."""

import torch

from cases import F64, covariance, stream
from checks import assert_close
from sketchy import reference


def test_one_update_by_hand():
    """diag(4, 2, 1) at rank 2: the second eigenvalue leaves, the first keeps 4 - 2."""
    rho, G_bar = reference.fd_update(
        torch.zeros(3, 3, dtype=F64), torch.diag(torch.tensor([4.0, 2.0, 1.0])).double(), 2
    )
    assert_close(rho, torch.tensor(2.0), scale=1, tolerance=1e-14)
    assert_close(G_bar, torch.diag(torch.tensor([2.0, 0.0, 0.0])), scale=1, tolerance=1e-14)


def test_at_full_rank_s_adagrad_is_full_matrix_adagrad(rng):
    player, x, G = (
        reference.SAdagrad.start(torch.zeros(5), rank=5),
        torch.zeros(5, dtype=F64),
        torch.zeros(5, 5, dtype=F64),
    )
    for _ in range(20):
        g = torch.randn(5, generator=rng, dtype=F64)
        G += torch.outer(g, g)
        x = x - 0.1 * reference.pseudo_power(G, -0.5) @ g
        player = player.step(g, lr=0.1)
    assert_close(player.x, x, scale=1, tolerance=1e-9)


def test_s_adagrad_projects_in_the_norm_of_its_preconditioner(rng):
    """On a line K = span(u) the projection has the closed form u (uᵀ S y) / (uᵀ S u)."""
    u = torch.nn.functional.normalize(torch.randn(4, generator=rng, dtype=F64), dim=0)
    player = reference.SAdagrad.start(torch.zeros(4), rank=4)
    for _ in range(6):
        player = player.step(
            torch.randn(4, generator=rng, dtype=F64),
            lr=0.1,
            project=lambda y, S: u * (u @ S @ y) / (u @ S @ u),
        )
    assert_close(player.x, u * (u @ player.x), scale=1, tolerance=1e-12)
    assert player.x.norm() > 0.01


def test_at_full_rank_s_shampoo_is_shampoo(rng):
    player = reference.SShampoo.start(torch.zeros(4, 3), rank=4)
    X, L, R = torch.zeros(4, 3, dtype=F64), torch.zeros(4, 4, dtype=F64), torch.zeros(3, 3, dtype=F64)
    for _ in range(20):
        G = torch.randn(4, 3, generator=rng, dtype=F64)
        L, R = 0.9 * L + G @ G.T, 0.9 * R + G.T @ G
        X = X - 0.1 * reference.pseudo_power(L, -0.25) @ G @ reference.pseudo_power(R, -0.25)
        player = player.step(G, lr=0.1, beta2=0.9)
    assert_close(player.X, X, scale=1, tolerance=1e-8)


def test_epsilon_regularises_s_shampoo():
    G = torch.diag(torch.tensor([1.0, 0.0])).double()
    step = reference.SShampoo.start(torch.zeros(2, 2), rank=2).step(G, lr=1.0, eps=15.0).X
    assert_close(step, -G / 16**0.5, scale=1, tolerance=1e-12)


def test_the_discounted_escaped_mass_makes_the_full_rank_sketch_exact():
    matrices = stream("power", 6, 3, 12)
    sketch = reference.DenseSketch.empty(6, 6)
    for A in matrices:
        sketch = sketch.update(A @ A.T, beta2=0.8)
    assert_close(sketch.compensated(), covariance(matrices, 0.8), scale=1, tolerance=1e-12)

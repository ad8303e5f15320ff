"""The reference compared with methods without sketches: full-matrix AdaGrad, Shampoo, plain covariances."""

import torch

from cases import F64, covariance, stream
from checks import assert_close
from sketchy import reference


def test_one_update_by_hand():
    """diag(4, 2, 1) at rank 2: the second eigenvalue is subtracted, the first becomes 4 - 2."""
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


def test_with_two_axes_tensor_shampoo_is_s_shampoo(rng):
    matrix, tensor = (
        kind.start(torch.zeros(5, 4), rank=3) for kind in (reference.SShampoo, reference.TensorShampoo)
    )
    for _ in range(20):
        G = torch.randn(5, 4, generator=rng, dtype=F64)
        matrix, tensor = matrix.step(G, lr=0.1, beta2=0.9), tensor.step(G, lr=0.1, beta2=0.9)
    assert_close(tensor.X, matrix.X, scale=1, tolerance=1e-13)


def test_at_full_rank_tensor_shampoo_is_a_kronecker_product_on_the_flattened_weight(rng):
    """vec X - lr (C_1 ⊗ C_2 ⊗ C_3)^(-1/6) vec G, C_i the covariance of the fibres along axis i."""
    shape = (3, 2, 4)
    player = reference.TensorShampoo.start(torch.zeros(shape), rank=4)
    C = [torch.zeros(d, d, dtype=F64) for d in shape]
    x = torch.zeros(24, dtype=F64)
    for _ in range(20):
        G = torch.randn(shape, generator=rng, dtype=F64)
        for i, letters in enumerate(("abc,dbc->ad", "abc,adc->bd", "abc,abd->cd")):
            C[i] = 0.9 * C[i] + torch.einsum(letters, G, G)
        x = x - 0.1 * reference.pseudo_power(torch.kron(torch.kron(C[0], C[1]), C[2]), -1 / 6) @ G.flatten()
        player = player.step(G, lr=0.1, beta2=0.9)
    assert_close(player.X.flatten(), x, scale=1, tolerance=1e-10)


def test_an_axis_without_a_sketch_is_left_alone(rng):
    player, X, L = (
        reference.TensorShampoo.start(torch.zeros(3, 4), rank=3, axes=(0,)),
        torch.zeros(3, 4, dtype=F64),
        torch.zeros(3, 3, dtype=F64),
    )
    for _ in range(10):
        G = torch.randn(3, 4, generator=rng, dtype=F64)
        L = L + G @ G.T
        X = X - 0.1 * reference.pseudo_power(L, -0.5) @ G
        player = player.step(G, lr=0.1)
    assert_close(player.X, X, scale=1, tolerance=1e-10)


def test_the_first_step_of_soap_is_the_nearest_orthogonal_matrix(rng):
    """One gradient is diagonal in its own bases, and divided by itself: U Vᵀ of its SVD."""
    G = torch.randn(4, 3, generator=rng, dtype=F64)
    U, _, Vt = torch.linalg.svd(G, full_matrices=False)
    step = -reference.Soap.start(torch.zeros(4, 3)).step(G, lr=1.0).X
    assert_close(step, U @ Vt, scale=1, tolerance=1e-6)


def test_soap_whose_bases_are_the_axes_is_adam(rng):
    """Gradients with one entry in each row and column, at places that never change, keep L and R diagonal."""
    options = {"betas": (0.9, 0.99), "weight_decay": 0.1}
    player, p = reference.Soap.start(torch.ones(4, 4)), torch.nn.Parameter(torch.ones(4, 4, dtype=F64))
    adam = torch.optim.AdamW([p], lr=0.1, eps=1e-30, **options)
    place = torch.eye(4, dtype=F64)[[2, 0, 3, 1]]
    for _ in range(20):
        G = place * torch.randn(4, generator=rng, dtype=F64)
        player = player.step(G, lr=0.1, eps=1e-14, nesterov=False, **options)
        p.grad = G
        adam.step()
    assert_close(player.X, p.detach(), scale=1, tolerance=1e-10)


def test_the_moments_of_soap_keep_their_total_when_bases_turn(rng):
    player = reference.Soap.start(torch.zeros(4, 3))
    total = 0.0
    for _ in range(10):
        G = torch.randn(4, 3, generator=rng, dtype=F64)
        player = player.step(G, lr=0.1, betas=(0.9, 0.8))
        total = 0.8 * total + 0.2 * G.square().sum()
        assert_close(player.V.sum(), total, scale=total, tolerance=1e-12)


def test_factored_soap_has_the_length_of_a_factored_adam_step(rng):
    """After one gradient of rank one the factored moment is exact, and Adam's step is a sign."""
    G = torch.outer(torch.randn(5, generator=rng, dtype=F64), torch.randn(3, generator=rng, dtype=F64))
    step = reference.Soap.start(torch.zeros(5, 3)).step(G, lr=1.0, graft="factored").X
    assert_close(step, -G / G.norm() * 15**0.5, scale=1, tolerance=1e-5)


def test_by_its_own_length_a_step_of_soap_is_at_least_half_as_long_as_adams_by_rows(rng):
    """One gradient of rank one has one direction: a step of length one, where Adam's by rows is √(m n)."""
    G = torch.outer(torch.randn(5, generator=rng, dtype=F64), torch.randn(3, generator=rng, dtype=F64))
    step = reference.Soap.start(torch.zeros(5, 3)).step(G, lr=1.0, graft="own").X
    assert_close(step, -G / G.norm() * 15**0.5 / 2, scale=1, tolerance=1e-5)
    # one of full rank is as long as its orthogonal factor, √3 here, which is more than half of 3
    G = torch.randn(3, 3, generator=rng, dtype=F64)
    U, _, Vt = torch.linalg.svd(G)
    step = reference.Soap.start(torch.zeros(3, 3)).step(G, lr=1.0, graft="own").X
    assert_close(step, -U @ Vt, scale=1, tolerance=1e-5)

"""Dense SOAP of the quality benchmark is correct, and is not at a disadvantage."""

from typing import Any

import pytest
import torch
from benchmarks.registry.dense_soap import SOAP, eigenbasis
from torch import Tensor
from torch.optim import AdamW, Optimizer

from checks import assert_close


def walk(kind: type[Optimizer], gradients: list[Tensor], **options: Any) -> Tensor:
    """A weight after these gradients. It starts with ones (or, without weight decay, with zeros)."""
    decay = options.setdefault("weight_decay", 0.0)
    weight = torch.full_like(gradients[0], 1.0 if decay else 0.0, requires_grad=True)
    optimizer = kind([weight], lr=0.1, **options)
    for gradient in gradients:
        weight.grad = gradient
        optimizer.step()
    return weight.detach()


def stream(rng: torch.Generator, *shape: int, steps: int = 20) -> list[Tensor]:
    return [torch.randn(shape, generator=rng, dtype=torch.float64) for _ in range(steps)]


def test_a_vector_takes_the_steps_of_adamw(rng: torch.Generator) -> None:
    gradients = stream(rng, 7)
    options = {"betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1}
    ours, theirs = (walk(kind, gradients, **options) for kind in (SOAP, AdamW))
    assert_close(ours, theirs, scale=1.0, tolerance=1e-13)


def test_the_second_gradient_takes_adams_first_step_in_the_bases_of_the_first(rng: torch.Generator) -> None:
    first, second = stream(rng, 4, 4, steps=2)
    left, _, right = torch.linalg.svd(first)
    assert walk(SOAP, [first]).abs().max() == 0
    expected = -0.1 * left @ (left.T @ second @ right.T).sign() @ right
    assert_close(walk(SOAP, [first, second]), expected, scale=0.1, tolerance=1e-6)


def test_turning_the_gradients_turns_the_walk(rng: torch.Generator) -> None:
    gradients = stream(rng, 5, 5)
    A, B = (torch.linalg.qr(matrix)[0] for matrix in stream(rng, 5, 5, steps=2))
    turned = walk(SOAP, [A @ G @ B for G in gradients])
    assert_close(turned, A @ walk(SOAP, gradients) @ B, scale=turned.abs().max(), tolerance=1e-9)


def test_a_weight_of_four_axes_walks_as_its_matrix(rng: torch.Generator) -> None:
    gradients = stream(rng, 6, 3, 2, 2)
    flat = walk(SOAP, [G.flatten(1) for G in gradients])
    assert_close(walk(SOAP, gradients), flat.view(6, 3, 2, 2), scale=1.0, tolerance=0.0)


def test_directions_that_no_gradient_has_are_left_alone(rng: torch.Generator) -> None:
    gradients = [G.float() for G in stream(rng, 8, 8, steps=50)]
    for G in gradients:
        G[:, 3:] = 0
    assert walk(SOAP, gradients)[:, 3:].abs().max() < 1e-4


@pytest.mark.parametrize("silently", [True, False])
def test_a_decomposition_that_fails_in_float32_is_done_in_float64(
    monkeypatch: pytest.MonkeyPatch, silently: bool
) -> None:
    real = torch.linalg.eigh

    def fragile(C: Tensor) -> Any:
        if C.dtype == torch.float64:
            return real(C)
        if silently:
            return C[0] * torch.nan, C * torch.nan
        raise torch.linalg.LinAlgError("the algorithm failed to converge")

    monkeypatch.setattr(torch.linalg, "eigh", fragile)
    basis = eigenbasis(torch.diag(torch.tensor([1.0, 2.0])))
    assert basis.dtype == torch.float32
    assert basis.abs().equal(torch.eye(2))


@pytest.mark.parametrize("scale", [0.0, 1e-35, 1e-7, 1e30])
def test_bases_of_any_scale_are_orthonormal(rng: torch.Generator, scale: float) -> None:
    G = torch.randn(300, 20, generator=rng) * (torch.arange(300) % 3 > 0).unsqueeze(1)  # zero rows
    Q = eigenbasis(scale * (G @ G.T))
    assert_close(Q.T @ Q, torch.eye(300), scale=1.0, tolerance=1e-5)

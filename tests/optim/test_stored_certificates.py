"""The certified error of sketches with bases in a shorter dtype, compared with the dense covariance."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from optim.optimizers import BF16, F32, F64
from sketchy import SketchyAdagrad, SketchyShampoo
from sketchy.core.certificate import exchange_error
from sketchy.core.tasks import run
from sketchy.optim.covariances import known_covariances

ROWS, COLUMNS, STEPS = 24, 18, 60


def gradients(kind: str, seed: int) -> Tensor:
    """(STEPS, ROWS, COLUMNS), float64."""
    rng = torch.Generator().manual_seed(seed)
    noise = torch.randn(STEPS, ROWS, COLUMNS, generator=rng, dtype=F64)
    if kind == "one direction":
        return 1e-3 * noise + torch.randn(ROWS, COLUMNS, generator=rng, dtype=F64)
    if kind == "decaying":
        return noise * torch.arange(1, ROWS + 1, dtype=F64).pow(-1.5).unsqueeze(-1)
    return noise * torch.linspace(1, 1e-4, STEPS, dtype=F64).reshape(-1, 1, 1) if kind == "fading" else noise


@pytest.mark.parametrize("rank", [6, 24], ids="rank {}".format)
@pytest.mark.parametrize("kind", ["flat", "decaying", "one direction", "fading"])
@pytest.mark.parametrize("beta2", [1.0, 0.9])
@pytest.mark.parametrize("weight, stored", [(F32, BF16), (F64, BF16), (F64, F32)], ids=str)
def test_certificates_hold_over_long_streams(
    weight: torch.dtype, stored: torch.dtype, beta2: float, kind: str, rank: int
) -> None:
    """As the state has it: ‖C - B Bᵀ‖ with the stored basis, restored as a step restores it."""
    p = nn.Parameter(torch.zeros(ROWS, COLUMNS, dtype=weight))
    optimizer = SketchyShampoo([p], betas=(0.0, beta2), rank=rank, sketch_dtype=stored)
    C = torch.zeros(ROWS, ROWS, dtype=F64)
    for step, G in enumerate(gradients(kind, seed=rank).to(weight)):
        p.grad = G
        optimizer.step()
        C = beta2 * C + G.double() @ G.double().T
        if step % 10 < 9:
            continue
        state = optimizer.state[p]
        U, _, V = torch.linalg.svd(state["left_basis"][0].double(), full_matrices=False)
        U = U @ V  # the nearest orthonormal basis, where Newton-Schulz steps end
        error = torch.linalg.matrix_norm(C - (U * state["left_eigenvalues"][0]) @ U.T, 2)
        assert error <= state["left_error_bound"][0], f"{error:.2e} > {state['left_error_bound'][0]:.2e}"


def test_an_exchanged_basis_changes_no_more_than_the_bound() -> None:
    rng = torch.Generator().manual_seed(0)
    for d, l, turn in [(9, 4, 1e-3), (30, 12, 1e-2), (5, 5, 0.3)]:
        U = torch.linalg.qr(torch.randn(d, l, generator=rng, dtype=F64)).Q
        V = torch.linalg.qr(U + turn * torch.randn(d, l, generator=rng, dtype=F64)).Q
        V = V * (U * V).sum(0).sign()
        lam = torch.rand(l, generator=rng, dtype=F64).sort(descending=True).values
        change = torch.linalg.matrix_norm((U * lam) @ U.T - (V * lam) @ V.T, 2)
        bound = run(exchange_error(U, lam, V))
        assert change <= bound <= 8 * change


def test_the_bound_of_an_exchanged_basis_counts_the_column_that_changed_most() -> None:
    U, lam = torch.eye(6, 3, dtype=F64), torch.tensor([4.0, 2.0, 1.0], dtype=F64)
    V = U.clone()
    V[:2, 0] = torch.tensor([0.8, 0.6])
    change = torch.linalg.matrix_norm((U * lam) @ U.T - (V * lam) @ V.T, 2)
    assert change <= run(exchange_error(U, lam, V)) <= 8 * change


@pytest.mark.parametrize("graft", ["rows", "sgd"])  # a moment knows the trace, or only the full covariance
@pytest.mark.parametrize("beta2", [1.0, 0.9])
def test_the_state_knows_the_trace_of_the_covariances_of_each_block(beta2: float, graft: str) -> None:
    p = nn.Parameter(torch.zeros(2, 6, 4, dtype=F64))
    optimizer = SketchyShampoo([p], betas=(0.0, beta2), rank=4, graft=graft, stacked=True)
    energy = torch.zeros(2, dtype=F64)
    for step in range(3):
        p.grad = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(step), dtype=F64)
        energy = beta2 * energy + p.grad.square().sum((1, 2))
        optimizer.step()
    group = optimizer.param_groups[0]
    found = list(known_covariances(p, optimizer._plan(group, p, None), optimizer.state[p], group))
    assert [known.axis for known in found] == ["left", "right"]
    for known in found:
        assert known.trace is not None
        torch.testing.assert_close(known.trace, energy)


def test_axes_are_named_by_their_number_and_flat_weights_have_only_one() -> None:
    def names(plan: Any) -> list[str]:
        return [axis.name for axis in plan.statistics.live]

    assert names(SketchyShampoo.plan_of((5, 4), F32)) == ["left", "right"]
    assert names(SketchyShampoo.plan_of((5, 4, 3), F32, merge_dims=1)) == ["axis0", "axis1", "axis2"]
    for shape in ((), (5,), (5, 4)):
        plan = SketchyAdagrad.plan_of(shape, F32)
        assert plan.path == "sketch" and names(plan) == ["only"]

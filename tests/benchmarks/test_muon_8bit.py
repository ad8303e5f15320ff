"""Muon in 8 bits takes torch's steps, and stores a byte for each entry of its momentum."""

import pytest
import torch
from benchmarks.registry.muon_8bit import BLOCK, Muon8bit, decoded, encoded
from torch import Tensor, nn
from torch.optim import Muon

from sketchy.experiments.training import state_bytes

SHAPES = ((48, 80), (80, 48), (5, 3))  # with a cut-off second block, and less than one block


def walk(optimizer: torch.optim.Optimizer, rng: torch.Generator, steps: int = 5) -> list[Tensor]:
    weights = optimizer.param_groups[0]["params"]
    for _ in range(steps):
        for weight in weights:
            weight.grad = torch.randn(weight.shape, generator=rng)
        optimizer.step()
    return [weight.detach() for weight in weights]


def weights() -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(shape)) for shape in SHAPES]


@pytest.mark.parametrize("adjusted", ["original", "match_rms_adamw"])
def test_without_rounding_steps_are_torchs_to_the_bit(seed: int, adjusted: str) -> None:
    options = {"lr": 0.02, "weight_decay": 0.01, "adjust_lr_fn": adjusted}
    ours = walk(Muon8bit(weights(), rounded=False, **options), torch.Generator().manual_seed(seed))
    theirs = walk(Muon(weights(), **options), torch.Generator().manual_seed(seed))
    assert all(a.equal(b) for a, b in zip(ours, theirs, strict=True))


def test_the_first_step_is_torchs_to_the_bit_as_it_uses_the_momentum_before_rounding(seed: int) -> None:
    one, other = (
        walk(kind(weights()), torch.Generator().manual_seed(seed), steps=1) for kind in (Muon8bit, Muon)
    )
    assert all(a.equal(b) for a, b in zip(one, other, strict=True))


def test_an_entry_is_stored_to_half_a_code_of_its_block(rng: torch.Generator) -> None:
    M = torch.randn(100, 70, generator=rng) * torch.logspace(-6, 6, 100).unsqueeze(1)
    error = (decoded(encoded(M), M) - M).flatten()
    for block, wrong in zip(M.flatten().split(BLOCK), error.split(BLOCK), strict=True):
        assert wrong.abs().max() <= block.abs().max() / 254 * (1 + 1e-5)


def test_zeros_stay_zeros() -> None:
    M = torch.zeros(3, 4)
    assert decoded(encoded(M), M).equal(M)


def test_the_state_is_a_byte_for_each_entry_and_four_for_each_block(rng: torch.Generator) -> None:
    optimizer = Muon8bit(weights())
    walk(optimizer, rng, steps=2)
    assert state_bytes(optimizer) == sum(m * n + 4 * -(-m * n // BLOCK) for m, n in SHAPES)

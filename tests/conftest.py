"""One thread: the matrices are small, and results then repeat to the bit. Seeds are a fixture."""

import os

import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")


@pytest.fixture
def seed() -> int:
    """One seed day to day; `SKETCHY_SEED=7 make test` tries another."""
    return int(os.environ.get("SKETCHY_SEED", "0"))


@pytest.fixture
def rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)

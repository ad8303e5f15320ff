"""Sharded weights: every layout takes the steps of one process."""

import subprocess
import sys
from itertools import cycle

import pytest
import torch
from sharded import KINDS, SHAMPOO, SOAP, Setup, check_layouts, expected

from ranks import on_ranks

pytestmark = pytest.mark.cpu_only("its ranks are threads or processes")


def compare(world: int, setups: list[Setup]) -> None:
    """All layouts on so many ranks take the steps of one process."""
    on_ranks(world, check_layouts, world, list(map(expected, setups)))


def test_two_ranks_take_the_steps_of_one_process() -> None:
    setups = [Setup(*SHAMPOO[0], "troubled"), Setup(*SHAMPOO[1], "troubled"), Setup(*SOAP[0])]
    compare(2, setups)


def test_four_ranks_take_the_steps_of_one_process() -> None:
    compare(4, [Setup(*SOAP[0], steps=4)])


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_twenty_steps_with_all_options_on_two_ranks(kind: str) -> None:
    compare(2, [Setup(*case, kind, steps=20) for case in SHAMPOO + SOAP])


@pytest.mark.slow
def test_twenty_steps_with_all_options_on_four_ranks() -> None:
    """Kinds of gradients take turns, and the default options see all of them."""
    turns = [Setup(*case, kind, steps=20) for case, kind in zip(SHAMPOO + SOAP, cycle(KINDS), strict=False)]
    usual = [Setup(*case, kind, steps=20) for case in (SHAMPOO[0], SOAP[0]) for kind in KINDS]
    compare(4, [*turns, *usual])


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
def test_twenty_steps_in_float32(world: int) -> None:
    cases = [SHAMPOO[0], SHAMPOO[1], SOAP[0], SOAP[1]]
    setups = [Setup(*case, kind, 20, torch.float32) for case in cases for kind in ("plain", "troubled")]
    compare(world, setups)


def test_the_package_does_not_import_distributed_tensors() -> None:
    """They are 500 modules. (Torch's own optimizers import them when one is made.)"""
    code = "import sys, sketchy; assert 'torch.distributed.tensor' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)

"""Sharded weights on ranks that are threads of this process: all options, in a few steps each.

`test_sharded.py` has the same on processes, with more steps and layouts.
"""

from functools import partial
from itertools import cycle

import pytest
import torch
from sharded import KINDS, SHAMPOO, SOAP, Setup, check_layouts, expected

from ranks import on_threads

pytestmark = pytest.mark.cpu_only("its ranks are threads or processes")

CASES = [Setup(*case, kind, 5) for case, kind in zip(SHAMPOO + SOAP, cycle(KINDS), strict=False)]
IN_FLOAT32 = [Setup(*case, "plain", 4, torch.float32) for case in (SHAMPOO[0], SOAP[0])]


@pytest.mark.parametrize("setup", [*CASES, *IN_FLOAT32], ids=str)
def test_two_ranks_take_the_steps_of_one_process(setup: Setup) -> None:
    on_threads(2, check_layouts, 2, [expected(setup)])


@pytest.mark.parametrize("setup", [CASES[0], CASES[len(SHAMPOO)], CASES[len(SHAMPOO) + 2]], ids=str)
def test_four_ranks_in_a_square_take_the_steps_of_one_process(setup: Setup) -> None:
    # in strides, torch's own gathering of uneven parts mixes up the threads
    on_threads(4, partial(check_layouts, strided=False), 4, [expected(setup)])


def test_an_error_on_one_rank_is_raised_here() -> None:
    def fail() -> None:
        if torch.distributed.get_rank() == 1:
            raise ValueError("rank 1")
        torch.distributed.barrier()

    with pytest.raises(ValueError, match="rank 1"):
        on_threads(2, fail)

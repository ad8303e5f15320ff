"""Axes in parts: on ranks that are threads of this process, all get what the whole tensor gives."""

from typing import Any

import pytest
import torch
from torch import Tensor, distributed

from cases import F32, F64
from checks import assert_close
from ranks import cut, on_threads
from sketchy.core.spread import (
    Planned,
    Ranks,
    Spread,
    all_gather,
    fetch,
    largest,
    part,
    solved,
    total,
    whole,
)
from sketchy.core.tasks import Request, Task, Unread, gather, run

pytestmark = pytest.mark.cpu_only("its ranks are threads or processes")

EXACT = 1e-12


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def test_parts_are_those_of_the_rows_and_add_up_to_the_whole() -> None:
    def check() -> None:
        for size in (1, 2, 5):
            x, spread = random(3, size, 2), cut(size)
            assert torch.equal(part(x, spread), x[:, spread.here])
            assert torch.equal(run(whole(part(x, spread), spread)), x)
            assert torch.equal(run(whole(part(x.mT, spread, -1), spread, -1)), x.mT)
            assert part(x, None) is x and run(whole(x, None)) is x

    on_threads(2, check)


def test_sums_and_maxima_that_are_asked_together_are_those_asked_alone() -> None:
    def check() -> None:
        rank, spread = distributed.get_rank(), cut(4)
        xs = [random(*shape, seed=rank) for shape in ((), (5,), (2, 3))]
        first, second = random(2, 3, seed=0), random(2, 3, seed=1)
        sums = run(gather([total(x.clone(), spread) for x in xs]))
        assert [found.shape for found in sums] == [x.shape for x in xs]
        assert torch.equal(sums[2], first + second)
        assert torch.equal(run(total(xs[2].clone(), spread)), sums[2])
        assert torch.equal(run(largest(xs[2].clone(), None, spread)), torch.maximum(first, second))

    on_threads(2, check)


def test_matrices_that_are_fetched_together_are_whole_on_all_ranks() -> None:
    """Their rows may not fill all ranks, and some ranks may have none."""

    def check() -> None:
        for sizes in ((5,), (3, 8, 1)):
            xs = [random(2, size, rank + 1, seed=size) for rank, size in enumerate(sizes)]
            waits = fetch([(part(x, cut(len(x[0]))), cut(len(x[0]))) for x in xs])
            assert all(torch.equal(wait(), x) for wait, x in zip(waits, xs, strict=True))

    on_threads(4, check)


def solve(x: Tensor, factor: float | Tensor, *, power: int = 1) -> Any:
    """Results of several shapes and dtypes, and one that is read."""
    found = torch.as_tensor(factor).reshape(-1, 1, 1) * x.matrix_power(power)
    sums = found.sum((-2, -1))
    return found, sums.float(), sums > 0, Unread((sums, sums.round()))


@pytest.mark.parametrize("world", [2, 4])
def test_matrices_that_are_shared_out_are_solved_as_on_one_rank(world: int) -> None:
    """Also if there are fewer matrices than ranks, and if requests differ in a number."""

    def check() -> None:
        spread = cut(7)
        for count in (1, 2, 3, 9):
            x = random(count, 3, 3)
            for spreads in ((None, spread), (None, None)):
                single = run(solved(spreads, torch.linalg.inv, x))
                assert_close(single, torch.linalg.inv(x), scale=single.abs().max(), tolerance=EXACT)
                found = run(solved(spreads, solve, x, torch.full((count,), 3.0), power=2))
                expected = run(alone(x))
                assert all(map(torch.equal, found[:3], expected[:3])) and found[3] == expected[3]

    def alone(x: Tensor) -> Task[Any]:
        return (yield Request(solve, (x, torch.full((len(x),), 3.0)), options={"power": 2}))

    on_threads(world, check)


def test_a_group_on_paper_notes_what_each_collective_would_send() -> None:
    group = Planned("paper", 4, [])
    spread = Spread(8, torch.arange(2), 0, (group,), 4, Ranks((group,), 0, 4))
    run(total(torch.zeros(2, 3, dtype=F64), spread))
    found, wait = all_gather(torch.zeros(5, dtype=F32), 4, group)
    wait()
    assert group.notes == [("all_reduce", 48, 4), ("all_gather", 20, 4)] and found.shape == (4, 5)

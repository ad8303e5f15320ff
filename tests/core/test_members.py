"""Exchange between ranks that are threads here. `test_frequent_directions_ranks.py` has processes."""

from collections import defaultdict
from queue import SimpleQueue
from typing import Any

import pytest
import torch
from torch import Tensor, distributed

from cases import F64
from checks import same
from ranks import on_threads
from sketchy import FrequentDirections
from sketchy.core.members import Tensors, members


@pytest.fixture(autouse=True)
def mail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's process group for threads has no messages from one rank to another."""
    boxes = defaultdict[tuple[int, int], SimpleQueue[Tensor]](SimpleQueue)

    def send(x: Tensor, dst: int, group: Any = None) -> None:
        boxes[distributed.get_rank(), dst].put(x.clone())

    def recv(x: Tensor, src: int, group: Any = None) -> None:
        assert x.is_contiguous()
        x.copy_(boxes[src, distributed.get_rank()].get(timeout=5))

    monkeypatch.setattr(distributed, "send", send)
    monkeypatch.setattr(distributed, "recv", recv)


def merged(first: Tensors, second: Tensors) -> Tensors:
    """Other results in any other order."""
    return {name: 3 * x + second[name].square() for name, x in first.items()}


@pytest.mark.parametrize("count", [1, 2, 3, 5, 6])
def test_all_ranks_get_what_a_tree_of_merges_in_the_order_of_ranks_gives(count: int) -> None:
    every = [{"a": torch.full((2, 3), 1.0 + i, dtype=F64), "b": torch.tensor(0.1 * i)} for i in range(count)]
    left = every
    while len(left) > 1:
        pairs = [left[i : i + 2] for i in range(0, len(left), 2)]
        left = [merged(*pair) if len(pair) == 2 else pair[0] for pair in pairs]

    def check() -> None:
        ranks = members()
        assert (ranks.index, ranks.count) == (distributed.get_rank(), count)
        assert ranks.objects(f"of {ranks.index}") == [f"of {i}" for i in range(count)]
        own = {"a": every[ranks.index]["a"].mT.contiguous().mT, "b": every[ranks.index]["b"]}
        found = ranks.reduce(own, merged)
        assert found.keys() == left[0].keys() and all(torch.equal(found[k], left[0][k]) for k in found)
        assert torch.equal(own["a"], every[ranks.index]["a"])

    on_threads(count, check)


def test_a_group_without_the_first_rank_has_its_own_order() -> None:
    def check() -> None:
        group = distributed.new_group([1, 2])
        if distributed.get_rank() == 0:
            return
        ranks = members(group)
        found = ranks.reduce({"x": torch.tensor(float(distributed.get_rank()))}, merged)
        assert found["x"] == 3 * 1 + 2**2

    on_threads(3, check)


@pytest.mark.cpu_only("its ranks are threads or processes")
def test_streams_on_three_ranks_are_merged_as_in_one_process() -> None:
    A = torch.randn(3, 9, 4, generator=torch.Generator().manual_seed(0), dtype=F64)
    alone = [FrequentDirections(9, 3, dtype=F64) for _ in A]
    for fd, each in zip(alone, A, strict=True):
        fd.update(each)
    expected = alone[0].merge(alone[1]).merge(alone[2])

    def check() -> None:
        fd = FrequentDirections(9, 3, dtype=F64)
        fd.update(A[distributed.get_rank()])
        assert same(fd.all_merge(), expected)

    on_threads(3, check)

"""A stream whose vectors lie on several ranks has one certified sketch: `FrequentDirections.all_merge`."""

import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, distributed

from cases import F32, F64, SOLVERS, covariance, stream
from checks import assert_close, assert_psd_leq, feed, norm, same
from ranks import on_ranks
from sketchy import FrequentDirections, frequent_directions

pytestmark = pytest.mark.cpu_only("its ranks are threads or processes")

DIM, RANK = 24, 7


def streams(count: int, dtype: torch.dtype = F64) -> list[list[Tensor]]:
    """One for each rank, of different lengths; the second is empty. Single vectors wait in the buffer."""
    kinds = ("power", "zero", "drifting", "steep")
    found = []
    for i in range(count):
        blocks = stream(kinds[i], DIM, 3, 5 + i, seed=i, dtype=dtype)
        found.append([] if i == 1 else [*blocks, blocks[0][:, 0], blocks[1][:, 1]])
    return found


def truth(some: list[list[Tensor]], decay: float) -> Tensor:
    columns = ([A.reshape(DIM, -1) for A in each] for each in some)
    return sum((covariance(each, decay) for each in columns if each), torch.zeros(DIM, DIM, dtype=F64))


def check_certificates() -> None:
    """Against the dense covariance of the whole stream, and against merges in one process."""
    index, count = distributed.get_rank(), distributed.get_world_size()
    for dtype in (F32, F64):
        for solver in SOLVERS:
            for decay in (1.0, 0.9):
                options: dict[str, Any] = {"decay": decay, "solver": solver, "dtype": dtype}
                every = streams(count, dtype)
                mine = feed(FrequentDirections(DIM, RANK, **options, seed=index), every[index])
                merged, C = mine.all_merge(), truth(every, decay)
                scale = norm(C)
                assert norm(C - merged.dense()) <= float(merged.error_bound)
                assert merged.error_bound < scale, (float(merged.error_bound), scale, solver, decay)
                assert_psd_leq(merged.dense(), C, scale=scale, tolerance=1e-12 if dtype == F64 else 1e-5)
                assert merged.count == sum(A.reshape(DIM, -1).shape[1] for each in every for A in each)
                assert merged.dtype == dtype and merged.decay == decay and merged.seed == 0
                alone = [
                    feed(FrequentDirections(DIM, RANK, **options, seed=i), e) for i, e in enumerate(every)
                ]
                by_pairs = [a.merge(b) for a, b in zip(alone[::2], alone[1::2], strict=True)]
                expected = by_pairs[0] if count == 2 else by_pairs[0].merge(by_pairs[1])
                assert same(merged, expected)
                merged.update(every[0][0])  # and all ranks go on alike
                found: list[Any] = [None] * count
                distributed.all_gather_object(found, merged.state_dict())
                assert all(
                    torch.equal(found[0][k], other[k]) for other in found for k in ("basis", "error_bound")
                )


def check_few_directions() -> None:
    """Ranks that have seen few directions together lose nothing; ranks that have seen none have nothing."""
    index, count = distributed.get_rank(), distributed.get_world_size()
    fd = FrequentDirections(DIM, RANK, dtype=F64)
    empty = fd.all_merge()
    assert empty.count == 0 and float(empty.eigenvalues.abs().max()) == 0 == float(empty.error_bound)
    fd.update(torch.eye(DIM, dtype=F64)[index])
    merged = fd.all_merge()
    assert_close(
        merged.dense(), torch.eye(DIM, dtype=F64) * (torch.arange(DIM) < count), scale=1, tolerance=1e-12
    )
    assert merged.escaped_mass == 0 and fd.count == 1


def check_disagreement() -> None:
    """All ranks raise the same error, at once, and can go on."""
    index = distributed.get_rank()
    plain: dict[str, Any] = {"dim": DIM, "rank": RANK}
    for name, value in (
        ("dim", 9),
        ("rank", 3),
        ("decay", 0.5),
        ("solver", "subspace"),
        ("dtype", F64),
        ("certificate", "none"),
        ("failure_probability", 0.1),
        ("buffer", 1),
        ("device", "meta"),
    ):
        fd = FrequentDirections(**plain)
        if index == 1 and name == "device":
            fd._sketch = type(fd._sketch)(*(x.to("meta") for x in fd._sketch.tensors.values()))
        elif index == 1:
            fd = FrequentDirections(**plain | {name: value})
        started = time.monotonic()
        with pytest.raises(
            ValueError, match=rf"{name}=.* on rank 1 of the group: must be .* as on rank 0"
        ) as e:
            fd.all_merge()
        said: list[Any] = [None] * distributed.get_world_size()
        distributed.all_gather_object(said, str(e.value))
        assert len(set(said)) == 1 and time.monotonic() - started < 20
    assert FrequentDirections(**plain).all_merge().count == 0


def check_groups() -> None:
    """Three of four ranks, not the first; the fourth is told."""
    index = distributed.get_rank()
    group = distributed.new_group([1, 2, 3])
    fd = FrequentDirections(DIM, RANK, dtype=F64)
    fd.update(torch.eye(DIM, dtype=F64)[index])
    if index == 0:
        with pytest.raises(ValueError, match="not in the group"):
            fd.all_merge(group)
        return
    merged = fd.all_merge(group)
    expected = torch.diag(torch.tensor([0.0, 1, 1, 1] + [0] * (DIM - 4), dtype=F64))
    assert_close(merged.dense(), expected, scale=1, tolerance=1e-12)


def all_checks() -> None:
    check_few_directions()
    check_disagreement()
    check_certificates()
    if distributed.get_world_size() == 4:
        check_groups()


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_stream_on_several_ranks_gets_one_certified_sketch(world: int) -> None:
    on_ranks(world, all_checks)


def test_without_a_process_group_it_says_what_to_call() -> None:
    with pytest.raises(RuntimeError, match="init_process_group"):
        FrequentDirections(4, 2).all_merge()


def on_two_ranks(monkeypatch, first: FrequentDirections, second: FrequentDirections) -> FrequentDirections:
    """What `all_merge` returns for the sketches of two ranks, without processes."""

    def ranks(objects, reduce) -> None:
        members = SimpleNamespace(objects=objects, reduce=reduce)
        monkeypatch.setattr(frequent_directions, "members", lambda group: members)

    said: list = []
    ranks(lambda own: said.append(own) or [own], lambda own, merge: own)
    for each in (first, second):
        each.all_merge()
    ranks(lambda own: said, lambda own, merge: merge(first.sketch.tensors, second.sketch.tensors))
    return first.all_merge()


def test_the_sketch_of_two_ranks_is_that_of_a_merge(monkeypatch):
    first, second = (
        feed(FrequentDirections(20, 6, decay=0.9, dtype=F64, seed=seed), stream("power", 20, 3, 4, seed=seed))
        for seed in (1, 2)
    )
    second.update(torch.ones(20, dtype=F64))
    merged = on_two_ranks(monkeypatch, first, second)
    assert same(merged, first.merge(second)) and merged.count == 25 and merged.seed == 1


def test_two_ranks_must_have_the_options_of_the_first(monkeypatch):
    with pytest.raises(ValueError, match="rank=3 on rank 1 of the group: must be 4, as on rank 0"):
        on_two_ranks(monkeypatch, FrequentDirections(8, 4), FrequentDirections(8, 3))

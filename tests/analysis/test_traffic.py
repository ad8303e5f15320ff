"""State and traffic on paper. `tests/optim/test_sharded_traffic.py` compares them with real ranks."""

from typing import Any

import pytest

from sketchy import Shampoo, SketchyShampoo, SketchySOAP
from sketchy.analysis.memory import planned, total
from sketchy.analysis.state import Weight
from sketchy.analysis.traffic import Mesh, Message, on_ranks
from sketchy.optim.engine import Engine

OURS: list[type[Engine]] = [SketchyShampoo, SketchySOAP]
SQUARE = Weight((1024, 1024), path="sketch")


def test_a_rank_in_a_ring_sends_all_but_its_own_part_and_twice_that_for_a_sum() -> None:
    assert Message("all_gather", 100, 4).sent == 300  # 400 in all, of which 100 are its own
    assert Message("all_reduce", 400, 4).sent == 600


@pytest.mark.parametrize("kind", OURS)
def test_one_shard_keeps_the_whole_state_and_sends_nothing(kind: type[Engine]) -> None:
    weights = [SQUARE, Weight((77,))]
    found = on_ranks(kind, weights, 1, rank=16)
    assert found.most == found.least == total(weights, planned(kind, rank=16)).total
    assert found.sent == found.collectives == found.gathered == 0


@pytest.mark.parametrize("kind", OURS)
def test_the_number_of_collectives_does_not_depend_on_the_number_of_layers(kind: type[Engine]) -> None:
    one, many = (on_ranks(kind, [SQUARE] * count, 8, rank=16) for count in (1, 12))
    assert many.collectives == one.collectives < 30
    assert many.sent == pytest.approx(12 * one.sent, abs=12)


def test_the_last_rank_has_nothing_but_small_tensors_if_rows_run_out() -> None:
    found = on_ranks(SketchyShampoo, [Weight((9, 512), path="sketch")], 8, rank=4)  # 2, 2, 2, 2, 1 rows
    assert found.least < found.most - 2 * 512 * 4


@pytest.mark.parametrize("kind", OURS)
def test_less_is_sent_if_the_longer_axis_is_sharded(kind: type[Engine]) -> None:
    rows, columns = (on_ranks(kind, [Weight((512, 2048), path="sketch")], 8, axis=a, rank=16) for a in (0, 1))
    assert columns.sent < 0.4 * rows.sent


@pytest.mark.parametrize("kind", OURS)
def test_replicas_keep_the_same_and_send_small_matrices_to_each_other(kind: type[Engine]) -> None:
    alone, copies = (on_ranks(kind, [SQUARE], 4, replicas, rank=16) for replicas in (1, 2))
    assert (copies.most, copies.least) == (alone.most, alone.least)
    assert alone.sent < copies.sent < 1.2 * alone.sent


@pytest.mark.parametrize(
    ("kind", "options", "why"),
    [
        (Shampoo, {}, "the full covariance of a sharded axis is kept"),
        (SketchySOAP, {"block_size": 256}, "blocks (block_size) cross the parts"),
        (SketchyShampoo, {"solver": "exact"}, 'solver="exact" takes whole matrices'),
    ],
    ids=["dense", "blocks", "solver"],
)
def test_gathered_gradients_are_counted_with_the_reason(
    kind: type[Engine], options: dict[str, Any], why: str
) -> None:
    found = on_ranks(kind, [SQUARE], 4, **options)
    assert found.reasons == {why: SQUARE.bytes} and found.gathered == SQUARE.bytes
    assert found.sent >= 0.7 * SQUARE.bytes


@pytest.mark.parametrize(
    ("shards", "replicas", "name"), [(0, 1, "shards"), (2, 0, "replicas"), (1.5, 1, "shards")]
)
def test_numbers_of_ranks_that_cannot_be_are_refused(shards: Any, replicas: Any, name: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"{name}="):
        Mesh(shards, replicas)

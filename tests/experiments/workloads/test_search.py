"""The search: equal points, equal budgets, one owner for each trial."""

import json
import math
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from sketchy.experiments.workloads import folder
from sketchy.experiments.workloads.claims import claimed
from sketchy.experiments.workloads.gnn import GNN
from sketchy.experiments.workloads.ranks import Ranks
from sketchy.experiments.workloads.record import Look, Record
from sketchy.experiments.workloads.scale import Choice, Range
from sketchy.experiments.workloads.search import Piece, Search, best, common, finals
from sketchy.experiments.workloads.search_table import points, spent, trial_row, write_rows
from sketchy.experiments.workloads.work import work

PAIR = ("adamw", "muon")


def search(trials: int = 3, optimizers: tuple[str, ...] = PAIR, **changes: str) -> Search:
    return Search("gnn", "tiny", "synthetic", optimizers, trials, changes=changes)


def end(piece: Piece, loss: float, ended: str = "finished") -> None:
    """As if the trial had run."""
    look = Look(10, 0.5, 0.0, 1.0, validation_loss=loss, validation_metric=1 - loss)
    record = Record(10, 10, [look], ended=ended, cpu_seconds=36.0)  # type: ignore[arg-type]
    piece.folder.mkdir(parents=True)
    (piece.folder / folder.RECORD).write_text(json.dumps(record.to_dict()))


# ---- points


def test_trial_i_is_the_same_point_for_all_optimizers_and_any_number_of_trials() -> None:
    few, many = search(3), search(9, ("shampoo",))
    for trial in range(3):
        assert few.point("adamw", trial) == few.point("muon", trial) == many.point("shampoo", trial)
    assert len({json.dumps(many.point("shampoo", trial)) for trial in range(9)}) == 9


def test_points_lie_in_the_papers_ranges_and_fill_them() -> None:
    found = search(64)
    ranges = GNN.presets["tiny"].tuning.ranges
    for name, known in ranges.items():
        assert isinstance(known, Range)
        places = [found.share("adamw", name, trial) for trial in range(64)]
        assert all(0 <= place < 1 for place in places)
        assert {int(8 * place) for place in places} == set(range(8))  # Sobol: eight points in each eighth
        for trial in range(64):
            value = found.point("adamw", trial)[name]
            assert isinstance(value, float)
            searched = 1 - value if known.one_minus else value
            assert known.low <= searched <= known.high
            assert known.share(value) == pytest.approx(found.share("adamw", name, trial), abs=1e-6)


def test_linear_ranges_and_choices() -> None:
    assert Range(0.0, 0.2, log=False).at(0.25) == pytest.approx(0.05)
    assert Range(0.0, 0.2, log=False).share(0.05) == pytest.approx(0.25)
    grafts = Choice("adagrad", "rmsprop")
    assert [grafts.at(place) for place in (0.0, 0.49, 0.5, 0.999)] == ["adagrad"] * 2 + ["rmsprop"] * 2
    assert (grafts.share("adagrad"), grafts.share("rmsprop")) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"trials": 0}, "trials=0"),
        ({"optimizers": ("adam",)}, "no such optimizer"),
        ({"optimizers": ("adamw", "adamw")}, "distinct"),
        ({"lr": "0.1"}, "lr: is searched"),
    ],
)
def test_what_makes_no_search_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        search(**options)


# ---- budgets


def test_the_best_is_chosen_among_as_many_trials_as_all_have_finished(tmp_path: Path) -> None:
    mine = search(3)
    by_name = {piece.name: piece for piece in mine.pieces(tmp_path)}
    with pytest.raises(ValueError, match="no trial that all of adamw, muon have finished"):
        best(mine, tmp_path)
    for name, loss in (("adamw-0000", 0.5), ("adamw-0001", 0.4), ("adamw-0002", 0.1), ("muon-0000", 0.3)):
        end(by_name[name], loss)
    assert common(mine, tmp_path) == 1
    assert [each.trial for each in best(mine, tmp_path)] == [0, 0]  # not adamw's trial 2: muon has no such
    end(by_name["muon-0001"], math.nan, "diverged")
    assert [each.trial for each in best(mine, tmp_path)] == [1, 0]
    end(by_name["muon-0002"], 0.2)
    assert [(each.trial, each.trials) for each in best(mine, tmp_path)] == [(2, 3), (2, 3)]
    lines = spent(mine, tmp_path).lines
    assert [line[:6] for line in lines] == [
        ["adamw", "3", "0", "30", "0.03", "0.1000"],
        ["muon", "3", "1", "30", "0.03", "0.2000"],
    ]
    assert [line[1] for line in points(mine, tmp_path).lines] == ["2 of 3", "2 of 3"]
    rows = tmp_path / "trials.jsonl"
    write_rows(rows, mine, mine.pieces(tmp_path), trial_row)
    parsed = [json.loads(line) for line in rows.read_text().splitlines()]
    assert [row["trial"] for row in parsed if row["optimizer"] == "muon"] == [0, 1, 2]
    assert [row["validation_loss"] for row in parsed if row["ended"] == "diverged"] == [math.inf]


def test_an_optimizer_that_always_fails_has_no_finals(tmp_path: Path) -> None:
    mine = search(1)
    one, other = mine.pieces(tmp_path)
    end(one, 0.5, "diverged")
    end(other, 0.5)
    assert [piece.optimizer for piece in finals(mine, tmp_path, 2, {})] == ["muon", "muon"]
    assert [line[0] for line in spent(mine, tmp_path).lines] == ["adamw", "muon"]


def test_finals_have_the_best_settings_and_seeds_that_were_not_tuned_on(tmp_path: Path) -> None:
    mine = search(1, dropout="0.25")
    for piece in mine.pieces(tmp_path):
        assert piece.settings.scale.steps == piece.settings.scale.tuning_steps == 10
        end(piece, 0.5)
    found = finals(mine, tmp_path, 2, {"look_every": "4"})
    assert [(piece.optimizer, piece.settings.seed) for piece in found] == [
        (name, seed) for seed in (1, 2) for name in PAIR
    ]
    scale = found[0].settings.scale
    assert (scale.steps, scale.dropout, scale.look_every) == (20, 0.25, 4)
    assert scale.lr == mine.point("adamw", 0)["lr"]
    assert {piece.settings.seed for piece in mine.pieces(tmp_path)} == {0}


def test_trials_and_optimizers_may_be_added_but_nothing_else_may_change(tmp_path: Path) -> None:
    search(2, ("adamw",)).claim(tmp_path)
    search(5, ("muon",)).claim(tmp_path)
    known = Search.read(tmp_path)
    assert (known.optimizers, known.trials) == (("adamw", "muon"), 5)
    search(1, ("muon",)).claim(tmp_path)
    assert Search.read(tmp_path) == known
    with pytest.raises(ValueError, match="changes was"):
        search(5, ("muon",), width="8").claim(tmp_path)


# ---- one owner


def test_of_many_that_come_at_once_one_gets_the_piece(tmp_path: Path) -> None:
    for number in range(20):
        won: list[bool] = []
        gate, leave = threading.Barrier(4, timeout=20), threading.Barrier(4, timeout=20)

        def come(
            place: Path = tmp_path / str(number),
            gate: threading.Barrier = gate,
            leave: threading.Barrier = leave,
            won: list[bool] = won,
        ) -> None:
            gate.wait()
            with claimed(place) as mine:
                won.append(mine)
                leave.wait()

        threads = [threading.Thread(target=come) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(won) == [False, False, False, True]


def test_a_piece_is_free_again_when_its_owner_stops_or_dies(tmp_path: Path) -> None:
    with claimed(tmp_path) as first, claimed(tmp_path) as second:
        assert (first, second) == (True, False)
    with claimed(tmp_path) as mine:
        assert mine  # the owner has stopped
    dead = max(tmp_path.glob("claim-*"))
    os.utime(dead, (time.time() - 1000, time.time() - 1000))  # as a killed process leaves it
    with claimed(tmp_path) as mine:
        assert mine


def test_an_owner_that_works_for_long_stays_the_owner(tmp_path: Path) -> None:
    with claimed(tmp_path, beat=0.02, dead=0.3) as mine:
        time.sleep(0.6)
        with claimed(tmp_path, dead=0.3) as other:
            assert (mine, other) == (True, False)


def test_work_is_what_nobody_has_ended_or_claimed_and_a_stop_ends_it(tmp_path: Path) -> None:
    pieces = search(2).pieces(tmp_path)
    end(pieces[0], 0.5)
    done: list[str] = []
    with claimed(pieces[1].folder):
        assert work(pieces, Ranks(), lambda piece: done.append(piece.name) is None)
    assert done == [piece.name for piece in pieces[2:]]
    assert not work(pieces, Ranks(), lambda piece: False)

"""The table: best setting of each learner, best learner first, diverged settings as inf."""

import json
from pathlib import Path

import pytest
import torch

from sketchy.experiments import plot, sweep, table
from sketchy.experiments.data import Dataset, load
from sketchy.experiments.table import SettingResult


def row(learner: str, loss: float, eta: float = 1.0) -> SettingResult:
    return SettingResult(learner, eta, 0.0, 10, 32_561, loss, 0.2, 0.1)


def plan(**options: object) -> sweep.Plan:
    return sweep.Plan(**{"data": "a9a", "rows": 32_561, "dim": 124, "data_sha256": "", **options})  # type: ignore[arg-type]


def test_learners_are_ranked_by_the_best_of_their_settings() -> None:
    rows = [row("ogd", 0.5, 1e-3), row("ogd", 0.3, 1e-2), row("adagrad", 0.2), row("ada-fd", float("inf"))]
    assert [(best.learner, best.eta) for best in table.ranking(rows)] == [
        ("adagrad", 1.0),
        ("ogd", 1e-2),
        ("ada-fd", 1.0),
    ]


def test_the_papers_number_stands_beside_ours() -> None:
    text = table.markdown(plan(), [row("ogd", 0.33461), row("adagrad", 0.33228), row("ggt", 0.4)])
    lines = [
        [cell.strip() for cell in line.split("|")[1:5]] for line in text.splitlines() if line.startswith("|")
    ]
    assert lines[2:] == [
        ["1", "adagrad", "0.3323", "0.332"],
        ["2", "ogd", "0.3346", "0.335"],
        ["3", "ggt", "0.4000", ""],
    ]


@pytest.mark.parametrize("change", [{"rows": 100}, {"shuffle": 0}, {"grid": 9}, {"sketch_size": 5}])
def test_other_options_than_the_papers_are_said_to_be_other(change: dict[str, int]) -> None:
    rows = [row("ogd", 0.3)]
    note = "The paper's numbers are for all 32,561 rows in file order, sketch size 10 and 49 settings."
    assert note not in table.markdown(plan(), rows)
    assert note in table.markdown(plan(**change), rows)
    assert note not in table.markdown(plan(data="mine", **change), rows)


def test_the_papers_places_follow_from_its_losses() -> None:
    assert list(table.PAPER["a9a"])[:2] == ["adagrad", "s-adagrad"]
    for losses in table.PAPER.values():
        numbers = [float(loss) for loss in losses.values()]
        assert numbers == sorted(numbers)
        assert set(losses) == set(sweep.PAPER_LEARNERS)


def test_a_best_setting_at_the_edge_of_the_grid_is_marked() -> None:
    rows = [row("ogd", loss, eta) for loss, eta in ((0.5, 1e-3), (0.3, 1e-2), (0.4, 1e-1))]
    text = table.markdown(plan(), rows)
    assert "| 0.01 |" in text and "edge" not in text
    at_edge = table.markdown(plan(), rows[:2])
    assert "| 0.01 * |" in at_edge and "\n\\*: at the edge of the grid" in at_edge
    assert "edge" not in table.markdown(plan(), rows[1:2])  # one setting has no edges


def test_a_diverged_setting_is_a_row_with_inf(tmp_path: Path) -> None:
    digits = load("digits", rows=200)
    data = Dataset("huge", digits.X.double() * 1e160, digits.y)
    p = sweep.plan(data, learners=("ogd", "adagrad"), grid=3)
    assert sweep.run(p, data, tmp_path)
    results = sweep.results(p, tmp_path)
    rows = table.rows(p, results)
    assert [r.average_loss for r in rows if r.learner == "ogd"] == [float("inf")] * 3
    read = [json.loads(line) for line in table.jsonl(rows).splitlines()]
    assert [r["average_loss"] for r in read] == [r.average_loss for r in rows]
    fields = ["learner", "eta", "delta", "sketch_size", "rows", "average_loss", "error_rate", "seconds"]
    assert all(list(r) == fields for r in read)
    assert "| ogd | inf |" in table.markdown(p, rows)
    assert plot.average_losses(table.best_curves(p, results), title="").startswith(b"\x89PNG")


def test_one_diverged_setting_leaves_the_others_alone(tmp_path: Path) -> None:
    digits = load("digits", rows=200)
    data = Dataset(
        "large", digits.X.double() * 1e76, digits.y
    )  # eta = 1 leaves the numbers, eta = 1e-6 doesn't
    losses = {}
    for grid in (1, 3):
        p = sweep.plan(data, learners=("adagrad",), grid=grid)
        assert sweep.run(p, data, tmp_path / str(grid))
        losses[grid] = [r.average_loss for r in table.rows(p, sweep.results(p, tmp_path / str(grid)))]
    assert losses[3][1] == pytest.approx(losses[1][0], rel=1e-12)  # eta = 1e-3 in both


def test_curves_end_at_the_table() -> None:
    sums = sweep.oco.Sums(10, torch.tensor([3.0, 2.0, float("nan")]), torch.zeros(3))
    curve = torch.tensor([[0.5, 0.6, 0.1], [0.3, 0.2, float("nan")]])
    result = sweep.Result("ogd", torch.ones(3), torch.zeros(3), sums, [5, 10], curve, 1.0)
    (shares, losses) = table.best_curves(plan(rows=10), [result])["ogd"]
    assert shares == [0.5, 1.0]
    assert losses == pytest.approx([0.6, 0.2])

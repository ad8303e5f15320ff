"""The table of a sweep: a row for every setting, and the best of each learner, ranked as in Appendix A."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch

from sketchy.experiments.paper import GRID_POINTS, SKETCH_SIZE
from sketchy.experiments.sweep import Plan, Result

# The paper's average cumulative losses, for all rows in file order, sketch size 10 and 49 settings each.
PAPER = {
    "cifar10": {
        "rfd-son": "0.297", "s-adagrad": "0.297", "adagrad": "0.303", "ogd": "0.308", "ada-fd": "2.999",
        "fd-son": "6e6",
    },
    "gisette_scale": {
        "s-adagrad": "0.158", "rfd-son": "0.167", "ada-fd": "0.196", "adagrad": "0.209", "ogd": "0.224",
        "fd-son": "2.432",
    },
    "a9a": {
        "adagrad": "0.332", "s-adagrad": "0.333", "ogd": "0.335", "rfd-son": "0.335", "ada-fd": "0.354",
        "fd-son": "0.539",
    },
}  # fmt: skip
PAPER_ROWS = {"cifar10": 50_000, "gisette_scale": 6_000, "a9a": 32_561}


@dataclass(frozen=True)
class SettingResult:
    """One setting of one learner."""

    learner: str
    eta: float
    delta: float
    sketch_size: int
    rows: int
    average_loss: float  # inf if the setting diverged
    error_rate: float
    seconds: float  # the time of the learner's pass, divided by its number of settings


def rows(plan: Plan, results: Sequence[Result]) -> list[SettingResult]:
    """All settings of all learners, in the order of the plan and of the grids."""
    found = []
    for result in results:
        average = result.sums.average_loss
        losses = torch.where(average.isfinite(), average, torch.inf).tolist()
        errors, share = result.sums.error_rate.tolist(), result.seconds / len(losses)
        for eta, delta, loss, error in zip(
            result.eta.tolist(), result.delta.tolist(), losses, errors, strict=True
        ):
            found.append(
                SettingResult(result.learner, eta, delta, plan.sketch_size, plan.rows, loss, error, share)
            )
    return found


def jsonl(rows: Sequence[SettingResult]) -> str:
    """JSON lines, one object for each row. inf is written as Infinity, which Python's json can read."""
    return "".join(json.dumps(asdict(row)) + "\n" for row in rows)


def ranking(rows: Sequence[SettingResult]) -> list[SettingResult]:
    """The setting of each learner with the least average loss, the best learner first."""
    best: dict[str, SettingResult] = {}
    for row in rows:
        if row.learner not in best or row.average_loss < best[row.learner].average_loss:
            best[row.learner] = row
    return sorted(best.values(), key=lambda row: row.average_loss)


EDGE = "*: at the edge of the grid, so a value outside of it may be better"


def mark(value: float, tried: Sequence[float]) -> str:
    """A best value, with a star if it is the lowest or highest that was tried."""
    edge = len(set(tried)) > 1 and value in (min(tried), max(tried))
    return f"{value:.3g}{' *' if edge else ''}"


def note(cells: Sequence[Sequence[str]]) -> str:
    """What a star means, if there is one."""
    return EDGE if any(cell.endswith(" *") for line in cells for cell in line) else ""


def cells(plan: Plan, rows: Sequence[SettingResult]) -> list[list[str]]:
    """The table as text, the header first. With a column for the paper's numbers, if there are any."""
    paper = PAPER.get(plan.data)
    header = ["place", "learner", "average loss", "paper", "error rate", "eta", "delta", "diverged"]
    lines = []
    for place, row in enumerate(ranking(rows), 1):
        losses = [other.average_loss for other in rows if other.learner == row.learner]
        loss = f"{row.average_loss:.4f}" if row.average_loss < 1000 else f"{row.average_loss:.2e}"
        diverged = f"{losses.count(float('inf'))} of {len(losses)}"
        own = [other for other in rows if other.learner == row.learner]
        eta = mark(row.eta, [other.eta for other in own])
        settings = [f"{row.error_rate:.4f}", eta, mark(row.delta, [other.delta for other in own]), diverged]
        lines.append([str(place), row.learner, loss, paper.get(row.learner, "") if paper else "", *settings])
    return [line if paper else line[:3] + line[4:] for line in (header, *lines)]


def best_curves(plan: Plan, results: Sequence[Result]) -> dict[str, tuple[list[float], list[float]]]:
    """Curves of the best setting of each learner, the best first: share of the data, average loss so far."""
    best = {}
    for result in results:
        average = result.sums.average_loss
        setting = int(torch.where(average.isfinite(), average, torch.inf).argmin())
        shares = [rounds / plan.rows for rounds in result.curve_rounds]
        best[result.learner] = (shares, result.curve[:, setting].tolist())
    return dict(sorted(best.items(), key=lambda item: item[1][1][-1]))


def title(plan: Plan) -> str:
    """A title that describes the run."""
    order = "in file order" if plan.shuffle is None else f"shuffled with seed {plan.shuffle}"
    return (
        f"{plan.data}: average cumulative logistic loss of {plan.rows:,} rows {order}, {plan.dim} features, "
        f"sketch size {plan.sketch_size}, best of {plan.grid} settings"
    )


def comparable(plan: Plan) -> bool:
    """Whether the paper's numbers belong to these options, so that ours should equal them."""
    theirs = (PAPER_ROWS.get(plan.data), None, SKETCH_SIZE, GRID_POINTS)
    return (plan.rows, plan.shuffle, plan.sketch_size, plan.grid) == theirs


def markdown(plan: Plan, rows: Sequence[SettingResult]) -> str:
    """The text of ``table.md``."""
    header, *lines = cells(plan, rows)
    lines = [header, ["---"] * len(header), *lines]
    text = f"{title(plan)}\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines)
    if plan.data in PAPER and not comparable(plan):
        text += (
            f"\nThe paper's numbers are for all {PAPER_ROWS[plan.data]:,} rows in file order, sketch size "
            f"{SKETCH_SIZE} and {GRID_POINTS} settings.\n"
        )
    return text + (f"\n\\{note(lines)}\n" if note(lines) else "")

"""The first tables and picture that a reader sees: a few optimizers, their loss, memory and time.

Loss, state, steps and seconds are those of the character model; the time of a step is that of a GPT-2-small
layer. The README and docs/comparison.md show them.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.quality.front import X_NAMES, Front
from benchmarks.quality.front_plot import draw
from benchmarks.speed import step_table
from sketchy.analysis.markdown import table
from sketchy.experiments.quality import Variant
from sketchy.experiments.quality_table import cells

FIRST = (
    Variant("adamw"),
    Variant("torchao_adamw_8bit"),
    Variant("muon"),
    Variant("muon_8bit"),
    Variant("heavyball_soap"),
    Variant("sketchy_soap", 32),
    Variant("sketchy_soap_small", 32),
)
COLUMNS = ("optimizer", "loss", "state, kB", "steps to AdamW's loss", "seconds")  # of the task's own table
HEADER = (*COLUMNS, "GPT-2 layer: ms a step", "GPT-2 layer: state, MB")


def front(results: Path) -> Front:
    """The character model's results, of the few optimizers only."""
    found = Front.of("charlm", results / "quality-charlm.jsonl")
    return replace(found, found=[each for each in found.found if each.variant in FIRST])


def losses(results: Path, tasks: Sequence[str]) -> str:
    """Loss of each optimizer on each task, for those that ran on more than half of the tasks."""
    fronts = [Front.of(task, results / f"quality-{task}.jsonl") for task in tasks]
    loss = {
        (task, each.variant): cells(each, ["loss"])[0]
        for task, front in zip(tasks, fronts, strict=True)
        for each in front.found
        if each.records
    }
    everyone = dict.fromkeys(each.variant for front in fronts for each in front.found)
    lines = [[who.name, *(loss.get((task, who), "") for task in tasks)] for who in everyone]
    often = [line for line in lines if 2 * sum(map(bool, line[1:])) > len(tasks)]
    return table(["optimizer", *tasks], often)


def picture(results: Path) -> bytes:
    """Loss against memory, for a first look."""
    found = front(results)
    memory = X_NAMES[0]
    title = f"A small GPT on Tiny Shakespeare, loss after {found.steps} steps"
    return draw({memory: found.panels()[memory]}, title, height=3.6)


def timed(steps: Sequence[dict[str, Any]], variant: Variant) -> list[str]:
    """Milliseconds and megabytes on the GPT-2-small layer; empty where it was not timed."""
    rows = [row for row in steps if row["problem"] == "block"]
    for row in rows:
        if (row["optimizer"], row["rank"]) == (variant.optimizer, variant.rank) and row["error"] is None:
            found = step_table.cells(step_table.Results(rows), row)
            return [found["CPU ms a step"].partition(" ")[0], found["state, MB"]]
    return ["", ""]


def markdown(results: Path, steps: Sequence[dict[str, Any]]) -> str:
    """The table."""
    tuned = {each.variant: each for each in front(results).found}
    return table(HEADER, [cells(tuned[who], COLUMNS) + timed(steps, who) for who in FIRST])

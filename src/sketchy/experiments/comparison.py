"""Optimizers on one task, each with the best of the same learning rates: rows and picture of the demo."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from sketchy.experiments import plot
from sketchy.experiments.pool import Stopped
from sketchy.experiments.quality import best_rate
from sketchy.experiments.resume import finished
from sketchy.experiments.tasks import Task
from sketchy.experiments.training import Record, Training
from sketchy.optim import Shampoo, SketchyShampoo, SketchySOAP

Make = Callable[[nn.Module, float], Optimizer]


def contenders(rank: int) -> dict[str, Make]:
    """AdamW, dense Shampoo and the two sketched optimizers, with the same weight decay."""
    return {
        "AdamW": lambda model, lr: torch.optim.AdamW(model.parameters(), lr),
        "Shampoo": lambda model, lr: Shampoo(model.named_parameters(), lr),
        "SketchyShampoo": lambda model, lr: SketchyShampoo(model.named_parameters(), lr, rank=rank),
        "SketchySOAP": lambda model, lr: SketchySOAP(model.named_parameters(), lr, rank=rank),
    }


@dataclass(frozen=True)
class OptimizerResult:
    """One optimizer with its best learning rate; means over seeds."""

    optimizer: str
    rate: float
    loss: float  # final validation loss
    loss_spread: float  # standard deviation over seeds
    accuracy: float
    steps_to_first: float | None  # to reach the first optimizer's loss; None for the first, or if never
    bytes: int  # of optimizer state
    milliseconds: float  # of one optimizer step
    seconds: float  # of a run, without validation
    curve: tuple[tuple[int, float], ...]  # (step, mean validation loss)


@dataclass(frozen=True)
class Run:
    """One training run: with the task, this determines its record."""

    optimizer: str  # one of the contenders
    rank: int  # of the sketches
    rate: float
    seed: int
    steps: int


def runs(
    task: Task, planned: Sequence[Run], path: Path, *, stopped: Stopped = lambda: False
) -> Iterator[tuple[Run, Record]]:
    """Each run with its record, one at a time. Runs that ``path`` already holds are not repeated.

    When ``stopped`` returns True, the current run is dropped, and the iteration ends.
    """

    def train(run: Run) -> dict[str, Any] | None:
        make = contenders(run.rank)[run.optimizer]
        for record in Training(task, lambda model: make(model, run.rate), seed=run.seed, steps=run.steps):
            if stopped() and record.step < run.steps:
                return None
        return asdict(record)

    return finished(planned, path, train, read=Record.from_dict)


def rows(records: Sequence[tuple[Run, Record]]) -> list[OptimizerResult]:
    """Each optimizer with its best learning rate, by mean final loss. The first is the others' baseline."""
    found: list[OptimizerResult] = []
    for name in dict.fromkeys(run.optimizer for run, _ in records):
        by_rate: dict[float, list[Record]] = {}
        for run, record in records:
            if run.optimizer == name:
                by_rate.setdefault(run.rate, []).append(record)
        losses = {rate: {r.seed: r.loss for r in some} for rate, some in by_rate.items()}
        rate = best_rate(losses) or min(by_rate)  # all diverged: show the lowest rate
        target = found[0].loss if found else None
        found.append(_row(name, rate, by_rate[rate], target))
    return found


def _row(name: str, rate: float, records: Sequence[Record], target: float | None) -> OptimizerResult:
    losses = [record.loss for record in records]
    looks = zip(*(record.curve for record in records), strict=False)  # a diverged run has fewer
    reached = [None if target is None else record.steps_to(target) for record in records]
    steps = [step for step in reached if step is not None]
    return OptimizerResult(
        optimizer=name,
        rate=rate,
        loss=_mean(losses),
        loss_spread=math.sqrt(_mean([(loss - _mean(losses)) ** 2 for loss in losses])),
        accuracy=_mean([record.accuracy or 0.0 for record in records]),
        steps_to_first=_mean(steps) if len(steps) == len(records) else None,
        bytes=records[0].optimizer_bytes,
        milliseconds=_mean([1e3 * record.optimizer_seconds / max(1, record.step) for record in records]),
        seconds=_mean([record.seconds for record in records]),
        curve=tuple((look[0].step, _mean([x.loss for x in look])) for look in looks),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def picture(results: Sequence[OptimizerResult], *, title: str) -> bytes:
    """Validation loss against steps, one line for each optimizer."""
    curves = {}
    for row in results:
        steps, losses = zip(*row.curve, strict=True)
        curves[f"{row.optimizer}, {row.bytes / 1024:.0f} KiB"] = (steps, losses)
    return plot.training(curves, title=title, y="validation loss")

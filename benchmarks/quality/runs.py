"""Training runs on disk: a line for the budget that all were given, then one for each finished run."""

import json
import math
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from benchmarks.common.arguments import at_least
from benchmarks.quality.variants import Contender
from sketchy.experiments import tasks
from sketchy.experiments.pool import Report, Stopped
from sketchy.experiments.resume import append, rows, write
from sketchy.experiments.training import Look, Record, Training

FIRST_STEPS = 5  # after which it is known how long a run will take


@dataclass(frozen=True)
class Budget:
    """What every contender is given."""

    rates: int = 6  # on its grid
    more_rates: int = 3  # at most, beyond an end of the grid where the best one lies
    finalists: int = 2  # rates that run on all seeds; the best mean counts
    seeds: int = 3
    tuned_rank: int | None = (
        None  # the rank whose best rate all ranks of an optimizer run at; None: each its own
    )

    def __post_init__(self) -> None:
        at_least(1, rates=self.rates, finalists=self.finalists, seeds=self.seeds)
        at_least(0, more_rates=self.more_rates)


@dataclass(frozen=True)
class Run:
    """One training run; a line of the results once it has its record."""

    contender: Contender
    rate: float
    seed: int
    steps: int

    def __str__(self) -> str:
        return f"{self.contender}, rate {self.rate:g}, seed {self.seed}"


Results = dict[Run, Record]


def load(path: Path) -> Results:
    """All whole lines; one that was cut off while written is left out."""
    results: Results = {}
    for row in rows(path):
        if "optimizer" in row:
            record = Record.from_dict(row["record"])
            contender = Contender(row["optimizer"], row["rank"])
            results[Run(contender, row["rate"], record.seed, record.steps)] = record
    return results


def load_budget(path: Path) -> Budget:
    """The last one that was asked for."""
    budgets = [Budget(**row["budget"]) for row in rows(path) if "budget" in row]
    return budgets[-1] if budgets else Budget()


def save(path: Path, results: Results, budget: Budget | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [{"budget": asdict(budget or Budget())}, *(line(run, record) for run, record in results.items())]
    write(path, "".join(f"{json.dumps(row)}\n" for row in lines))


def line(run: Run, record: Record) -> dict[str, Any]:
    names = {"optimizer": run.contender.optimizer, "rank": run.contender.rank, "rate": run.rate}
    about = {"loss": record.loss, "commit": record.commit, "threads": record.threads}
    return {**names, **about, "record": asdict(record)}


@cache
def task_of_this_process(name: str) -> tasks.Task:
    return tasks.load(name)


@dataclass(frozen=True)
class Work:
    """Does a named run and appends its line; it is sent to other processes."""

    task: str
    path: Path
    runs: dict[str, Run]
    limit: float  # seconds
    commit: str

    def __call__(self, name: str, report: Report, stopped: Stopped) -> bool:
        """Whether the run came to its end; one that raised or would take too long did, with its message."""
        run = self.runs[name]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of peers
            record = self._record(run, partial(report, name), stopped)
        if record is None:
            return False
        append(self.path, line(run, replace(record, commit=self.commit)))
        report(name, run.steps)
        return True

    def _record(self, run: Run, report: Callable[[int], None], stopped: Stopped) -> Record | None:
        task = task_of_this_process(self.task)
        record = Record(task.name, run.seed, run.steps)
        try:
            build = partial(run.contender.build, rate=run.rate)
            for record in Training(task, build, steps=run.steps, seed=run.seed):
                report(record.step)
                if stopped():
                    return None
                expected = record.seconds / record.step * run.steps
                if record.step == FIRST_STEPS and expected > self.limit:
                    raise TimeoutError(f"would take {expected:.0f} s, more than {self.limit:g}")
        except Exception as error:  # whatever a peer raises
            message = f"{type(error).__name__}: {error}".split("\n")[0][:200]
            return replace(
                record, error=message, diverged=True, curve=[*record.curve, Look(record.step, math.inf, None)]
            )
        return record

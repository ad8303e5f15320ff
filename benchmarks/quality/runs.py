"""Do training runs and keep them: a line for the budget of all optimizers, then one for each finished run."""

import json
import math
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path

from benchmarks.common.arguments import at_least
from benchmarks.quality.variants import build
from sketchy.experiments import tasks
from sketchy.experiments.pool import Report, Stopped
from sketchy.experiments.quality import Results, Run, line
from sketchy.experiments.resume import append, rows, write
from sketchy.experiments.training import Look, Record, Training

LIMIT = 600.0  # seconds of a run
LIMITS = {"charlm_long": 3600.0, "gpt256": 3600.0, "gpt10m": 14400.0}  # of tasks whose runs are longer
FIRST_STEPS = 5  # after these the time of the whole run is predicted


@dataclass(frozen=True)
class Budget:
    """What every optimizer is given."""

    rates: int = 6  # learning rates of the grid
    more_rates: int = 3  # at most so many more, if the best one is at an end of the grid
    finalists: int = 2  # learning rates that run on all seeds
    seeds: int = 3
    tuned_rank: int | None = None  # tune at this rank, and run other ranks at its best rate; None: tune each
    rate_factor: float = 1.0  # of the centres of all grids, for tasks with other best rates

    def __post_init__(self) -> None:
        at_least(1, rates=self.rates, finalists=self.finalists, seeds=self.seeds)
        at_least(0, more_rates=self.more_rates)


def load_budget(path: Path) -> Budget:
    """The budget of the last command."""
    budgets = [Budget(**row["budget"]) for row in rows(path) if "budget" in row]
    return budgets[-1] if budgets else Budget()


def save(path: Path, results: Results, budget: Budget | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [{"budget": asdict(budget or Budget())}, *(line(run, record) for run, record in results.items())]
    write(path, "".join(f"{json.dumps(row)}\n" for row in lines))


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
        """Whether the run is finished. One that raised or would take too long is, with its error message."""
        run = self.runs[name]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # other packages' warnings
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
            optimizer = partial(build, run.variant, rate=run.rate)
            for record in Training(task, optimizer, steps=run.steps, seed=run.seed):
                report(record.step)
                if stopped():
                    return None
                expected = record.seconds / record.step * run.steps
                if record.step == FIRST_STEPS and expected > self.limit:
                    raise TimeoutError(f"would take {expected:.0f} s, more than {self.limit:g}")
        except Exception as error:  # other packages raise all kinds
            message = f"{type(error).__name__}: {error}".split("\n")[0][:200]
            return replace(
                record, error=message, diverged=True, curve=[*record.curve, Look(record.step, math.inf, None)]
            )
        return record

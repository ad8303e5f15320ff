"""Does AdamW's learning rate carry over? Ours at the rate tuned for AdamW, and where their own best one lies.

    python -m benchmarks.quality.rate_transfer [--rank 64]

Prints, in Markdown, what the runs in benchmarks/results say. Rates were tried in factors of two, and a best
one between two of them is found by the parabola through the best and its neighbours, in log rate. How well
that is known is said by leaving out one seed after the other. Rates of AdamW that are not worse than its best
one by two standard errors tie with it, and ours are shown at each.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from benchmarks.common.markdown import table
from benchmarks.common.results import RESULTS
from benchmarks.quality.runs import load
from benchmarks.quality.table import around
from benchmarks.quality.variants import ADAMW, RATIO, Contender
from sketchy.experiments import tasks

OURS = ("sketchy_soap", "sketchy_shampoo")
HEADER = (
    "task", "optimizer", "at AdamW's rate", "best of those tried", "best rate / AdamW's", "seeds",
)  # fmt: skip

Sweep = Mapping[float, Mapping[int, float]]  # loss by rate and seed


@dataclass(frozen=True)
class Options:
    """Compare the best rates of the sketched optimizers with AdamW's."""

    rank: int = 64
    """Of ours."""
    results: Path = RESULTS
    """Where the runs of all tasks are."""


def sweeps(path: Path, contender: Contender) -> Sweep:
    found: dict[float, dict[int, float]] = {}
    for run, record in load(path).items():
        if run.contender == contender:
            found.setdefault(run.rate, {})[run.seed] = record.loss
    return found


def best_tried(sweep: Sweep, seeds: int = 2) -> float:
    """The rate with the lowest mean, of those that ran on several seeds: one alone may be lucky."""
    several = {rate: losses for rate, losses in sweep.items() if len(losses) >= seeds}
    return min(several or sweep, key=lambda rate: statistics.mean(sweep[rate].values()))


def ties(sweep: Sweep) -> list[float]:
    """Other rates that may be the best: worse by less than two standard errors, over the seeds of both."""
    best = best_tried(sweep)

    def may_be_best(rate: float) -> bool:
        worse = [loss - sweep[best][seed] for seed, loss in sweep[rate].items() if seed in sweep[best]]
        if rate == best or len(worse) < 3 or not all(map(math.isfinite, worse)):
            return False
        return statistics.mean(worse) < 2 * statistics.stdev(worse) / math.sqrt(len(worse))

    return [rate for rate in sorted(sweep) if may_be_best(rate)]


def vertex(low: float, middle: float, high: float) -> float:
    """Where a parabola through three losses, one step apart, is lowest, in steps from the middle.

    >>> vertex(2.0, 1.0, 2.0), vertex(1.0, 1.0, 3.0), vertex(3.0, 1.0, 0.0)
    (0.0, -0.5, 1.0)
    """
    bend = low - 2 * middle + high
    if bend <= 0:
        return 0.0 if low == high else math.copysign(1.0, low - high)
    return max(-1.0, min(1.0, (low - high) / (2 * bend)))


@dataclass(frozen=True)
class Best:
    """The best rate, as if all had been tried, and the standard error of its logarithm."""

    rate: float
    error: float  # by the jackknife; NaN where there is one seed only


def best_between(sweep: Sweep) -> Best | None:
    """By the parabola through the best rate and its neighbours; None where one of these was not tried.

    Seeds differ by more than rates do: only those count that came to an end at all three.
    """
    best = best_tried(sweep)
    near = [sweep.get(rate, {}) for rate in (best / RATIO, best, best * RATIO)]
    ended = ({seed for seed, loss in losses.items() if math.isfinite(loss)} for losses in near)
    seeds = set.intersection(*ended)
    if not seeds:
        return None

    def place(seeds: set[int]) -> float:
        return vertex(*(statistics.mean(losses[seed] for seed in seeds) for losses in near))

    n = len(seeds)
    error = math.nan
    if n > 1:
        error = math.sqrt((n - 1) * statistics.pvariance(place(seeds - {seed}) for seed in seeds))
    return Best(best * RATIO ** place(seeds), math.log(RATIO) * error)


def ratio(ours: Best | None, adamw: Best | None) -> str:
    """With its standard error as a factor.

    >>> ratio(Best(0.008, 0.3), Best(0.004, 0.4)), ratio(Best(0.008, math.nan), Best(0.004, 0.4))
    ('2.00 (×/÷ 1.65)', '2.00')
    """
    if ours is None or adamw is None:
        return "a neighbour is missing"
    error = math.hypot(ours.error, adamw.error)
    return f"{ours.rate / adamw.rate:.2f}" + (f" (×/÷ {math.exp(error):.2f})" if math.isfinite(error) else "")


def rows(path: Path, task: str, rank: int) -> list[list[str]]:
    """AdamW's line, then ours."""
    adamw = sweeps(path, ADAMW)
    if not adamw:
        return []
    base, tied, adamw_between = best_tried(adamw), ties(adamw), best_between(adamw)
    digits = 3 if min(adamw[base].values()) < 10 else 1

    def shown(sweep: Sweep, rate: float) -> str:
        return around(list(sweep[rate].values()), digits) if rate in sweep else ""

    lines = []
    for contender in (ADAMW, *(Contender(name, rank) for name in OURS)):
        if sweep := sweeps(path, contender):
            best, between = best_tried(sweep), best_between(sweep)
            at = [shown(sweep, base), *(f"{shown(sweep, rate) or 'not run'} at {rate:g}" for rate in tied)]
            over = [ratio(between, adamw_between)] if contender != ADAMW else []
            if over and between is not None:
                over += [f"{between.rate / rate:.2f} of {rate:g}" for rate in tied]
            tried = f"{shown(sweep, best)} at {best:g}"
            lines.append([task, str(contender), ", ".join(at), tried, ", ".join(over), str(len(sweep[best]))])
    return lines


def markdown(results: Path, rank: int) -> str:
    lines = [line for task in tasks.TASKS for line in rows(results / f"quality-{task}.jsonl", task, rank)]
    if not lines:
        raise SystemExit(
            f"benchmarks.quality.rate_transfer: no runs of AdamW in {results}; benchmarks.quality makes them"
        )
    return table(HEADER, lines, left=("task", "optimizer"))


def main(arguments: Sequence[str] | None = None) -> None:
    options = tyro.cli(Options, prog="python -m benchmarks.quality.rate_transfer", args=arguments)
    print(markdown(options.results, options.rank))


if __name__ == "__main__":
    main()

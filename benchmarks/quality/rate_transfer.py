"""Compare our optimizers at AdamW's best learning rate with themselves at their own best one.

    python -m benchmarks.quality.rate_transfer [--rank 32]

Prints a Markdown table of the runs in benchmarks/results. Rates were tried in factors of two. A best rate
between them is estimated by a parabola in log rate, through the best rate and its neighbours. Its standard
error comes from leaving out one seed after the other (jackknife). A rate of AdamW ties with its best one if
it is worse by less than two standard errors; ours are shown at each of these.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import tyro

from benchmarks.common.results import RESULTS
from benchmarks.quality.variants import RATIO
from sketchy.analysis.markdown import table
from sketchy.experiments import tasks
from sketchy.experiments.quality import ADAMW, Losses, Variant, best_rate, load, losses
from sketchy.experiments.quality_table import around

OURS = ("sketchy_soap", "sketchy_shampoo")
HEADER = (
    "task", "optimizer", "at AdamW's rate", "best of those tried", "best rate / AdamW's", "seeds",
)  # fmt: skip


@dataclass(frozen=True)
class Options:
    """Compare the best learning rates of the sketched optimizers with AdamW's."""

    rank: int = 32
    """The rank of the sketched optimizers."""
    results: Path = RESULTS
    """The directory of the runs of all tasks."""


def ties(losses: Losses) -> list[float]:
    """Other rates that may be the best: worse by less than two standard errors, over the seeds of both."""
    best = best_rate(losses)
    if best is None:
        return []

    def may_be_best(rate: float) -> bool:
        worse = [loss - losses[best][seed] for seed, loss in losses[rate].items() if seed in losses[best]]
        if rate == best or len(worse) < 3 or not all(map(math.isfinite, worse)):
            return False
        return statistics.mean(worse) < 2 * statistics.stdev(worse) / math.sqrt(len(worse))

    return [rate for rate in sorted(losses) if may_be_best(rate)]


def vertex(low: float, middle: float, high: float) -> float:
    """The minimum of a parabola through three losses at -1, 0 and 1, at most 1 from the middle.

    >>> vertex(2.0, 1.0, 2.0), vertex(1.0, 1.0, 3.0), vertex(3.0, 1.0, 0.0)
    (0.0, -0.5, 1.0)
    """
    bend = low - 2 * middle + high
    if bend <= 0:
        return 0.0 if low == high else math.copysign(1.0, low - high)
    return max(-1.0, min(1.0, (low - high) / (2 * bend)))


@dataclass(frozen=True)
class Best:
    """The estimated best rate, and the standard error of its logarithm."""

    rate: float
    error: float  # NaN with one seed


def best_between(losses: Losses) -> Best | None:
    """The minimum of a parabola through the best rate and its neighbours; None if one of these was not tried.

    Seeds differ by more than rates do, so only those count that did not diverge at any of the three.
    """
    best = best_rate(losses)
    if best is None:
        return None
    near = [losses.get(rate, {}) for rate in (best / RATIO, best, best * RATIO)]
    ended = ({seed for seed, loss in some.items() if math.isfinite(loss)} for some in near)
    seeds = set.intersection(*ended)
    if not seeds:
        return None

    def place(seeds: set[int]) -> float:
        return vertex(*(statistics.mean(some[seed] for seed in seeds) for some in near))

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
    """AdamW's line, then ours; none if ours did not run at this rank."""
    results = load(path)
    adamw = losses(results, ADAMW)
    base, tied, adamw_between = best_rate(adamw), ties(adamw), best_between(adamw)
    if base is None:
        return []
    digits = 3 if min(adamw[base].values()) < 10 else 1

    def shown(found: Losses, rate: float) -> str:
        return around(list(found.get(rate, {}).values()), digits)

    lines = []
    for variant in (ADAMW, *(Variant(name, rank) for name in OURS)):
        found = losses(results, variant)
        if (best := best_rate(found)) is not None:
            between = best_between(found)
            at = [shown(found, base), *(f"{shown(found, rate) or 'not run'} at {rate:g}" for rate in tied)]
            over = [ratio(between, adamw_between)] if variant != ADAMW else []
            if over and between is not None:
                over += [f"{between.rate / rate:.2f} of {rate:g}" for rate in tied]
            tried = f"{shown(found, best)} at {best:g}"
            lines.append([task, variant.name, ", ".join(at), tried, ", ".join(over), str(len(found[best]))])
    return lines if len(lines) > 1 else []


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

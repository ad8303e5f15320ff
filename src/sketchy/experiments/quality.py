"""Read the training runs of `benchmarks.quality`, and choose the learning rate to judge each optimizer at.

`quality_table` shows them, in the docs and in `sketchy report`.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sketchy.experiments import names
from sketchy.experiments.training import Look, Record
from sketchy.files import read_rows

ENOUGH_SEEDS = 3
Z = 3.09  # of the normal distribution, one-sided, p = 0.001
Losses = Mapping[float, Mapping[int, float]]  # by learning rate and seed


@dataclass(frozen=True)
class Variant:
    """An optimizer, at a rank if it takes one."""

    optimizer: str
    rank: int | None = None

    def __str__(self) -> str:
        return self.optimizer if self.rank is None else f"{self.optimizer}, rank {self.rank}"

    @property
    def name(self) -> str:
        """For readers."""
        return names.shown(self.optimizer, self.rank)

    @property
    def sketched(self) -> bool:
        """Whether it is one of ours, at any options: their names begin like this."""
        return self.optimizer.startswith("sketchy_")


ADAMW = Variant("adamw")


@dataclass(frozen=True)
class Run:
    """One training run."""

    variant: Variant
    rate: float
    seed: int
    steps: int

    def __str__(self) -> str:
        return f"{self.variant}, rate {self.rate:g}, seed {self.seed}"


Results = dict[Run, Record]


def load(path: Path) -> Results:
    """All finished runs of a file. A last line that was cut off is left out."""
    if not path.exists():
        return {}
    return dict(found for found in read_rows(path, _parsed) if found)


def parse(rows: Iterable[dict[str, Any]]) -> Results:
    """Runs from the lines of a file; other lines are ignored."""
    return dict(found for row in rows if (found := _parsed(row)))


def _parsed(row: dict[str, Any]) -> tuple[Run, Record] | None:
    if "optimizer" not in row:
        return None
    record = Record.from_dict(row["record"])
    return Run(Variant(row["optimizer"], row["rank"]), row["rate"], record.seed, record.steps), record


def line(run: Run, record: Record) -> dict[str, Any]:
    """The line of a run, which `parse` reads."""
    names = {"optimizer": run.variant.optimizer, "rank": run.variant.rank, "rate": run.rate}
    about = {"loss": record.loss, "commit": record.commit, "threads": record.threads}
    return {**names, **about, "record": asdict(record)}


def of_usual_length(results: Results) -> Results:
    """The runs with the most common number of steps: longer and shorter ones can't be compared with them."""
    if not results:
        return {}
    steps = statistics.mode(run.steps for run in results)
    return {run: record for run, record in results.items() if run.steps == steps}


def losses(results: Results, variant: Variant) -> dict[float, dict[int, float]]:
    """The final losses of a variant."""
    found: dict[float, dict[int, float]] = {}
    for run, record in results.items():
        if run.variant == variant:
            found.setdefault(run.rate, {})[run.seed] = math.inf if record.diverged else record.loss
    return found


def means(losses: Losses) -> dict[float, float]:
    """Mean loss by learning rate, over all seeds that ran at the rate; infinite if one of them diverged."""
    return {rate: statistics.mean(losses[rate].values()) for rate in sorted(losses)}


def best_rate(losses: Losses) -> float | None:
    """The learning rate that a variant is judged at: the one with the lowest mean loss over all its seeds.

    Only rates that ran on at least three seeds can win, because the best single run is often a lucky one.
    Where no rate has three seeds, those with the most seeds can win. None if all of these diverged.

    Rates may differ in their number of seeds. A mean of three is noisier than a mean of eight, so the minimum
    favours it a little. The two other rules that we considered are worse:

    - Compare the same few seeds of every rate. This ignores most of what was measured. Three seeds of AdamW
      on the autoencoder prefer 0.008, with a mean of 183.6; over eight seeds this rate has a mean of 192.7,
      and 0.002 is better.
    - Compare only the rates with the most seeds. Then whoever chose where to run more seeds also chose the
      winner.

    Every rate in the file counts. That includes AdamW's best rate, at which the sketched optimizers run for
    comparison. This may be one more try for them, so tables show the number of rates that were tried.

    >>> best_rate({0.1: {0: 1.0}, 0.2: {0: 2.0, 1: 2.0, 2: 2.0}, 0.4: {0: 1.5, 1: 1.5, 2: 3.5}})
    0.2
    """
    enough = min(ENOUGH_SEEDS, max(map(len, losses.values()), default=0))
    candidates = {
        rate: mean
        for rate, mean in means(losses).items()
        if len(losses[rate]) >= enough and math.isfinite(mean)
    }
    return min(candidates, key=candidates.__getitem__, default=None)


def steps_to_target(
    curves: Sequence[Sequence[Look]], target: float, sigma: float | None = None
) -> int | None:
    """The first look at which the mean of n seeds is surely below the target; None if there is none.

    This is the test of the NanoGPT speed runs: (target - mean) √n ≥ 3.09 σ, so p < 0.001 if σ is known. There
    σ is known from many runs. Here it is the standard deviation of the seeds at this look, because it differs
    between optimizers and steps. From three seeds it is a rough estimate, and the test is as strict as
    Student's at p < 0.05; from eight, at p < 0.01. One seed has no standard deviation: without ``sigma`` the
    answer is None. Nothing is interpolated, and the target counts as exact.

    The means of these two seeds are 2.0, 1.5 and 1.4, with standard deviations of 0, 0.14 and 0.01:

    >>> seeds = ((2.0, 1.6, 1.41), (2.0, 1.4, 1.39))
    >>> curves = [[Look(10 * i, loss, None) for i, loss in enumerate(losses)] for losses in seeds]
    >>> steps_to_target(curves, 1.9), steps_to_target(curves, 1.6), steps_to_target(curves, 1.4)
    (10, 20, None)
    >>> steps_to_target(curves[:1], 1.7), steps_to_target(curves[:1], 1.7, sigma=0.03)
    (None, 10)
    """
    n = len(curves)
    if n == 0 or (n == 1 and sigma is None):
        return None
    found = [{look.step: look.loss for look in curve} for curve in curves]
    for step in found[0]:
        if not all(step in each for each in found):  # validated less often, or diverged before
            continue
        losses = [each[step] for each in found]
        if all(map(math.isfinite, losses)):
            spread = statistics.stdev(losses) if sigma is None else sigma
            below = target - statistics.mean(losses)
            if below > 0 and below * math.sqrt(n) >= Z * spread:
                return step
    return None


def differences(records: Iterable[Record], base: Iterable[Record]) -> list[float]:
    """How much higher the losses are than those of ``base``, over the seeds that both ran."""
    losses = {record.seed: record.loss for record in base}
    return [record.loss - losses[record.seed] for record in records if record.seed in losses]


@dataclass(frozen=True)
class Tuned:
    """A variant at its best learning rate."""

    variant: Variant
    tried: Mapping[float, float]  # mean loss by learning rate
    rate: float | None  # None if it failed or diverged at every rate
    records: Sequence[Record]  # at this rate, one for each seed
    at_adamws_rate: Sequence[Record]  # for the sketched optimizers
    adamw: Sequence[Record]  # AdamW at its best rate
    error: str = ""  # why there is no rate

    @property
    def at_an_end(self) -> bool:
        """Whether the best rate is the lowest or highest that was tried: a better one may lie beyond."""
        return len(self.tried) > 1 and self.rate in (min(self.tried), max(self.tried))

    @property
    def losses(self) -> list[float]:
        return [record.loss for record in self.records]

    @property
    def loss(self) -> float:
        return statistics.mean(self.losses) if self.records else math.inf

    @property
    def minus_adamw(self) -> float | None:
        """The mean difference from AdamW's loss, over the seeds that both ran."""
        found = differences(self.records, self.adamw)
        return statistics.mean(found) if found else None

    @property
    def adamws_loss(self) -> float:
        return statistics.mean(record.loss for record in self.adamw) if self.adamw else -math.inf

    @property
    def steps_surely_to_adamws_loss(self) -> int | None:
        """See `steps_to_target`."""
        return steps_to_target([record.curve for record in self.records], self.adamws_loss)

    @property
    def steps_to_adamws_loss(self) -> float | None:
        """Mean over seeds; None if one of them never reached it."""
        steps = [record.steps_to(self.adamws_loss) for record in self.records]
        reached = [step for step in steps if step is not None]
        return statistics.mean(reached) if reached and len(reached) == len(steps) else None

    @property
    def bytes(self) -> int:
        return self.records[0].optimizer_bytes

    @property
    def seconds(self) -> float:
        """CPU seconds of a run, as if its first step, which may compile, took as long as the others.

        Old records have no CPU time; their wall time is used.
        """
        return statistics.median(
            r.cpu_seconds * r.step / max(1, r.step - 1) or r.seconds for r in self.records
        )

    @property
    def share_in_step(self) -> float:
        """The share of a run's time that is spent in the optimizer's step()."""
        return statistics.median(r.optimizer_seconds / (r.seconds or 1.0) for r in self.records)

    @property
    def commits(self) -> list[str]:
        return sorted({record.commit or "unknown" for record in self.records})


def tuned(results: Results) -> list[Tuned]:
    """Every variant at its best rate, in the order of the file."""
    results = of_usual_length(results)

    def at(variant: Variant, rate: float | None) -> list[Record]:
        found = {run.seed: r for run, r in results.items() if (run.variant, run.rate) == (variant, rate)}
        return [found[seed] for seed in sorted(found)]

    base = best_rate(losses(results, ADAMW))
    found = []
    for variant in dict.fromkeys(run.variant for run in results):
        tried = losses(results, variant)
        rate = best_rate(tried)
        errors = (record.error for run, record in results.items() if run.variant == variant)
        found.append(
            Tuned(
                variant,
                tried=means(tried),
                rate=rate,
                records=at(variant, rate),
                at_adamws_rate=at(variant, base) if variant.sketched else [],
                adamw=at(ADAMW, base),
                error="" if rate is not None else next(filter(None, errors), "diverged"),
            )
        )
    return found

"""What finished runs say: the rate that each contender is judged at, and how it did there."""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.quality.runs import Budget, Results, Run
from benchmarks.quality.variants import ADAMW, Contender, beyond, rates
from sketchy.experiments.training import Record

Wanted = tuple[Contender, float, int]  # who runs at which rate with which seed


@dataclass(frozen=True)
class Tuning:
    """The runs of one length, looked at under one budget."""

    results: Results
    steps: int
    budget: Budget

    def leader(self, contender: Contender) -> Contender:
        """Whose rate it runs at: its own, unless ranks share the rate of one of them."""
        rank = self.budget.tuned_rank
        return replace(contender, rank=rank) if rank is not None and contender.rank is not None else contender

    def grid(self, contender: Contender) -> list[float]:
        leader = self.leader(contender)
        if leader == contender:
            return rates(contender.optimizer, self.budget.rates)
        best = self.best(leader)
        return [] if best is None else [best]

    def tried(self, contender: Contender) -> dict[float, float]:
        """Loss by rate, of seed 0, on the grid and beyond: what the rate is chosen by.

        Not AdamW's rate where that lies elsewhere: it would be one more try for the sketched ones alone.
        """
        runs = {rate: self._run(contender, rate, 0) for rate in self.grid(contender)}
        tried = {rate: self.results[run].loss for rate, run in runs.items() if run in self.results}
        for _ in range(self.budget.more_rates):
            more = beyond(tried)
            if more is not None and (run := self._run(contender, more, 0)) in self.results:
                tried[more] = self.results[run].loss
        return tried

    def finalists(self, contender: Contender) -> list[float]:
        """The best rates of seed 0, which run on all seeds; none of them diverged."""
        tried = {rate: loss for rate, loss in self.tried(contender).items() if math.isfinite(loss)}
        return sorted(tried, key=tried.__getitem__)[: self.budget.finalists]

    def best(self, contender: Contender) -> float | None:
        """By the mean over seeds: the best rate of one seed may be at the edge of divergence."""

        def mean(rate: float) -> float:
            return statistics.mean(record.loss for record in self.records(contender, rate))

        return min(self.finalists(contender), key=mean, default=None)

    def at_an_end(self, contender: Contender) -> bool:
        """Whether the best rate is the lowest or highest that was tried: a better one may lie beyond."""
        tried = self.tried(contender)
        return len(tried) > 1 and self.best(contender) in (min(tried), max(tried))

    def records(self, contender: Contender, rate: float) -> list[Record]:
        """Of all seeds that were asked for."""
        runs = (self._run(contender, rate, seed) for seed in range(self.budget.seeds))
        return [self.results[run] for run in runs if run in self.results]

    def wanted(self, compared: Sequence[Contender]) -> Iterator[tuple[str, list[Wanted]]]:
        """What to run next, stage by stage; the first stage that still misses runs is the one to do."""
        leaders = [c for c in compared if self.leader(c) == c]
        followers = [c for c in compared if self.leader(c) != c]
        seeds = range(1, self.budget.seeds)
        for group in (leaders, followers):
            yield "grid", [(c, rate, 0) for c in group for rate in self.grid(c)]
            yield "rates beyond the grid", [(c, rate, 0) for c in group for rate in self._more(c)]
            finals = [(c, rate) for c in group for rate in self.finalists(c)]
            yield "seeds at the best rates", [(c, rate, seed) for c, rate in finals for seed in seeds]
        if (rate := self.best(ADAMW)) is not None:
            ours = [c for c in leaders if c.sketched]
            yield "at AdamW's rate", [(c, rate, seed) for c in ours for seed in (0, *seeds)]

    def missing(self, compared: Sequence[Contender]) -> tuple[str, list[Run]]:
        """The next stage and its runs; no runs when all is done."""
        for stage, wanted in self.wanted(compared):
            runs = [self._run(*each) for each in wanted]
            if missing := [run for run in dict.fromkeys(runs) if run not in self.results]:
                return stage, missing
        return "done", []

    def _more(self, contender: Contender) -> list[float]:
        """Nothing for one that raised at every rate."""
        tried, grid = self.tried(contender), self.grid(contender)
        raised = all(self.results[self._run(contender, rate, 0)].error for rate in tried)
        more = None if raised or len(tried) >= len(grid) + self.budget.more_rates else beyond(tried)
        return [] if more is None else [more]

    def _run(self, contender: Contender, rate: float, seed: int) -> Run:
        return Run(contender, rate, seed, self.steps)


@dataclass(frozen=True)
class Row:
    """One contender at its best rate."""

    contender: Contender
    tried: int  # rates
    rate: float | None  # None where no run came to its end
    at_an_end: bool
    records: list[Record]  # one a seed
    transfer: list[Record]  # of ours, at AdamW's best rate
    goal: float  # AdamW's final loss, -inf where there is none
    error: str

    @property
    def losses(self) -> list[float]:
        return [record.loss for record in self.records]

    @property
    def steps_to_goal(self) -> float | None:
        """Mean over seeds; None if one of them never got there."""
        steps = [record.steps_to(self.goal) for record in self.records]
        reached = [step for step in steps if step is not None]
        return statistics.mean(reached) if reached and len(reached) == len(steps) else None

    @property
    def bytes(self) -> int:
        return self.records[0].optimizer_bytes

    @property
    def seconds(self) -> float:
        """CPU seconds of a run, looks aside and each step like those after the first; of old runs, wall."""
        return statistics.median(
            r.cpu_seconds * r.step / max(1, r.step - 1) or r.seconds for r in self.records
        )

    @property
    def share_in_step(self) -> float:
        return statistics.median(
            record.optimizer_seconds / (record.seconds or 1.0) for record in self.records
        )

    @property
    def commits(self) -> list[str]:
        return sorted({record.commit or "unknown" for record in self.records})


def rows(tuning: Tuning, compared: Sequence[Contender]) -> list[Row]:
    """A row for every contender that has runs."""
    base = tuning.best(ADAMW)
    goal = -math.inf if base is None else statistics.mean(r.loss for r in tuning.records(ADAMW, base))
    found = []
    for contender in compared:
        if not (tried := tuning.tried(contender)):
            continue
        best = tuning.best(contender)
        records = [] if best is None else tuning.records(contender, best)
        errors = [tuning.results[tuning._run(contender, rate, 0)].error for rate in tried]
        found.append(
            Row(
                contender,
                tried=len(tried),
                rate=best,
                at_an_end=best is not None and tuning.at_an_end(contender),
                records=records,
                transfer=tuning.records(contender, base) if base is not None and contender.sketched else [],
                goal=goal,
                error="" if records else next(filter(None, errors), "diverged at every rate"),
            )
        )
    return found

"""Which runs are still missing until every optimizer is tuned alike."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from benchmarks.quality.runs import Budget
from benchmarks.quality.variants import beyond, rates
from sketchy.experiments.quality import ADAMW, Results, Run, Variant, best_rate, losses

Wanted = tuple[Variant, float, int]  # variant, learning rate, seed


@dataclass(frozen=True)
class Tuning:
    """The finished runs of one length, and the budget that each optimizer is given."""

    results: Results
    steps: int
    budget: Budget
    centre: float | None = None  # of everyone's grid; None: each has its own

    def leader(self, variant: Variant) -> Variant:
        """The variant whose best rate this one runs at: itself, or its optimizer at the tuned rank."""
        rank = self.budget.tuned_rank
        return replace(variant, rank=rank) if rank is not None and variant.rank is not None else variant

    def grid(self, variant: Variant) -> list[float]:
        leader = self.leader(variant)
        if leader == variant:
            return rates(variant.optimizer, self.budget.rates, self.centre)
        best = self.best(leader)
        return [] if best is None else [best]

    def tried(self, variant: Variant) -> dict[float, float]:
        """Loss of seed 0 by learning rate, on the grid and beyond its ends.

        Runs at other rates don't decide where to go on, so everyone gets the same number of tries.
        """
        runs = {rate: self._run(variant, rate, 0) for rate in self.grid(variant)}
        tried = {rate: self.results[run].loss for rate, run in runs.items() if run in self.results}
        for _ in range(self.budget.more_rates):
            more = beyond(tried)
            if more is not None and (run := self._run(variant, more, 0)) in self.results:
                tried[more] = self.results[run].loss
        return tried

    def finalists(self, variant: Variant) -> list[float]:
        """The best rates of seed 0 that did not diverge. They run on all seeds."""
        tried = {rate: loss for rate, loss in self.tried(variant).items() if math.isfinite(loss)}
        return sorted(tried, key=tried.__getitem__)[: self.budget.finalists]

    def best(self, variant: Variant) -> float | None:
        same_length = {run: record for run, record in self.results.items() if run.steps == self.steps}
        return best_rate(losses(same_length, variant))

    def wanted(self, compared: Sequence[Variant]) -> Iterator[tuple[str, list[Wanted]]]:
        """All runs, stage by stage. A stage depends on the results of those before it."""
        leaders = [v for v in compared if self.leader(v) == v]
        followers = [v for v in compared if self.leader(v) != v]
        seeds = range(1, self.budget.seeds)
        for group in (leaders, followers):
            yield "grid", [(v, rate, 0) for v in group for rate in self.grid(v)]
            yield "rates beyond the grid", [(v, rate, 0) for v in group for rate in self._more(v)]
            finals = [(v, rate) for v in group for rate in self.finalists(v)]
            yield "seeds at the best rates", [(v, rate, seed) for v, rate in finals for seed in seeds]
        if (rate := self.best(ADAMW)) is not None:
            ours = [v for v in leaders if v.sketched]
            yield "at AdamW's rate", [(v, rate, seed) for v in ours for seed in (0, *seeds)]

    def missing(self, compared: Sequence[Variant]) -> tuple[str, list[Run]]:
        """The first stage with missing runs, and these runs; none when all is done."""
        for stage, wanted in self.wanted(compared):
            runs = [self._run(*each) for each in wanted]
            if missing := [run for run in dict.fromkeys(runs) if run not in self.results]:
                return stage, missing
        return "done", []

    def _more(self, variant: Variant) -> list[float]:
        """The next rate beyond the grid; none for a variant that raised an error at every rate."""
        tried, grid = self.tried(variant), self.grid(variant)
        raised = all(self.results[self._run(variant, rate, 0)].error for rate in tried)
        more = None if raised or len(tried) >= len(grid) + self.budget.more_rates else beyond(tried)
        return [] if more is None else [more]

    def _run(self, variant: Variant, rate: float, seed: int) -> Run:
        return Run(variant, rate, seed, self.steps)

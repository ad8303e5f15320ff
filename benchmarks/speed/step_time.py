"""Time one step of every optimizer, ours and others', beside the matrix products that ours need.

    python -m benchmarks.speed.step_time [--problems matrix ...] [--optimizers ...] [--ranks 64] [--quick]
    python -m benchmarks.speed.step_time --table benchmarks/results/step-time.jsonl

All optimizers take turns in one process, on one core with one thread. CPU time counts; wall time is recorded
too. The first steps allocate state and are not counted. An optimizer that refreshes its preconditioner every
k-th step is timed over k steps. Rows go to benchmarks/results/step-time.jsonl and replace older rows of the
same problem. After a Ctrl-C the same command continues with the problem that was interrupted.
"""

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from rich.progress import Progress

from benchmarks.common.arguments import at_least, known, positive
from benchmarks.common.process import at_most, keep_freed_memory, only_legal_instructions, pin
from benchmarks.common.provenance import machine
from benchmarks.common.results import QUICK, RESULTS, load, save
from benchmarks.common.resumable import resumable
from benchmarks.registry.optimizers import OPTIMIZERS, build
from benchmarks.registry.problems import PROBLEMS, Gradients, Named, Problem
from benchmarks.speed import product_floor as floor
from benchmarks.speed.step_table import FLOOR, PASS, checks, markdown, shown
from sketchy.analysis.operations import Profile, profile
from sketchy.experiments.mistakes import user_mistakes
from sketchy.experiments.training import state_bytes

FILE = "step-time.jsonl"
FIRST_STEPS = 3  # they allocate and fill the state; the first one of SOAP changes no weight
SLOW = 0.5  # seconds; a step that takes longer is timed once a round
REPEATS = 3  # timed steps of a round, after one that is not timed


@dataclass(frozen=True)
class Options:
    """Time one step of every optimizer, beside the matrix products that ours need."""

    problems: tuple[str, ...] = ("matrix", "block", "layer512", "transformer", "transformer2", "resnet50")
    """The lists of weights."""
    optimizers: tuple[str, ...] = tuple(OPTIMIZERS)
    """The optimizers."""
    ranks: tuple[int, ...] = (32, 64, 128, 256)
    """Ranks of the sketched optimizers."""
    rounds: int = 25
    """Interleaved rounds."""
    seconds: float = 10.0
    """Seconds for each optimizer on each problem. A slow one takes part in fewer rounds, at least in one."""
    limit: float = 60.0
    """Seconds of CPU time. An optimizer whose first steps, or one round, take longer is left out."""
    profile: bool = True
    """Count the torch operations of a step, and measure the time between them."""
    quick: bool = False
    """Rank 64, fewer rounds, and no slow optimizers; rows go to runs/quick."""
    out: Path | None = None
    """The file of the rows; benchmarks/results/step-time.jsonl by default."""
    table: Path | None = None
    """Print the rows of this file as Markdown tables, and measure nothing."""


@dataclass
class Sample:
    """Mean milliseconds of a step in one round."""

    round: int
    cpu: float
    wall: float
    worst: float  # CPU time of the slowest single step


NOT_IN_ROW = ("run", "before", "refresh", "slow")


@dataclass
class TimedStep:
    """Something that is timed (an optimizer, a floor, a training pass), with its results so far."""

    run: Callable[[], object]
    optimizer: str
    before: Callable[[], object] = lambda: None  # not timed
    refresh: Callable[[], object] | None = None  # see benchmarks.registry.optimizers.Entry
    rank: int | None = None
    settings: str = ""
    period: int = 1
    state_bytes: int | None = None
    flops: int | None = None
    profile: Profile | None = None
    samples: list[Sample] = field(default_factory=list)
    slow: bool = False
    error: str | None = None

    @property
    def place(self) -> tuple[str, int | None]:
        """An optimizer and its floor have the same place in a round."""
        return self.optimizer.removesuffix(FLOOR), self.rank

    @property
    def steps(self) -> int:
        """Steps of a round.

        With a period: a whole period, or, if a refresh can be caused, one step with a refresh and a few
        without. Otherwise: one step that is not timed and a few that are. A slow step is timed once; the
        state of the caches does not matter for it.
        """
        if self.period > 1:
            return self.period if self.refresh is None else REPEATS + 1
        return 1 if self.slow else REPEATS + 1

    def sample(self, round: int) -> None:
        if self.refresh is not None:
            self.refresh()
        first, *others = [self.timed() for _ in range(self.steps)]
        if self.period == 1:
            shares = [(1 / REPEATS, t) for t in others] or [(1.0, first)]
        else:
            shares = [(1 / self.period, first)]
            shares += [((self.period - 1) / self.period / len(others), t) for t in others]
        cpu, wall = (1e3 * sum(share * t[clock] for share, t in shares) for clock in (0, 1))
        self.samples.append(Sample(round, cpu, wall, 1e3 * max(t[0] for _, t in shares)))

    def try_sample(self, round: int) -> None:
        """Time a round, unless it has failed before. An error becomes its result."""
        if self.error is None:
            try:
                self.sample(round)
            except Exception as error:  # other packages raise all kinds
                self.error = message(error)

    def timed(self) -> tuple[float, float]:
        """CPU and wall seconds of one step."""
        self.before()
        began = time.process_time(), time.perf_counter()
        self.run()
        taken = time.process_time() - began[0], time.perf_counter() - began[1]
        self.slow = taken[0] > SLOW
        return taken

    def row(self) -> dict[str, Any]:
        return {
            **{name: value for name, value in vars(self).items() if name not in NOT_IN_ROW},
            "profile": None if self.profile is None else asdict(self.profile),
            "samples": [asdict(sample) for sample in self.samples],
        }


def candidates(options: Options) -> Iterator[tuple[str, int | None]]:
    for name in dict.fromkeys(options.optimizers):
        for rank in options.ranks if OPTIMIZERS[name].ranked else (None,):
            yield name, rank


def timed_step(
    name: str, rank: int | None, named: Named, gradients: Gradients, options: Options
) -> TimedStep:
    """Build an optimizer and take its first steps; if this fails, keep the error message."""
    entry = OPTIMIZERS[name]
    made = TimedStep(
        run=lambda: None,
        optimizer=name,
        before=gradients.advance,
        rank=rank,
        settings=entry.settings,
        period=entry.period,
    )
    last: float | None = None
    try:
        with at_most(options.limit, "its first steps took more than"):
            optimizer = build(name, named, lr=1e-5, rank=rank)
            made.run = optimizer.step
            for _ in range(FIRST_STEPS):
                last = made.timed()[0]
            if entry.refresh is not None:
                made.refresh = partial(entry.refresh, optimizer)
                made.refresh()
                made.timed()
        if last is not None and last * made.steps > options.limit:
            raise TimeoutError(f"a round of {made.steps} steps would take {last * made.steps:.0f} s")
        made.state_bytes = state_bytes(optimizer)
        if options.profile and not entry.settings.startswith("compiled"):
            tries = [profile(optimizer.step, gradients.advance) for _ in range(1 if made.slow else REPEATS)]
            made.profile = min(tries, key=lambda tried: tried.python_ms)
    except Exception as error:  # other packages raise all kinds
        made.error = message(error)
        if isinstance(error, TimeoutError) and last is not None:
            made.error += f"; the last that was done took {last:.1f} s"
    return made


def message(error: Exception) -> str:
    """An error message, short enough for a table."""
    return " ".join(f"{type(error).__name__}: {error}".split("\n")[:2])[:200]


def floors(measured: Sequence[TimedStep], named: Named) -> list[TimedStep]:
    """The floors of our optimizers."""
    made = []
    for ours in measured:
        if ours.optimizer in floor.PRODUCTS and ours.error is None:
            optimizer: Any = build(ours.optimizer, named, rank=ours.rank)
            table = floor.stacks(ours.optimizer, optimizer.report())
            run = floor.runner(table)
            run()
            name = ours.optimizer + FLOOR
            made.append(TimedStep(run, name, rank=ours.rank, flops=floor.flops(table)))
    return made


def in_order(everyone: Sequence[TimedStep]) -> list[TimedStep]:
    """Those that did not fail, with each floor right after its optimizer: the speed of a machine changes."""
    places = list(dict.fromkeys(c.place for c in everyone))
    return sorted((c for c in everyone if c.error is None), key=lambda c: places.index(c.place))


def turns(step: TimedStep, options: Options) -> set[int]:
    """The rounds that it takes part in: as many as its seconds allow, evenly spread. Round 0 is done."""
    sample = step.samples[0]
    mean = sample.cpu if step.refresh is None else sample.worst  # estimates the mean of the steps in a round
    seconds = mean * step.steps / 1e3
    count = max(1, min(options.rounds, int(options.seconds / max(seconds, 1e-9))))
    return {i * options.rounds // count for i in range(count)}


def measure(problem: Problem, options: Options, progress: Progress, title: str) -> list[TimedStep]:
    named = problem.parameters()
    gradients = Gradients(p for _, p in named)
    wanted = list(candidates(options))
    bar = progress.add_task(f"{title}: first steps", total=len(wanted))
    everyone = []
    for name, rank in wanted:
        progress.update(bar, description=f"{title}: first steps of {name}")
        everyone.append(timed_step(name, rank, named, gradients, options))
        progress.advance(bar)
    everyone += floors(everyone, named)
    if problem.training_pass is not None:
        everyone.append(TimedStep(problem.training_pass(), PASS))
        everyone[-1].timed()
    running = in_order(everyone)
    progress.update(bar, description=f"{title}: rounds", completed=0, total=options.rounds * len(running))
    plan: dict[tuple[str, int | None], set[int]] = {}
    for round in range(options.rounds):
        for c in running:
            if c.error is None and (round == 0 or round in plan[c.place]):
                c.try_sample(round)
                if round == 0 and c.error is None:
                    plan.setdefault(c.place, turns(c, options))
            progress.advance(bar)
    progress.remove_task(bar)
    return everyone


def replace_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Save rows in place of those of the same problems; the rows of other problems stay."""
    new = {row["problem"] for row in rows}
    kept = [row for row in load(path, "problem") if row["problem"] not in new] if path.exists() else []
    save(path, [*kept, *rows])


def check(options: Options) -> None:
    known(PROBLEMS, problems=options.problems)
    known(OPTIMIZERS, optimizers=options.optimizers)
    at_least(2, ranks=options.ranks)
    at_least(1, rounds=options.rounds)
    positive(seconds=options.seconds, limit=options.limit)


def main(arguments: Sequence[str] | None = None) -> None:
    options = tyro.cli(Options, prog="python -m benchmarks.speed.step_time", args=arguments)
    if options.table is not None:
        with user_mistakes("benchmarks.speed.step_time"):
            print(markdown(load(options.table, "problem")))
        return
    path = options.out or (QUICK if options.quick else RESULTS) / FILE
    with user_mistakes("benchmarks.speed.step_time"):
        check(options)
        if path.is_file():
            load(path, "problem")  # fail now, not after an hour, if its rows can't be kept
    if options.quick:
        changed = {"ranks": (64,), "rounds": 3, "seconds": 1.0, "limit": 2.5}
        options = Options(**{**vars(options), **changed})
    pin()
    keep_freed_memory()
    only_legal_instructions()
    console, rows = Console(width=190), []
    about, progress = machine(), Progress(console=console)

    def rows_of(name: str) -> list[dict[str, Any]]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # other packages' warnings
            measured = measure(PROBLEMS[name], options, progress, name)
        return [{"problem": name, **c.row(), **about} for c in measured]

    with (
        resumable("benchmarks.speed.step_time", options.problems, options, path, rows_of) as problems,
        progress,
    ):
        for name, new in problems:
            rows += new
            replace_rows(path, new)
            progress.console.print(shown(PROBLEMS[name].title, new))
    for verdict in checks(rows):
        console.print(str(verdict), highlight=False)


if __name__ == "__main__":
    main()

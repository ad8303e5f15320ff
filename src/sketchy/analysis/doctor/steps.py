"""Count and time a late step of each contender on GPT-2's blocks."""

import statistics
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch.optim import Optimizer

from sketchy.analysis.doctor.blocks import ADAMW, CONTENDERS, Contender, Gradients, Named, Size, weights
from sketchy.analysis.operations import Launches, device_work, profile
from sketchy.analysis.timing import Times, clock_of, interleave
from sketchy.files import told

FIRST_STEPS = 3  # they allocate state; the first one of some optimizers changes no weight
META = torch.device("meta")


@dataclass
class Step:
    """What is known of a contender's step. What could not be found is None, and ``note`` says why."""

    optimizer: str
    ours: bool
    milliseconds: list[float] | None = None  # first quartile, median, third quartile
    host_milliseconds: float | None = None  # median of the time of the processor, all threads together
    over_adamw: list[float] | None = None  # quartiles of ratios, round by round
    rounds: int = 0
    operations: int | None = None  # of torch, called from Python
    parts: int | None = None  # those that call no others
    launches_on_meta: int | None = None  # on the path of an accelerator
    device: dict[str, Any] | None = None  # kernels, launches, copies and waits by the profiler
    note: str = ""
    failed: bool = False


@dataclass
class Race:
    """Contenders on the same weights. Build, count and time them in this order."""

    size: Size
    device: torch.device
    named: Named = field(default_factory=list)
    runs: dict[str, Callable[[], object]] = field(default_factory=dict)
    steps: dict[str, Step] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.named = weights(self.size, self.device)
        self.gradients = Gradients(self.named)

    def enter(self, contender: Contender) -> None:
        """Build an optimizer, take its first steps, and count a later one."""
        step = self.steps[contender.name] = Step(contender.name, contender.ours)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # other packages' warnings
                one = _stepper(contender.make(self.named, self.size.rank), self.gradients)
                for _ in range(FIRST_STEPS):
                    one()
                _count(step, one, self.device)
        except ImportError as error:
            step.note = "not installed" if error.name else told(error).partition(": ")[2]
            return
        except Exception as error:  # other packages raise all kinds, and so may a device
            step.note, step.failed = told(error), contender.ours
            return
        step.launches_on_meta = launches_on_meta(contender, self.size)

        def period() -> None:
            for _ in range(contender.period):
                one()

        self.runs[contender.name] = period

    def time(self, rounds: Iterable[int]) -> None:
        """Time those that entered, interleaved."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                times = interleave(self.runs, rounds=rounds, clock=clock_of(self.device))
        except Exception as error:
            for name in self.runs:
                self.steps[name].note = told(error)
                self.steps[name].failed = self.steps[name].ours
            return
        periods = {contender.name: contender.period for contender in CONTENDERS}
        for name, found in times.items():
            step, period = self.steps[name], periods.get(name, 1)
            found = Times([s / period for s in found.rounds], [s / period for s in found.cpu])
            step.rounds = len(found.rounds)
            step.milliseconds = quartiles([1e3 * s for s in found.rounds])
            step.host_milliseconds = 1e3 * statistics.median(found.cpu)
            if ADAMW in times:
                pairs = zip(found.rounds, times[ADAMW].rounds, strict=True)
                step.over_adamw = quartiles([own / base for own, base in pairs])


def race(
    size: Size,
    device: torch.device,
    contenders: Iterable[Contender],
    rounds: Iterable[int],
) -> list[Step]:
    """The steps of all contenders. If not even their weights fit on the device, that is the result."""
    try:
        running = Race(size, device)
    except Exception as error:
        return [Step("weights and gradients", ours=True, note=told(error), failed=True)]
    for contender in contenders:
        running.enter(contender)
    running.time(rounds)
    return list(running.steps.values())


def _stepper(optimizers: Sequence[Optimizer], gradients: Gradients) -> Callable[[], None]:
    def one() -> None:
        gradients.set()
        for optimizer in optimizers:
            optimizer.step()

    return one


def _count(step: Step, one: Callable[[], object], device: torch.device) -> None:
    counted = profile(one)
    step.operations, step.parts = counted.operations, counted.parts
    work = device_work(one, device)
    step.device = None if work is None else asdict(work)


def launches_on_meta(contender: Contender, size: Size) -> int | None:
    """The operations of a step on tensors without values; None if an optimizer needs values."""
    try:
        named = weights(size, META)
        one = _stepper(contender.make(named, size.rank), Gradients(named))
        for _ in range(FIRST_STEPS):
            one()
        with Launches() as count:
            one()
    except Exception:  # others may read values
        return None
    return count.found.total()


def quartiles(values: Sequence[float]) -> list[float]:
    """The first quartile, the median and the third one."""
    return statistics.quantiles(values, n=4) if len(values) > 1 else [*values] * 3

"""One training run: it takes a task, an optimizer and a schedule, and returns a record."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from types import FunctionType, ModuleType
from typing import Any, Self

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from sketchy.experiments.tasks import Task

Schedule = Callable[[int, int], float]  # (step, from 0; steps) → factor of the learning rate


@dataclass(frozen=True)
class Look:
    """The results on the validation split after a number of steps."""

    step: int
    loss: float  # inf if the run diverged
    accuracy: float | None


@dataclass
class Record:
    """A run up to now."""

    task: str
    seed: int
    steps: int  # planned
    step: int = 0  # taken
    curve: list[Look] = field(default_factory=list)
    diverged: bool = False
    optimizer_bytes: int = 0  # of all tensors in the optimizer's state
    optimizer_seconds: float = 0.0  # in optimizer.step()
    seconds: float = 0.0  # without validation
    cpu_seconds: float = 0.0  # of this process, without the first step, which may compile
    threads: int = 0  # of torch
    commit: str = ""  # of the code that ran, if the caller sets it
    error: str = ""  # why the run ended early, if it did not diverge

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The inverse of `dataclasses.asdict`."""
        return cls(**{**values, "curve": [Look(**look) for look in values["curve"]]})

    @property
    def loss(self) -> float:
        """The last validation loss."""
        return self.curve[-1].loss

    @property
    def lowest(self) -> float:
        """The lowest validation loss: a network that overfits has it before the end."""
        return min(look.loss for look in self.curve)

    @property
    def accuracy(self) -> float | None:
        return self.curve[-1].accuracy

    def steps_to(self, loss: float) -> float | None:
        """The step at which the curve first reaches ``loss``, by linear interpolation; None if never."""
        for before, after in zip(self.curve, self.curve[1:], strict=False):
            if after.loss <= loss:
                share = (before.loss - loss) / (before.loss - after.loss) if before.loss > loss else 0.0
                return before.step + share * (after.step - before.step)
        return None


def warmup_cosine(step: int, steps: int, *, warmup: float = 0.1, floor: float = 0.1) -> float:
    """Linear warmup over the first share ``warmup`` of the steps, then cosine decay to ``floor``.

    >>> [round(warmup_cosine(step, 100), 3) for step in (0, 4, 9, 10, 99)]
    [0.1, 0.5, 1.0, 1.0, 0.1]
    """
    rising = round(warmup * steps)
    if step < rising:
        return (step + 1) / rising
    done = (step - rising) / max(1, steps - 1 - rising)
    return floor + (1 - floor) * (1 + math.cos(math.pi * done)) / 2


def train(
    task: Task,
    optimizer: Callable[[nn.Module], Optimizer],
    *,
    steps: int | None = None,
    seed: int = 0,
    schedule: Schedule = warmup_cosine,
) -> Record:
    """Train a new model of the task and return the whole record."""
    *_, record = Training(task, optimizer, steps=steps, seed=seed, schedule=schedule)
    return record


class Training:
    """A run as an iterator: each iteration takes a step and yields the record. Stop it at any time.

    It yields the same record object each time. A run that diverges ends early, with a last loss of inf. A run
    that was stopped can be saved and resumed by its ``state_dict``.
    """

    def __init__(
        self,
        task: Task,
        optimizer: Callable[[nn.Module], Optimizer],
        *,
        steps: int | None = None,
        seed: int = 0,
        schedule: Schedule = warmup_cosine,
    ) -> None:
        total = task.steps if steps is None else steps
        if total < 1:
            raise ValueError(f"steps={total}: must be at least 1")
        self.task, self.model = task, task.model(seed)
        self.optimizer = optimizer(self.model)
        self.scheduler = LambdaLR(self.optimizer, lambda step: schedule(step, total))
        self.record = Record(task.name, seed, total, threads=torch.get_num_threads())

    def __iter__(self) -> Iterator[Record]:
        task, record = self.task, self.record
        if not record.curve:
            _look(task, self.model, record)
        for step in range(record.step, record.steps):
            began, cpu_began = time.perf_counter(), time.process_time()
            finite = _step(task, self.model, self.optimizer, record)
            record.seconds += time.perf_counter() - began
            record.cpu_seconds += time.process_time() - cpu_began if step > 0 else 0.0
            record.step = step + 1
            if not finite:
                record.diverged = True
                record.curve.append(Look(record.step, math.inf, None))
            elif record.step % task.look_every == 0 or record.step == record.steps:
                _look(task, self.model, record)
            if not record.diverged:
                self.scheduler.step()
            if step == 0 or record.curve[-1].step == record.step:
                record.optimizer_bytes = state_bytes(self.optimizer)
            yield record
            if record.diverged:
                return

    def state_dict(self) -> dict[str, Any]:
        """The state of the run. Batches are not part of it: they depend only on seed and step."""
        parts = {name: getattr(self, name).state_dict() for name in ("model", "optimizer", "scheduler")}
        return {**parts, "record": asdict(self.record)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("model", "optimizer", "scheduler"):
            getattr(self, name).load_state_dict(state[name])
        self.record = Record.from_dict(state["record"])


def state_bytes(optimizer: Optimizer) -> int:
    """The bytes of all tensors that the state refers to, directly or not. Shared memory counts once."""
    storages: dict[int, int] = {}
    visited: dict[int, Any] = {}  # keeps the objects alive, so that ids stay unique

    def visit(value: Any) -> None:
        if id(value) in visited:
            return
        visited[id(value)] = value
        if hasattr(value, "__tensor_flatten__"):  # a quantized tensor consists of other tensors
            visit([getattr(value, name) for name in value.__tensor_flatten__()[0]])
        elif isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
        elif isinstance(value, dict):
            visit(list(value.values()))
        elif isinstance(value, list | tuple | set):
            for part in value:
                visit(part)
        elif hasattr(value, "__dict__") and not isinstance(value, type | FunctionType | ModuleType):
            visit(vars(value))  # GaLore keeps its bases in objects

    visit(dict(optimizer.state))
    return sum(storages.values())


def _step(task: Task, model: nn.Module, optimizer: Optimizer, record: Record) -> bool:
    """Take one step; returns False if it diverged."""
    loss = task.training_loss(model, record.seed, record.step)
    if not loss.isfinite():
        return False
    optimizer.zero_grad()
    loss.backward()
    began = time.perf_counter()
    try:
        optimizer.step()
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        return False  # a decomposition failed on inf, nan or too large numbers
    record.optimizer_seconds += time.perf_counter() - began
    return True


def _look(task: Task, model: nn.Module, record: Record) -> None:
    score = task.validate(model)
    record.diverged = not math.isfinite(score.loss)
    record.curve.append(Look(record.step, math.inf if record.diverged else score.loss, score.accuracy))

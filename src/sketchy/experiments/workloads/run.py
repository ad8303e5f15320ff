"""One run of a workload, as an iterator over its steps. It knows nothing of files."""

import math
import resource
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

import sketchy
from sketchy.experiments.training import state_bytes, warmup_cosine
from sketchy.experiments.workloads import optimizers
from sketchy.experiments.workloads.order import Once, Order, batches, seeded
from sketchy.experiments.workloads.ranks import Ranks
from sketchy.experiments.workloads.record import Ended, Look, Record
from sketchy.experiments.workloads.registry import workload
from sketchy.experiments.workloads.scale import GiveUp, Scale
from sketchy.experiments.workloads.workload import Batch, Data, Score, Split


@dataclass(frozen=True)
class Settings:
    """Everything that determines the numbers of a run."""

    workload: str
    preset: str  # the name of the scale
    data: str
    optimizer: str
    seed: int
    scale: Scale

    def options(self) -> dict[str, Any]:
        """As JSON types, for options.json."""
        versions = {"sketchy": sketchy.__version__, "torch": str(torch.__version__)}
        named = {key: value for key, value in vars(self).items() if key != "scale"}
        return {**named, **{k: _told(v) for k, v in asdict(self.scale).items()}, **versions}


def _told(value: Any) -> Any:
    return None if value == math.inf else value  # JSON has no infinity


def new_network(settings: Settings) -> nn.Module:
    """The network of a seed, the same for all optimizers."""
    found = workload(settings.workload)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seeded(settings.seed))
        return found.network(settings.scale, found.sources[settings.data].sizes)


def meta_network(settings: Settings) -> nn.Module:
    """The network without numbers, to count."""
    found = workload(settings.workload)
    with torch.device("meta"):
        return found.network(settings.scale, found.sources[settings.data].sizes)


class Run:
    """A run: each iteration takes a step and yields the record, the same object each time."""

    def __init__(
        self,
        settings: Settings,
        data: Data,
        ranks: Ranks | None = None,
        *,
        test: bool = True,
        give_up: GiveUp | None = None,
        workers: int = 0,
    ) -> None:
        """``test``: also look at the test rows. ``workers``: processes that read rows ahead."""
        self.settings, self.scale, self.data = settings, settings.scale, data
        self.ranks, self.test, self.give_up, self.workers = ranks or Ranks(), test, give_up, workers
        self.workload = workload(settings.workload)
        self.network = new_network(settings).to(self.ranks.device)
        self.optimizer = optimizers.make(settings.optimizer, self.network, self.scale)
        weights = sum(p.numel() for p in self.network.parameters())
        self.record = Record(self.scale.steps, weights=weights)
        self._order(0)  # raises if batches don't fit
        self._losses = [0.0, 0.0]  # sum and number of the steps since the last look

    def __iter__(self) -> Iterator[Record]:
        record, network = self.record, self.ranks.parallel(self.network)
        if not record.looks:
            self._look(0.0, 0.0)
        stream = self._batches(self.data.train, self._order(record.step))
        for step in range(record.step, record.steps):
            if record.over:
                return
            self._advance(network, stream, step)
            yield record

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs: rows and random numbers follow from the number of steps."""
        self.ranks.average_(self.network.buffers())
        parts = {name: getattr(self, name).state_dict() for name in ("network", "optimizer")}
        return {**parts, "record": self.record.to_dict(), "losses": self._losses}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.record, self._losses = Record.from_dict(state["record"]), list(state["losses"])

    def look(self, split: Split) -> Score:
        """Loss and metric over all rows of a split, the same for any number of ranks."""
        self.ranks.average_(self.network.buffers())
        self.network.eval()
        once = Once(split, self.scale.micro_batch, self.ranks.rank, self.ranks.world)
        with torch.no_grad():
            found = []
            for batch in self._batches(split, once):
                with self._precision():
                    found.append(self.workload.look(self.network, batch, self.scale))
        self.network.train()
        return self.workload.score(self.ranks.gathered(found), self.scale)

    # ---- a step

    def _advance(self, network: nn.Module, stream: Iterator[Batch], step: int) -> None:
        record, began, cpu = self.record, time.perf_counter(), time.process_time()
        rate, norm, finite = self._step(network, stream, step)
        record.seconds += time.perf_counter() - began
        record.cpu_seconds += time.process_time() - cpu
        record.step = step + 1
        if not finite:
            self._end("diverged", f"the loss of step {record.step} is not finite")
        elif self._looks_at(record.step):
            self._look(rate, norm)
        if record.step == record.steps and not record.over:
            self._end("finished")

    def _step(self, network: nn.Module, stream: Iterator[Batch], step: int) -> tuple[float, float, bool]:
        """Learning rate, norm of the gradient, and whether the loss was finite."""
        total, count = self._accumulate(network, stream, step)
        if not math.isfinite(total):
            return 0.0, math.inf, False
        self._losses = [self._losses[0] + total / max(count, 1), self._losses[1] + 1]
        gradients = [p.grad for p in self.network.parameters() if p.grad is not None]
        torch._foreach_mul_(gradients, self.ranks.world / max(count, 1))  # ranks.parallel takes the mean
        norm = clip_grad_norm_(self.network.parameters(), self.scale.clip)
        factor = warmup_cosine(step, self.scale.steps, warmup=self.scale.warmup, floor=0.0)
        for group in self.optimizer.param_groups:
            group["lr"] = self.scale.lr * factor
        began = time.perf_counter()
        try:
            self.optimizer.step()
        except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
            return 0.0, float(norm), False  # a decomposition failed on too large numbers
        self.record.optimizer_seconds += time.perf_counter() - began
        return self.scale.lr * factor, float(norm), True

    def _accumulate(self, network: nn.Module, stream: Iterator[Batch], step: int) -> tuple[float, float]:
        """Leave the sums' gradient in the weights; returns the loss and its count over all ranks."""
        self.optimizer.zero_grad()
        network.train()
        losses, counts = [], []
        mine = self.scale.batch // self.scale.micro_batch // self.ranks.world
        for i in range(mine):
            batch = next(stream)  # the first one makes a loader, which draws a number
            torch.manual_seed(seeded(self.settings.seed, step, i * self.ranks.world + self.ranks.rank, 2))
            with self._precision(), self.ranks.without_sums(network, i < mine - 1):
                loss, number = self.workload.loss(network, batch, self.scale)
                loss.backward()
            losses.append(loss.detach())
            counts.append(number)
        total, count = self.ranks.sums(torch.stack(losses).sum(), torch.stack(counts).sum())
        return total, count

    def _precision(self) -> torch.autocast:
        enabled = self.scale.precision == "bfloat16"
        return torch.autocast(self.ranks.device.type, torch.bfloat16, enabled=enabled)

    # ---- rows

    def _order(self, first: int) -> Order:
        scale, ranks = self.scale, self.ranks
        sizes = (scale.batch, scale.micro_batch, first, scale.steps)
        return Order(self.data.train, self.settings.seed, *sizes, ranks.rank, ranks.world)

    def _batches(self, split: Split, keys: Order | Once) -> Iterator[Batch]:
        device = self.ranks.device
        pin = device.type == "cuda"
        for batch in batches(split, keys, seed=self.settings.seed, workers=self.workers, pin=pin):
            yield {name: value.to(device, non_blocking=True) for name, value in batch.items()}

    # ---- looks

    def _looks_at(self, step: int) -> bool:
        return step % self.scale.look_every == 0 or step in (self.record.steps, self._gives_up_at())

    def _gives_up_at(self) -> int:
        return math.ceil(self.give_up.at * self.record.steps) if self.give_up else -1

    def _look(self, rate: float, norm: float) -> None:
        record, began = self.record, time.perf_counter()
        validation = self.look(self.data.validation)
        test = self.look(self.data.test) if self.test else None
        total, steps = self._losses
        look = Look(
            step=record.step,
            train_loss=total / steps if steps else None,
            lr=rate,
            gradient_norm=norm,
            validation_loss=validation.loss,
            validation_metric=validation.metric,
            test_loss=test.loss if test else None,
            test_metric=test.metric if test else None,
            seconds=record.seconds,
        )
        record.looks.append(look)
        self._losses = [0.0, 0.0]
        record.look_seconds += time.perf_counter() - began
        record.optimizer_bytes = state_bytes(self.optimizer)
        record.peak_bytes = self._peak()
        if not math.isfinite(validation.loss):
            self._end("diverged", f"the validation loss after {record.step} steps is not finite")
        elif self.give_up and record.step == self._gives_up_at():
            found, limit, metric = validation.metric, self.give_up.metric, self.workload.metric
            if not metric.better(found, limit):
                self._end("gave up", f"{metric.name} {found:.4g} after {record.step} steps; limit {limit:g}")

    def _end(self, how: Ended, why: str = "") -> None:
        self.record.ended, self.record.why = how, why

    def _peak(self) -> int:
        if self.ranks.device.type == "cuda":
            return torch.cuda.max_memory_allocated(self.ranks.device)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

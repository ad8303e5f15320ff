"""Compare steps on a device with the same steps on the CPU and in float64.

A distance is ‖a - b‖ / ‖movement‖ of a weight, where the movement is what all steps in float64 change; the
largest of all weights counts. What is allowed has two parts. One is measured: gradients of a float64 run are
multiplied by 1 ± a small change with random signs, and this moves its weights. The other is the rounding of
the weights themselves, half an eps in each step, which matters in bfloat16.
"""

import io
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from sketchy.analysis.doctor.cases import F64, WEIGHTS, Case, gradients, start
from sketchy.core.tasks import without_reading
from sketchy.files import told
from sketchy.optim.engine import Engine

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Effort:
    """How long a check takes."""

    steps: int = 6
    seeds: int = 3  # of signs


@dataclass
class Row:
    """One optimizer with weights of one dtype. Distances that are not finite or not known are None."""

    optimizer: str
    weights: str
    change: float  # of gradients, which the allowed distance is measured with
    judged: bool = True  # whether distances above the allowed one are failures
    allowed: float | None = None
    cpu: float | None = None  # distances
    float64: float | None = None
    reloaded: float | None = None
    farthest: str = ""  # the weight with the largest distance from float64
    skipped: bool | None = None  # whether a step with NaN gradients changed nothing and was counted
    failed: list[str] = field(default_factory=list)  # names of checks
    error: str = ""


def check(case: Case, device: torch.device, effort: Effort) -> list[Row]:
    """The rows of one optimizer: float32 and bfloat16 weights. An error ends its row, and is its result."""
    truth = Truth(case, effort)
    return [_row(case, device, dtype, truth) for dtype in (torch.float32, torch.bfloat16)]


@dataclass(frozen=True)
class Truth:
    """Float64 runs on the CPU."""

    case: Case
    effort: Effort

    @cached_property
    def weights(self) -> list[Tensor]:
        return trained(self.case, CPU, F64, self.effort.steps).weights

    @cached_property
    def movement(self) -> list[float]:
        pairs = zip(self.weights, start(), strict=True)
        return [float((after - before).norm()) for after, before in pairs]

    @cached_property
    def moved(self) -> float:
        """How far changed gradients move the weights: the largest over seeds."""
        runs = (
            trained(self.case, CPU, F64, self.effort.steps, signs=seed)
            for seed in range(1, self.effort.seeds + 1)
        )
        return max(max(self.distances(run.weights, self.weights)) for run in runs)

    def rounding(self, dtype: torch.dtype) -> float:
        """How far the rounding of weights may move them."""
        each = self.effort.steps * torch.finfo(dtype).eps / 2
        sizes = (max(float(a.norm()), float(b.norm())) for a, b in zip(self.weights, start(), strict=True))
        return max(each * size / moved for size, moved in zip(sizes, self.movement, strict=True))

    def distances(self, one: list[Tensor], other: list[Tensor]) -> list[float]:
        triples = zip(one, other, self.movement, strict=True)
        return [float((a - b).norm()) / moved for a, b, moved in triples]


def _row(case: Case, device: torch.device, dtype: torch.dtype, truth: Truth) -> Row:
    row = Row(case.name, str(dtype).removeprefix("torch."), case.change, case.judged)
    try:
        with precision("highest"):
            _fill(row, case, device, dtype, truth)
    except Exception as error:  # a device fails in its own ways
        row.error = told(error)
    return row


def _fill(row: Row, case: Case, device: torch.device, dtype: torch.dtype, truth: Truth) -> None:
    steps = truth.effort.steps
    row.allowed = truth.rounding(dtype) + truth.moved
    with as_on_an_accelerator(device), precision(case.precision):
        there = trained(case, device, dtype, steps)
        again = trained(case, device, dtype, steps, reload_after=steps // 2)
    here = trained(case, CPU, dtype, steps)
    from_truth = truth.distances(there.weights, truth.weights)
    row.farthest = list(WEIGHTS)[max(range(len(WEIGHTS)), key=lambda i: _or_inf(from_truth[i]))]
    found = {
        "cpu": truth.distances(there.weights, here.weights),
        "float64": from_truth,
        "reloaded": truth.distances(again.weights, there.weights),
    }
    for name, distances in found.items():
        largest = max(map(_or_inf, distances))
        setattr(row, name, largest if math.isfinite(largest) else None)
        if row.judged and not largest <= row.allowed:
            row.failed.append(name)
    with as_on_an_accelerator(device):
        row.skipped = skips_bad_gradients(there)
    if not row.skipped:
        row.failed.append("skipped")


def _or_inf(distance: float) -> float:
    return distance if math.isfinite(distance) else math.inf


@dataclass(frozen=True)
class Trained:
    """Weights after some steps, and their optimizer."""

    params: list[nn.Parameter]
    optimizer: Engine

    @property
    def weights(self) -> list[Tensor]:
        return [p.detach().to(CPU).to(F64) for p in self.params]


def trained(
    case: Case,
    device: torch.device,
    dtype: torch.dtype,
    steps: int,
    *,
    signs: int = 0,
    reload_after: int | None = None,
) -> Trained:
    """Take some steps. ``signs``: a seed; gradients change by ``case.change`` with random signs.

    ``reload_after``: after so many steps, a new optimizer loads the state, through a file for the CPU.
    """
    params = [nn.Parameter(w.to(dtype).to(device)) for w in start()]
    optimizer = case.made(list(zip(WEIGHTS, params, strict=True)))
    generator = torch.Generator().manual_seed(signs)
    for step, grads in enumerate(gradients(steps)):
        if step == reload_after:
            state = through_a_file(optimizer.state_dict())
            params = [nn.Parameter(p.detach().clone()) for p in params]
            optimizer = case.made(list(zip(WEIGHTS, params, strict=True)))
            optimizer.load_state_dict(state)
        for p, grad in zip(params, grads, strict=True):
            if signs:
                grad = grad * (
                    1 + case.change * torch.randn(grad.shape, generator=generator, dtype=F64).sign()
                )
            p.grad = grad.to(dtype).to(device)
        optimizer.step()
    return Trained(params, optimizer)


def through_a_file(state: dict[str, Any]) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, map_location="cpu", weights_only=True)


def skips_bad_gradients(run: Trained) -> bool:
    """Take a step with a NaN in each gradient, and a good one: the first changes nothing, and is counted."""
    before = [p.detach().clone() for p in run.params]
    good = next(gradients(1))
    for p, grad in zip(run.params, good, strict=True):
        bad = grad.clone()
        bad.flatten()[-1] = torch.nan
        p.grad = bad.to(p.dtype).to(p.device)
    run.optimizer.step()
    same = all(torch.equal(p, old) for p, old in zip(run.params, before, strict=True))
    counted = all(row.skipped == 1 for row in run.optimizer.report())
    for p, grad in zip(run.params, good, strict=True):
        p.grad = grad.to(p.dtype).to(p.device)
    run.optimizer.step()
    finite = all(bool(p.isfinite().all()) for p in run.params)
    return same and counted and finite


def as_on_an_accelerator(device: torch.device) -> AbstractContextManager[None]:
    """On the CPU, take the path of an accelerator, whose values are not read."""
    return without_reading() if device.type == "cpu" else nullcontext()


@contextmanager
def precision(name: str) -> Iterator[None]:
    """Inside, float32 products have this precision, whatever was set before."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(name)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)

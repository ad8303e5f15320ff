"""Spectra of gradient covariances while a network trains: how few directions hold how much of the mass.

For a weight with gradients G_i these are L = Σ_i β₂^(t-i) G_i G_iᵀ and R = Σ_i β₂^(t-i) G_iᵀ G_i, seen
through two numbers: the share of the trace that the k largest eigenvalues hold, and the intrinsic dimension
tr C / λ_max, which is one over the share of the largest.
"""

import json
import math
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import FrameType
from typing import Any, Self
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from sketchy.analysis.covariances import Gradients, Include, Reading, Settings, States
from sketchy.core.arguments import check_count, check_number
from sketchy.optim.engine import Engine
from sketchy.optim.routing import names_of


@dataclass(frozen=True)
class Spectrum:
    """One axis of one block of one weight at one step: a line of the file.

    Masses are in units of squared gradients. Where a covariance is zero, the shares and dimensions are None.
    """

    step: int
    parameter: str
    block: int
    axis: str  # left for L, right for R; only, axis0, ... where an optimizer sees a weight otherwise
    dim: int  # d
    rank: int  # eigenvalues that are kept; all of them where rank = dim
    top: int  # k
    share: float | None  # of the mass in the top k
    share_low: float | None  # certified: share_low <= share <= share_high
    share_high: float | None
    intrinsic_dimension: float | None  # tr C / λ_max
    intrinsic_low: float | None  # certified likewise
    intrinsic_high: float | None
    trace: float | None  # tr C, where it is known
    escaped_mass: float  # ρ
    error_bound: float  # certified: ‖C - B Bᵀ‖ is at most this
    skipped: int  # gradients that were not finite


def read(path: str | Path) -> list[Spectrum]:
    """The records of a file; a last line that was cut off in writing is left out."""
    lines = Path(path).read_text(encoding="utf-8").split("\n")
    names = {field.name for field in fields(Spectrum)}
    records = []
    for number, line in enumerate(lines[:-1], start=1):
        try:
            values = json.loads(line)
        except json.JSONDecodeError:
            values = None
        if not isinstance(values, dict) or values.keys() != names:
            raise ValueError(f"{path}, line {number}: not a record of SpectrumMonitor")
        records.append(Spectrum(**values))
    return records


class SpectrumMonitor:
    """Records the spectra of a training run, whatever trains: follow the optimizers in a ``with`` block.

    From a model, or from any torch optimizer, it keeps L and R of each weight itself: exactly for axes up to
    ``exact_up_to``, by a sketch with its trace and certified error for longer ones. From one of our
    optimizers it reads the sketches that are there, at no cost between two recordings; then ``beta2``,
    ``exact_up_to``, ``rank`` and ``block_size`` are the optimizer's. Gradients are looked at when an
    optimizer steps: accumulated, clipped and unscaled ones are seen as the optimizer sees them.

    Without ``with``, call `step` once a training step: after ``backward`` and before gradients are cleared
    (for one of our optimizers, after its step).

    Args:
        source: a model, or an optimizer.
        every: steps between two recordings.
        path: a file for the records, a JSON line each, appended and flushed at every recording; without it
            they are kept in ``records``.
        tensorboard: a directory for TensorBoard, or a writer with ``add_scalar``.
        top: k: a number of eigenvalues, or the share of an axis' length that it is (the paper's 256 of 1024).
        beta2: decay of the covariances.
        exact_up_to: the longest axis whose covariance is kept whole: dim² numbers, and the product G Gᵀ each
            step, in float64 (on a CPU that may take longer than AdamW's step and the backward pass together).
        rank: of the sketches of longer axes: dim * rank numbers, and matrix products of that width each step.
        block_size: cut weights into blocks of at most this side, as blocked Shampoo does.
        include: which weights, by name and tensor; all with two axes or more if not given.
        resumed_at: steps that were taken before; `load_state_dict` brings what was gathered in them.

    On steps that are not recorded nothing waits for a device, but for the solver's choices where an axis is
    longer than ``exact_up_to``. In distributed training give ``path`` on one rank.

    >>> net = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 1))
    >>> optimizer = torch.optim.AdamW(net.parameters())
    >>> with SpectrumMonitor(net, every=10) as monitor:
    ...     for step in range(20):
    ...         optimizer.zero_grad()
    ...         net(torch.randn(4, 8)).square().mean().backward()
    ...         optimizer.step()
    >>> for record in monitor.records[:2]:
    ...     print(record.step, record.parameter, record.axis, record.dim)
    10 0.weight left 6
    10 0.weight right 8
    """

    def __init__(
        self,
        source: nn.Module | Optimizer,
        every: int = 100,
        path: str | Path | None = None,
        *,
        tensorboard: Any = None,
        top: int | float = 0.25,
        beta2: float = 0.999,
        exact_up_to: int = 512,
        rank: int = 128,
        block_size: int | None = None,
        include: Include | None = None,
        resumed_at: int = 0,
    ) -> None:
        if not isinstance(source, nn.Module | Optimizer):
            raise TypeError(f"source is a {type(source).__name__}: must be a torch module or optimizer")
        self.every = check_count("every", every, 1, "at least 1")
        self.top = _check_top(top)
        beta2 = check_number("beta2", beta2)
        if not 0 <= beta2 <= 1:
            raise ValueError(f"beta2={beta2}: must be in [0, 1]; 1 never forgets")
        settings = Settings(
            beta2,
            check_count("exact_up_to", exact_up_to, 0, "at least 0"),
            check_count("rank", rank, 2, "at least 2"),
            None if block_size is None else check_count("block_size", block_size, 1, "at least 1, or None"),
        )
        self._start = check_count("resumed_at", resumed_at, 0, "at least 0")
        self._source = source
        self._keeper = States(source, include) if isinstance(source, Engine) else Gradients(settings, include)
        self._steps: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # of each optimizer
        self._hooks: list[Any] = []
        self._outermost: FrameType | None = None  # the step that is being taken
        self.records: list[Spectrum] = []
        self._path = None if path is None else Path(path)
        if self._path is not None:  # what is wrong with it shows now
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.touch()
        self._writer, self._own_writer = _writer(tensorboard)

    def __enter__(self) -> Self:
        if self._hooks:
            raise RuntimeError("this monitor follows the optimizers already: enter it once")
        if isinstance(self._source, Optimizer):
            before = self._source.register_step_pre_hook(self._before)
            after = self._source.register_step_post_hook(self._after)
        else:  # whichever optimizer moves the model's weights
            before = register_optimizer_step_pre_hook(self._before)
            after = register_optimizer_step_post_hook(self._after)
        self._hooks = [before, after]
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop following, and close what was opened."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if self._own_writer:
            self._writer.close()

    def step(self) -> None:
        """Look at the gradients (of one of our optimizers: at its state), and record when it is time."""
        if self._hooks:
            raise RuntimeError("a with block follows the optimizers' steps itself: don't call step() in it")
        self._observe(self._source)
        self._count(self._source)

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """What was gathered, by weight, not copied. Of our optimizers nothing: their own state has it."""
        return self._keeper.state(self._parameters(self._source))

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, dict[str, Tensor]]) -> None:
        """Go on from there; ``resumed_at`` says at which step that is."""
        self._keeper.load(self._parameters(self._source), state)

    # ---- when

    def _before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        caller = sys._getframe(1)
        if any(frame is self._outermost for frame in _callers(caller)):
            return  # an optimizer that steps by another's step, or by its parent's
        self._outermost = caller
        if not _has_closure(args, kwargs):  # some optimizers write into the gradients as they step
            self._observe(optimizer)

    def _after(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._outermost is not sys._getframe(1):
            return
        self._outermost = None
        if _has_closure(args, kwargs):  # which has made the gradients only now
            self._observe(optimizer)
        if any(True for _ in self._parameters(optimizer)):
            self._count(optimizer)

    @torch.no_grad()
    def _observe(self, source: nn.Module | Optimizer) -> None:
        for name, p in self._parameters(source):
            self._keeper.observe(name, p)

    def _parameters(self, source: nn.Module | Optimizer) -> Iterator[tuple[str, Tensor]]:
        """The watched weights that ``source`` moves, with their names."""
        if isinstance(source, nn.Module):
            yield from source.named_parameters()
        elif isinstance(self._source, nn.Module):
            held = {p for group in source.param_groups for p in group["params"]}
            yield from ((name, p) for name, p in self._source.named_parameters() if p in held)
        else:
            names = names_of(source.param_groups)
            for g, group in enumerate(source.param_groups):
                for i, p in enumerate(group["params"]):
                    yield names.get(p, f"{g}.{i}"), p

    @torch.no_grad()
    def _count(self, source: nn.Module | Optimizer) -> None:
        self._steps[source] = step = self._steps.get(source, self._start) + 1
        if step % self.every:
            return
        readings = self._keeper.readings(self._parameters(source))
        records = [record for reading in readings for record in _records(step, reading, self.top)]
        if self._path is None:
            self.records += records
        else:
            lines = "".join(json.dumps(asdict(record)) + "\n" for record in records)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(lines)  # in one piece: an interrupt leaves whole lines
        for record in records if self._writer is not None else ():
            place = f"{record.parameter}/{record.axis}" + (f"/{record.block}" if record.block else "")
            for value in ("share", "intrinsic_dimension", "escaped_mass", "skipped"):
                if (number := getattr(record, value)) is not None:
                    self._writer.add_scalar(f"{value}/{place}", number, step)


def _records(step: int, reading: Reading, top: int | float) -> Iterator[Spectrum]:
    """A record for each block, by one copy from the device."""
    known = reading.covariance
    k = min(top, known.dim) if isinstance(top, int) else math.ceil(top * known.dim)
    trace = known.trace if known.trace is not None else torch.full_like(known.above, torch.nan)
    measured = torch.stack([*known.top_share(k), *known.intrinsic_dimension(), trace], -1)
    masses = torch.stack([known.escaped_mass, known.above, reading.skipped.double().expand_as(trace)], -1)
    for block, (*values, escaped, bound, bad) in enumerate(torch.cat([measured, masses], -1).tolist()):
        low, share, high, intrinsic_low, intrinsic, intrinsic_high, mass = (
            number if math.isfinite(number) else None for number in values
        )
        yield Spectrum(
            step=step,
            parameter=reading.parameter,
            block=block,
            axis=reading.axis,
            dim=known.dim,
            rank=known.eigenvalues.shape[-1],
            top=k,
            share=share,
            share_low=low,
            share_high=high,
            intrinsic_dimension=intrinsic,
            intrinsic_low=intrinsic_low,
            intrinsic_high=intrinsic_high,
            trace=mass,
            escaped_mass=escaped,
            error_bound=bound,
            skipped=int(bad),
        )


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None and (frame := frame.f_back) is not None:
        yield frame


def _has_closure(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Of the arguments of a step, the optimizer itself being the first."""
    return (args[1] if len(args) > 1 else kwargs.get("closure")) is not None


def _check_top(top: int | float) -> int | float:
    if isinstance(top, float) and 0 < top <= 1:
        return top
    if isinstance(top, float):
        raise ValueError(f"top={top}: must be a count of eigenvalues, at least 1, or a share in (0, 1]")
    return check_count("top", top, 1, "at least 1, or a share of the axis in (0, 1]")


def _writer(tensorboard: Any) -> tuple[Any, bool]:
    """What scalars are added to, and whether it is to be closed here."""
    if tensorboard is None or hasattr(tensorboard, "add_scalar"):
        return tensorboard, False
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError(
            f"{error.name} is missing; pip install 'sketchy-optim[spectra]' brings it", name=error.name
        ) from error
    return SummaryWriter(str(tensorboard)), True

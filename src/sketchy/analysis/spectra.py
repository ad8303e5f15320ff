"""Spectra of gradient covariances during training: how much of the mass lies in a few directions.

For a weight with gradients G_i the covariances are L = Σ_i β₂^(t-i) G_i G_iᵀ and R = Σ_i β₂^(t-i) G_iᵀ G_i.
Two numbers describe the spectrum of each: the share of the k largest eigenvalues in the trace, and the
intrinsic dimension tr C / λ_max.
"""

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
from sketchy.core.allocation import ladder
from sketchy.core.arguments import check_count, check_number
from sketchy.extras import missing
from sketchy.files import append, read_rows
from sketchy.optim.engine import Engine
from sketchy.optim.options import LEAST_RANK
from sketchy.optim.routing import names_of
from sketchy.optim.scalars import is_writer, write_scalars


@dataclass(frozen=True)
class Spectrum:
    """The spectrum of one axis of one block of one weight at one step: a line of the file.

    Masses are in units of squared gradients. If a covariance is zero, its shares and dimensions are None.
    """

    step: int
    parameter: str
    block: int
    axis: str  # left for L, right for R; only, axis0, ... if the optimizer does not treat it as a matrix
    dim: int  # d
    rank: int  # number of eigenvalues that are kept; exact if rank = dim
    top: int  # k
    share: float | None  # of the k largest eigenvalues in the trace
    share_low: float | None  # certified: share_low <= share <= share_high
    share_high: float | None
    intrinsic_dimension: float | None  # tr C / λ_max
    intrinsic_low: float | None  # also certified
    intrinsic_high: float | None
    trace: float | None  # tr C, if known
    escaped_mass: float  # ρ
    error_bound: float  # certified: ‖C - B Bᵀ‖ is at most this
    skipped: int  # gradients that were not finite
    whitened: bool = False  # whether C is of gradients whitened by the other axis (option ``whiten``)
    lost: dict[str, float] | None = None  # estimated share of directions that a sketch loses, by its rank


_NEWER = {"whitened", "lost"}  # fields that older files lack


def read(path: str | Path) -> list[Spectrum]:
    """The records of a file. An incomplete last line is left out."""
    return read_rows(Path(path), _spectrum)


def _spectrum(values: dict[str, Any]) -> Spectrum:
    names = {field.name for field in fields(Spectrum)}
    if values.keys() | _NEWER != names:
        raise ValueError("not a record of SpectrumMonitor")
    return Spectrum(**values)


class SpectrumMonitor:
    """Records the spectra of a training run. In a ``with`` block it follows the steps of the optimizers.

    For a model or any torch optimizer, the monitor itself keeps L and R of each weight: exactly for axes up
    to ``exact_up_to``, and for longer ones as a sketch with its trace and certified error. For one of our
    optimizers, it reads the sketches of the optimizer's state, at no cost between two recordings. Then
    ``beta2``, ``exact_up_to``, ``rank`` and ``block_size`` are those of the optimizer. If it whitens
    gradients (``whiten``), these are covariances of whitened gradients, and the records say so: give the
    model instead of the optimizer for those of the gradients themselves. Gradients are read
    when an optimizer steps, so they are accumulated, unscaled and clipped as the optimizer gets them.

    Without ``with``, call `step` once in each training step: after ``backward`` and before gradients are
    cleared (for one of our optimizers, after its step).

    Args:
        source: a model, or an optimizer.
        every: steps between two recordings.
        path: a file for the records. Each recording appends a JSON line for each record. Without a path, the
            records are kept in ``records``.
        tensorboard: a directory for TensorBoard, or a writer: TensorBoard's, a run of Weights & Biases, or a
            logger of Lightning (see `sketchy.log`).
        top: k, as a number of eigenvalues or as a share of the axis' length (the paper uses 256 of 1024).
        beta2: decay of the covariances.
        exact_up_to: the longest axis whose covariance is kept exactly. This takes dim² numbers, and the
            product G Gᵀ in float64 at each step (on a CPU it may take longer than AdamW's step plus the
            backward pass).
        rank: rank of the sketches of longer axes. They take dim * rank numbers, and matrix products of that
            width at each step.
        block_size: cut weights into blocks with sides of at most this length, as blocked Shampoo does.
        include: a function of name and tensor that selects weights; by default all with two or more axes.
        resumed_at: number of steps taken before a resume. `load_state_dict` restores their covariances.

    Steps that are not recorded do not wait for the device, except for the solver's choices if an axis is
    longer than ``exact_up_to``. In distributed training give ``path`` on one rank only.

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
            raise ValueError(f"beta2={beta2}: must be in [0, 1]; 1 is a sum without decay")
        settings = Settings(
            beta2,
            check_count("exact_up_to", exact_up_to, 0, "at least 0"),
            check_count("rank", rank, 2, "at least 2"),
            None if block_size is None else check_count("block_size", block_size, 1, "at least 1, or None"),
        )
        self._start = check_count("resumed_at", resumed_at, 0, "at least 0")
        self._source = source
        self._keeper = States(source, include) if isinstance(source, Engine) else Gradients(settings, include)
        self._steps: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # taken by each optimizer
        self._hooks: list[Any] = []
        self._outermost: FrameType | None = None  # the step that is being taken
        self.records: list[Spectrum] = []
        self._path = None if path is None else Path(path)
        if self._path is not None:  # a bad path raises now
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.touch()
        self._writer, self._own_writer = _writer(tensorboard)

    def __enter__(self) -> Self:
        if self._hooks:
            raise RuntimeError("this monitor is active already: enter it only once")
        if isinstance(self._source, Optimizer):
            before = self._source.register_step_pre_hook(self._before)
            after = self._source.register_step_post_hook(self._after)
        else:  # any optimizer may update the model's weights
            before = register_optimizer_step_pre_hook(self._before)
            after = register_optimizer_step_post_hook(self._after)
        self._hooks = [before, after]
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop following the optimizers, and close the TensorBoard writer."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if self._own_writer:
            self._writer.close()

    def step(self) -> None:
        """Read the gradients (for one of our optimizers, its state), and record every ``every`` steps."""
        if self._hooks:
            raise RuntimeError("inside a with block the monitor steps by itself: don't call step()")
        self._observe(self._source)
        self._count(self._source)

    def state_dict(self) -> dict[str, dict[str, Tensor]]:
        """The covariances by weight, not copied. Empty for our optimizers: their own state has them."""
        return self._keeper.state(self._parameters(self._source))

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, dict[str, Tensor]]) -> None:
        """Restore the covariances. ``resumed_at`` must be the step at which they were saved."""
        self._keeper.load(self._parameters(self._source), state)

    # ---- hooks

    def _before(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        caller = sys._getframe(1)
        if any(frame is self._outermost for frame in _callers(caller)):
            return  # inside another optimizer's step, or its parent class's
        self._outermost = caller
        if not _has_closure(args, kwargs):  # read now: some optimizers overwrite the gradients in their step
            self._observe(optimizer)

    def _after(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._outermost is not sys._getframe(1):
            return
        self._outermost = None
        if _has_closure(args, kwargs):  # it has computed the gradients just now
            self._observe(optimizer)
        if any(True for _ in self._parameters(optimizer)):
            self._count(optimizer)

    @torch.no_grad()
    def _observe(self, source: nn.Module | Optimizer) -> None:
        for name, p in self._parameters(source):
            self._keeper.observe(name, p)

    def _parameters(self, source: nn.Module | Optimizer) -> Iterator[tuple[str, Tensor]]:
        """The monitored weights that ``source`` updates, with their names."""
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
            append(self._path, *map(asdict, records))
        if self._writer is not None:
            write_scalars(self._writer, dict(_scalars(records)), step)


def _scalars(records: list[Spectrum]) -> Iterator[tuple[str, float]]:
    for record in records:
        place = f"{record.parameter}/{record.axis}" + (f"/{record.block}" if record.block else "")
        for value in ("share", "intrinsic_dimension", "escaped_mass", "skipped"):
            if (number := getattr(record, value)) is not None:
                yield f"{value}/{place}", number


def _records(step: int, reading: Reading, top: int | float) -> Iterator[Spectrum]:
    """A record for each block, with a single copy from the device."""
    known = reading.covariance
    k = min(top, known.dim) if isinstance(top, int) else math.ceil(top * known.dim)
    trace = known.trace if known.trace is not None else torch.full_like(known.above, torch.nan)
    measured = torch.stack([*known.top_share(k), *known.intrinsic_dimension(), trace], -1)
    ranks = ladder(known.dim, LEAST_RANK)
    masses = torch.stack([known.escaped_mass, known.above, reading.skipped.double().expand_as(trace)], -1)
    numbers = torch.cat([known.lost(ranks), measured, masses], -1).tolist()
    for block, (*values, escaped, bound, bad) in enumerate(numbers):
        lost, values = values[: len(ranks)], values[len(ranks) :]
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
            whitened=reading.whitened,
            lost={str(rank): round(x, 5) for rank, x in zip(ranks, lost, strict=True)},
        )


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None and (frame := frame.f_back) is not None:
        yield frame


def _has_closure(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether step() got a closure. The first of ``args`` is the optimizer."""
    return (args[1] if len(args) > 1 else kwargs.get("closure")) is not None


def _check_top(top: int | float) -> int | float:
    if isinstance(top, float) and 0 < top <= 1:
        return top
    if isinstance(top, float):
        raise ValueError(f"top={top}: must be a number of eigenvalues, at least 1, or a share in (0, 1]")
    return check_count("top", top, 1, "at least 1, or a share of the axis in (0, 1]")


def _writer(tensorboard: Any) -> tuple[Any, bool]:
    """The writer, and whether to close it."""
    if tensorboard is None or is_writer(tensorboard):
        return tensorboard, False
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError(missing(error.name or "tensorboard", "spectra"), name=error.name) from error
    return SummaryWriter(str(tensorboard)), True

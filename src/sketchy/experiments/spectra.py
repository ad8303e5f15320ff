"""The paper's spectral analysis: spectra of a training run, and a control with Gaussian gradients."""

import io
import json
import math
import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from matplotlib.figure import Figure

import sketchy
from sketchy.analysis.spectra import Spectrum, SpectrumMonitor, read
from sketchy.experiments.comparison import contenders
from sketchy.experiments.plot import COLOURS
from sketchy.experiments.pool import Stopped
from sketchy.experiments.resume import claim, finished, refuse_others
from sketchy.experiments.tasks import Task
from sketchy.experiments.training import Record, Training
from sketchy.files import START_AGAIN, damaged, load, save, write
from sketchy.optim.engine import Engine

Value = Literal["share", "intrinsic_dimension"]
BOUNDS = {"share": ("share_low", "share_high"), "intrinsic_dimension": ("intrinsic_low", "intrinsic_high")}
LETTERS = {"left": "L", "right": "R"}
SAVE_EVERY = 60.0  # seconds

# ---- the training run


@dataclass(frozen=True)
class Watched:
    """Everything that determines the records of a run."""

    task: str
    optimizer: str  # one of `comparison.contenders`
    rate: float
    rank: int  # of the sketches
    top: int | float
    steps: int
    every: int  # steps between two recordings
    seed: int
    sketchy: str = sketchy.__version__
    torch: str = str(torch.__version__)


def watch(
    task: Task,
    options: Watched,
    out: Path,
    *,
    tensorboard: Path | None = None,
    stopped: Stopped = lambda: False,
    save_every: float = SAVE_EVERY,
) -> Iterator[Record]:
    """Train and write the spectra to ``out``/spectra.jsonl; yields after each step. Checks options at once.

    For sketched optimizers, the covariances are read from their states. For the others, the monitor keeps its
    own in float64: the error bounds of Shampoo's float32 factors assume the worst rounding in each step, and
    are too loose for sums over many eigenvalues. Everything is saved in ``out`` every ``save_every`` seconds,
    and when ``stopped`` returns True. The same call then resumes, with the same records as without a stop. A
    directory of other options is refused.
    """
    makers, path, checkpoint = contenders(options.rank), out / "spectra.jsonl", out / "checkpoint.pt"
    if options.optimizer not in makers:
        raise ValueError(f"optimizer={options.optimizer!r}: must be one of {', '.join(makers)}")
    if not save_every >= 0:
        raise ValueError(f"save_every={save_every}: must be at least 0 (seconds)")
    refuse_others(out, asdict(options), results=path.name)
    kept = load(checkpoint, "run", "covariances")
    run = Training(
        task, lambda m: makers[options.optimizer](m, options.rate), steps=options.steps, seed=options.seed
    )
    if kept:
        with damaged(str(checkpoint), START_AGAIN):
            run.load_state_dict(kept["run"])
    made = run.optimizer
    monitor = SpectrumMonitor(
        made if _knows_plain_covariances(made) else run.model,
        options.every,
        top=options.top,
        exact_up_to=1024,
        rank=options.rank,
        tensorboard=tensorboard,
        resumed_at=run.record.step,
        path=path,
    )
    if kept:
        with damaged(str(checkpoint), START_AGAIN):
            monitor.load_state_dict(kept["covariances"])
    claim(out, asdict(options), results=path.name)
    # the monitor appends: remove lines of another run, and of steps that will be taken again
    lines = [record for record in read(path) if record.step <= run.record.step] if kept else []
    write(path, "".join(f"{json.dumps(asdict(line))}\n" for line in lines))

    def steps() -> Iterator[Record]:
        saved = time.monotonic()
        with monitor:
            for record in run:
                yield record
                unfinished, stop = record.step < record.steps and not record.diverged, stopped()
                if unfinished and (stop or time.monotonic() - saved >= save_every):
                    save(checkpoint, {"run": run.state_dict(), "covariances": monitor.state_dict()})
                    saved = time.monotonic()
                if unfinished and stop:
                    return
        checkpoint.unlink(missing_ok=True)

    return steps()


# ---- statistics over the weights, and figures


@dataclass(frozen=True)
class Band:
    """Statistics of one of the two numbers at one step, over all weights and blocks.

    ``first_quartile`` is that of the certified lower bounds, ``third_quartile`` that of the upper bounds. For
    exact spectra this is the interquartile range. For sketched spectra it contains the true one.
    """

    axis: str
    step: int
    covariances: int
    median: float
    mean: float  # what the paper draws
    first_quartile: float
    third_quartile: float


def bands(records: Sequence[Spectrum], value: Value) -> list[Band]:
    """A band for each axis and step. Covariances that are zero are left out."""
    groups: dict[tuple[str, int], list[Spectrum]] = {}
    for record in records:
        if getattr(record, value) is not None:
            groups.setdefault((record.axis, record.step), []).append(record)
    found = []
    for (axis, step), group in sorted(groups.items()):
        middle, low, high = (
            np.array([getattr(record, name) for record in group]) for name in (value, *BOUNDS[value])
        )
        first, third = float(np.quantile(low, 0.25)), float(np.quantile(high, 0.75))
        found.append(
            Band(axis, step, len(group), float(np.median(middle)), float(middle.mean()), first, third)
        )
    return found


def describe(records: Sequence[Spectrum], value: Value) -> str:
    """A caption: the number, k and d, how many covariances, and whether they are exact."""
    tops = sorted({(record.top, record.dim) for record in records})
    some = ", ".join(f"{k} of {d}" for k, d in tops[:3]) + (", ..." if len(tops) > 3 else "")
    sketched = {(r.parameter, r.block, r.axis) for r in records if r.rank < r.dim}
    every = {(r.parameter, r.block, r.axis) for r in records}
    exact = "all exact" if not sketched else f"{len(sketched)} sketched, with certified bounds"
    what = f"mass in the top k ({some})" if value == "share" else "intrinsic dimension tr C / λ_max"
    return f"{what}; {len(every)} covariances, {exact}"


def picture(records: Sequence[Spectrum], value: Value, *, title: str) -> bytes:
    """One of the two figures, as PNG: median, mean and quartiles over the weights, a colour for each axis."""
    figure = Figure(figsize=(7.2, 4.6), dpi=130, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(textwrap.fill(f"{title}: {describe(records, value)}", 85), fontsize=10, loc="left")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    shown = bands(records, value)
    for axis, colour in zip(dict.fromkeys(band.axis for band in shown), COLOURS, strict=False):
        mine = [band for band in shown if band.axis == axis]
        steps = [band.step for band in mine]
        name = LETTERS.get(axis, axis)
        axes.fill_between(
            steps,
            [band.first_quartile for band in mine],
            [band.third_quartile for band in mine],
            color=colour,
            alpha=0.2,
            linewidth=0,
        )
        axes.plot(steps, [b.median for b in mine], color=colour, label=f"{name}: median, quartiles")
        axes.plot(steps, [b.mean for b in mine], color=colour, linestyle=":", label=f"{name}: mean")
    axes.set_xlabel("step")
    axes.set_ylabel("share of the mass" if value == "share" else "intrinsic dimension")
    axes.set_ylim(bottom=0)
    if value == "share":
        axes.set_ylim(0, 1.02)
    if shown:
        axes.legend(frameon=False, ncols=2)
    content = io.BytesIO()
    figure.savefig(content, format="png", metadata={"Software": None})
    return content.getvalue()


# ---- the control experiment

DIM, DRAWS, BETA2, TRIALS = 1024, 10_000, 0.999, 20
PUBLISHED = {1: (324.63, 0.52), 64: (862.13, 0.25)}  # columns → mean and standard error
_COLUMNS = 4096  # columns in one product
_PARTS = 4  # row blocks of the product; blocks below the diagonal are not computed


@dataclass(frozen=True)
class Control:
    """The intrinsic dimension of Gaussian covariances, and the paper's."""

    columns: int  # the paper's d
    trials: int
    mean: float
    standard_error: float
    paper_mean: float
    paper_standard_error: float

    @property
    def distance(self) -> float:
        """The difference of the two means, divided by its standard error."""
        return abs(self.mean - self.paper_mean) / math.hypot(self.standard_error, self.paper_standard_error)

    @property
    def agrees(self) -> bool:
        return self.distance <= 3


@dataclass(frozen=True)
class Trial:
    """One covariance of the control experiment."""

    columns: int
    seed: int


def trials(count: int, path: Path, *, stopped: Stopped = lambda: False) -> Iterator[tuple[Trial, float]]:
    """Each trial with its intrinsic dimension, saved in ``path``. Ends when ``stopped`` returns True."""
    planned = [Trial(columns, 1_000_003 * columns + i) for columns in PUBLISHED for i in range(count)]

    def draw(trial: Trial) -> float | None:
        return None if stopped() else gaussian_dimension(trial.columns, seed=trial.seed)

    return finished(planned, path, draw, read=float)


def control(columns: int, values: Sequence[float]) -> Control:
    """Mean and standard error of the values of all trials."""
    if len(values) < 2:
        raise ValueError(f"trials={len(values)}: must be at least 2, for a standard error")
    mean, error = float(np.mean(values)), float(np.std(values, ddof=1) / math.sqrt(len(values)))
    return Control(columns, len(values), mean, error, *PUBLISHED[columns])


def gaussian_dimension(
    columns: int, *, seed: int, dim: int = DIM, draws: int = DRAWS, beta2: float = BETA2
) -> float:
    """The intrinsic dimension of Σ_{i < n} β₂^i x_i x_iᵀ for dim x columns matrices x_i of N(0, 1) entries.

    All n terms are summed. Products are computed in float32 and added in float64. The relative error of the
    result is at most 1e-6.
    """
    generator = torch.Generator().manual_seed(seed)
    C = torch.zeros(dim, dim, dtype=torch.float64)
    cuts = [dim * part // _PARTS for part in range(_PARTS + 1)]
    for some in torch.arange(draws).split(max(1, _COLUMNS // columns)):
        X = torch.randn(dim, len(some) * columns, generator=generator)
        X *= (beta2 ** (some.double() / 2)).float().repeat_interleave(columns)
        for top, bottom in pairwise(cuts):
            C[top:bottom, top:] += X[top:bottom] @ X[top:].T
    return float(C.trace() / torch.linalg.eigvalsh(C, UPLO="U")[-1])


def _knows_plain_covariances(optimizer: Any) -> bool:
    """Whether the optimizer's own sketches are those to record: of gradients that were not whitened first."""
    sketched = isinstance(optimizer, Engine) and not isinstance(optimizer, sketchy.Shampoo)
    return sketched and not any(group["whiten"] for group in optimizer.param_groups)

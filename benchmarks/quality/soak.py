"""Soak: do bases, certificates, memory and loss stay good over 20,000 steps?

    python -m benchmarks.quality.soak [--steps N] [--optimizers ...]
    python -m benchmarks.quality.soak --table benchmarks/results/soak.jsonl

Each optimizer trains a noisy linear regression in float32 and in bfloat16, with four decays. Rows go to
benchmarks/results/soak.jsonl. After a Ctrl-C the same command continues with the run that was interrupted.
"""

import math
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import torch
import tyro
from torch import Tensor, nn

from benchmarks.common.arguments import at_least, known
from benchmarks.common.memory import Live, live, settle
from benchmarks.common.provenance import machine
from benchmarks.common.results import RESULTS, load, save
from benchmarks.common.resumable import resumable
from benchmarks.speed.step_table import about
from sketchy import Shampoo, SketchyAdagrad, SketchyShampoo, SketchySOAP
from sketchy.analysis.markdown import table
from sketchy.core.axes import unfold
from sketchy.core.sketch import Sketch
from sketchy.core.tasks import run
from sketchy.core.whitening import whitening
from sketchy.experiments.mistakes import user_mistakes
from sketchy.experiments.summary import ResultRow
from sketchy.optim.engine import Engine

FILE = "soak.jsonl"
STEPS, CHECKS = 20_000, 10
PERIOD = 100  # steps between two folds of the dense covariances
BETA2 = (0.95, 0.999, 0.9999, 1.0)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
MEASURES = ("orthonormality", "error", "bound", *Live._fields)
RANK = 6
OPTIMIZERS: dict[str, tuple[type[Engine], dict[str, Any]]] = {
    "SketchySOAP": (SketchySOAP, {"rank": RANK}),
    "SketchyShampoo": (SketchyShampoo, {"rank": RANK}),
    "Shampoo": (Shampoo, {}),
    "SketchyAdagrad": (SketchyAdagrad, {"rank": RANK}),
}


def rate(beta2: float) -> float:
    """The learning rate of all: sums without decay need a larger one."""
    return 1e-2 if beta2 < 1 else 0.3


class Regression:
    """y = W x + b + noise. Each season, other directions of x are large; the best weights stay the same."""

    rows, columns, batch, seasons, noise = 24, 16, 8, 10, 0.3

    def __init__(self, dtype: torch.dtype, steps: int) -> None:
        self.rng = torch.Generator().manual_seed(0)
        self.best = self._normal(self.rows, self.columns), self._normal(self.rows)
        self.Q = torch.linalg.qr(self._normal(self.columns, self.columns)).Q
        self.scales = torch.arange(1, self.columns + 1).float().rsqrt()
        self.weights = [nn.Parameter(torch.zeros_like(best, dtype=dtype)) for best in self.best]
        self.season = max(1, steps // self.seasons)

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.rng)

    def backward(self, step: int) -> None:
        """Set the gradients for a new batch."""
        scales = self.scales.roll(3 * (step // self.season))
        X = (self._normal(self.batch, self.columns) * scales) @ self.Q
        W, b = (p.detach() - best for p, best in zip(self.weights, self.best, strict=True))
        R = torch.addmm(b + self.noise * self._normal(self.batch, self.rows), X, W.T) / self.batch
        for p, G in zip(self.weights, (R.T @ X, R.sum(0)), strict=True):
            p.grad = G.to(p.dtype)

    def loss(self) -> float:
        """How far the expected loss, averaged over seasons, is above its minimum."""
        W, b = (p.detach().double() - best for p, best in zip(self.weights, self.best, strict=True))
        return (self.scales.square().mean() * W.square().sum() + b.square().sum()).item() / 2


class Twin:
    """The dense covariances, in float64, of what the sketches of one weight were fed."""

    def __init__(self, optimizer: Engine, p: nn.Parameter) -> None:
        (group,) = optimizer.param_groups
        options = {name: value for name, value in group.items() if name != "params"}
        self.plan, self.p, self.beta2 = optimizer.plan_of(p.shape, p.dtype, **options), p, group["betas"][1]
        self.statistics, self.state = self.plan.statistics, optimizer.state
        self.C = [torch.zeros(axis.dim, axis.dim, dtype=torch.float64) for axis in self.statistics.live]
        self.fed: list[tuple[Tensor, list[Sketch]]] = []  # gradients, and the sketches that whiten them

    def sketches(self) -> list[Sketch]:
        """The sketches of all axes as a step reads them."""
        state = self.state.get(self.p) or self.plan.create(self.p.device)
        stored = (axis.stored(state) for axis in self.statistics.live)
        decode = self.statistics.codec.decode
        return [Sketch(decode(s.basis), s.eigenvalues, s.escaped_mass, s.error_bound) for s in stored]

    def feed(self) -> None:
        """Remember the gradient of the next step."""
        assert self.p.grad is not None
        seen = self.sketches() if self.statistics.whitened else []
        copies = [Sketch(**{name: x.clone() for name, x in sketch.tensors.items()}) for sketch in seen]
        self.fed.append((self.p.grad.clone(), copies))

    def fold(self) -> None:
        """C ← β₂ C + A Aᵀ for all that was fed. A is the gradient, or whitened by the other axis."""
        blocks = self.plan.layout.split(torch.stack([G for G, _ in self.fed]).to(self.plan.work)).double()
        decays = self.beta2 ** torch.arange(len(blocks) - 1, -1, -1, dtype=torch.float64)
        for i, axis in enumerate(self.statistics.live):
            A = unfold(blocks, axis.index)
            if self.statistics.whitened:
                others = [seen[1 - i].tensors for _, seen in self.fed]
                other: dict[str, Any] = {name: torch.cat([x[name] for x in others]) for name in others[0]}
                A = run(whitening(Sketch(**other)).form(A))
            factor = (A * decays.sqrt().reshape(-1, 1, 1)).transpose(0, 1).flatten(1)
            self.C[i].mul_(self.beta2 ** len(blocks)).add_(factor @ factor.T)
        self.fed.clear()

    def check(self) -> Tensor:
        """The worst of all axes: ‖UᵀU - I‖ in eps, error / bound, bound / ‖C‖."""
        found = []
        for C, axis, sketch in zip(self.C, self.statistics.live, self.sketches(), strict=True):
            stored = axis.stored(self.state[self.p]).basis[0]
            U, V = stored.double(), sketch.basis[0].double()
            off = (U.T @ U - torch.eye(axis.rank)).abs().max() / torch.finfo(stored.dtype).eps
            error = torch.linalg.matrix_norm(C - (V * sketch.eigenvalues[0]) @ V.T, 2)
            bound = sketch.error_bound[0]
            found.append(torch.stack([off, error / bound, bound / torch.linalg.matrix_norm(C, 2)]))
        return torch.stack(found).amax(0)


def train(
    optimizer: torch.optim.Optimizer,
    problem: Regression,
    steps: int,
    twins: Sequence[Twin] = (),
    after: Callable[[int], None] = lambda step: None,
) -> float:
    """The mean loss of the last tenth. The rate falls to a tenth along a cosine. ``after`` a period."""
    (group,) = optimizer.param_groups
    lr, losses, count = group["lr"], 0.0, 0
    for step in range(steps):
        if step % PERIOD == 0:
            group["lr"] = lr * (0.55 + 0.45 * math.cos(math.pi * step / steps))
        problem.backward(step)
        for twin in twins:
            twin.feed()
        optimizer.step()
        if (step + 1) % PERIOD == 0:
            for twin in twins:
                twin.fold()
            if step >= steps - steps // CHECKS:
                losses, count = losses + problem.loss(), count + 1
            after(step + 1)
    return losses / count


def soak(name: str, dtype: str, beta2: float, steps: int = STEPS) -> ResultRow:
    """One run: what was found at the checks, growth of memory, and loss."""
    cls, options = OPTIMIZERS[name]
    problem = Regression(DTYPES[dtype], steps)
    lr, beta1 = rate(beta2), cls._options()["betas"][0]
    if cls is SketchyAdagrad:  # it divides by the root of a sum, of a whole matrix
        lr *= 10 if beta2 == 1 else 10 / (1 - beta2) ** 0.5
    if beta2 == 1:  # steps become shorter and shorter, so any decay of the weights would win
        options = {**options, "weight_decay": 0.0}
    optimizer = cls(problem.weights, lr, (beta1, beta2), **options)
    twins = [twin for p in problem.weights if (twin := Twin(optimizer, p)).statistics.live]
    # tensors, so that new numbers need no new objects
    checks, traced = torch.zeros(CHECKS, len(MEASURES), dtype=torch.float64), torch.zeros(2)
    every, start = steps // CHECKS, steps - max(2 * PERIOD, steps // 20)

    def after(step: int) -> None:
        if step == start:  # only now: tracing doubles the time of a step
            tracemalloc.start(1)
        if step in (start + PERIOD, steps):
            settle()
            traced[step // steps] = tracemalloc.get_traced_memory()[0]
        if step == steps:
            tracemalloc.stop()
        if step % every == 0:
            worst = torch.stack([twin.check() for twin in twins]).amax(0)
            checks[step // every - 1] = torch.tensor([*worst, *live()])

    loss = train(optimizer, problem, steps, twins, after)
    finite = all(x.isfinite().all() for p in problem.weights for x in (p, *optimizer.state[p].values()))
    return {
        "optimizer": name,
        "dtype": dtype,
        "beta2": beta2,
        "steps": steps,
        "samples": [dict(zip(MEASURES, row, strict=True)) for row in checks.tolist()],
        "traced": traced.tolist(),
        "finite": finite,
        "loss": loss,
        **beside(dtype, beta2, steps),
    }


@cache
def beside(dtype: str, beta2: float, steps: int) -> ResultRow:
    """The loss of AdamW with the same β₂, rate and schedule, or of AdaGrad for β₂ = 1."""
    problem = Regression(DTYPES[dtype], steps)
    peer: torch.optim.Optimizer
    if beta2 < 1:
        peer = torch.optim.AdamW(problem.weights, lr=rate(beta2), betas=(0.9, beta2))
    else:
        peer = torch.optim.Adagrad(problem.weights, lr=rate(beta2))
    return {"peer": type(peer).__name__, "peer_loss": train(peer, problem, steps)}


COLUMNS = (
    "β₂", "weights", "optimizer", "UᵀU - I, eps", "error / bound", "bound / ‖C‖", "growth: tensors", "blocks",
    "bytes", "loss", "AdamW's, or AdaGrad's",
)  # fmt: skip


def worst(row: ResultRow, measure: str) -> float:
    return max(sample[measure] for sample in row["samples"])


def growth(row: ResultRow) -> tuple[int, int, int]:
    """Tensors and blocks that the second half added, and bytes of Python that the last steps added."""
    half, end = row["samples"][CHECKS // 2 - 1], row["samples"][-1]
    before, after = row["traced"]
    return int(end["tensors"] - half["tensors"]), int(end["blocks"] - half["blocks"]), int(after - before)


def lines(rows: Sequence[ResultRow]) -> list[list[str]]:
    """A line for each run: the worst of its checks, growth of memory, and losses."""
    return [
        [
            f"{row['beta2']:g}",
            row["dtype"],
            row["optimizer"],
            *(f"{worst(row, measure):.3g}" for measure in MEASURES[:3]),
            *map(str, growth(row)),
            *(f"{row[key]:.2g}" for key in ("loss", "peer_loss")),
        ]
        for row in rows
    ]


def markdown(rows: Sequence[ResultRow]) -> str:
    """The table of the docs."""
    steps = f"{rows[0]['steps']:,} steps, {len(rows)} of {len(BETA2) * len(DTYPES) * len(OPTIMIZERS)} runs"
    commits = ", ".join(sorted({row["commit"] for row in rows}))
    return (
        f"{table(COLUMNS, lines(rows), left=COLUMNS[:3])}\n\n{steps}; {about({**rows[0], 'commit': commits})}"
    )


def page(path: Path) -> str:
    """The table of the docs; a sentence if there are no rows."""
    if not path.exists():
        return "No results yet. `python -m benchmarks.quality.soak` makes them."
    return markdown(load(path, "optimizer"))


@dataclass(frozen=True)
class Options:
    """Check bases, certificates, memory and loss over many steps."""

    steps: int = STEPS
    """Steps of each run, a multiple of 1000."""
    optimizers: tuple[str, ...] = tuple(OPTIMIZERS)
    """The optimizers."""
    beta2: tuple[float, ...] = BETA2
    """The decays."""
    out: Path = RESULTS / FILE
    """The file of the rows."""
    table: Path | None = None
    """Print the rows of this file as a Markdown table, and run nothing."""


def main(arguments: Sequence[str] | None = None) -> None:
    options = tyro.cli(Options, prog="python -m benchmarks.quality.soak", args=arguments)
    with user_mistakes("benchmarks.quality.soak"):
        if options.table is not None:
            print(markdown(load(options.table, "optimizer")))
            return
        known(OPTIMIZERS, optimizers=options.optimizers)
        at_least(1000, steps=options.steps)
        if options.steps % 1000:
            raise ValueError(f"steps={options.steps}: must be a multiple of 1000")
    torch.set_num_threads(1)
    here = machine()
    runs = {
        f"{name} {dtype} {beta2:g}": (name, dtype, beta2)
        for beta2, dtype, name in product(options.beta2, DTYPES, options.optimizers)
    }

    def measure(run: str) -> ResultRow:
        return {**soak(*runs[run], options.steps), **here}

    with resumable("benchmarks.quality.soak", runs, options, options.out, measure) as measured:
        rows = []
        for run, row in measured:
            print(run, *lines([row])[0][3:], flush=True)
            rows.append(row)
        save(options.out, rows)
    print(markdown(rows))


if __name__ == "__main__":
    main()

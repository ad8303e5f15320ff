"""How much steps amplify rounding: what one rounding of the gradients to float32 does to six steps.

    python -m benchmarks.quality.rounding

Gradients have power-law spectra along both axes and drift. Every entry is changed by a random share of at
most eps / 2, half of float32's last digit. The amplification is the relative change of the sum of six steps,
divided by eps / 2. In float64 the arithmetic adds nothing, so this is the condition of the rule itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import tyro
from torch import Tensor, nn
from torch.optim import Optimizer

import sketchy
from benchmarks.common.provenance import machine
from benchmarks.common.results import RESULTS, load, save
from sketchy.analysis.markdown import table
from sketchy.experiments.mistakes import user_mistakes

FILE = RESULTS / "rounding.jsonl"
ROWS, COLUMNS, DRIFT = 48, 32, 0.02
STEPS, STREAMS = 6, 4
RANK = 12
POWERS = (1.0, 2.0, 3.0)
HALF_A_DIGIT = torch.finfo(torch.float32).eps / 2
OPTIMIZERS: dict[str, tuple[type[Optimizer], dict[str, Any]]] = {
    "AdamW": (torch.optim.AdamW, {}),
    **{
        f"{kind.__name__}, rank {rank}": (kind, {"rank": rank})
        for kind in (sketchy.SketchyShampoo, sketchy.SketchySOAP)
        for rank in (RANK, ROWS)
    },
}


@dataclass(frozen=True)
class Options:
    """Measure how much steps amplify one rounding of the gradients; a few seconds."""

    out: Path = FILE
    """The file of the results."""


@cache
def stream(power: float, steps: int) -> tuple[Tensor, ...]:
    """Gradients in float64 with singular values like i^-power along both axes. The left basis drifts."""
    generator = torch.Generator().manual_seed(0)

    def randn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    a, b = (torch.arange(1, d + 1, dtype=torch.float64) ** -power for d in (ROWS, COLUMNS))
    Q, P = (torch.linalg.qr(randn(d, d))[0] for d in (ROWS, COLUMNS))
    S = randn(ROWS, ROWS) / ROWS**0.5
    turn = torch.matrix_exp(DRIFT * (S - S.T))
    gradients = []
    for _ in range(steps):
        gradients.append((Q * a) @ randn(ROWS, COLUMNS) @ (P * b).T)
        Q = turn @ Q
    return tuple(gradients)


def steps(kind: type[Optimizer], dtype: torch.dtype, gradients: Sequence[Tensor], **options: Any) -> Tensor:
    """Steps (len(gradients), rows * columns), float64, all from the same weights: only states differ."""
    p = nn.Parameter(torch.zeros(ROWS, COLUMNS, dtype=dtype))
    optimizer = kind([p], lr=1.0, weight_decay=0.0, **options)  # type: ignore[call-arg]
    taken = []
    for G in gradients:
        p.grad = G.to(dtype)
        optimizer.step()
        taken.append(p.detach().flatten().to(torch.float64, copy=True))
        p.detach().zero_()
    return torch.stack(taken)


def amplifications(
    kind: type[Optimizer], power: float, dtype: torch.dtype, **options: Any
) -> Iterator[float]:
    """One number for each of several streams."""
    everything = stream(power, STEPS * STREAMS)
    for seed in range(STREAMS):
        generator = torch.Generator().manual_seed(seed)
        given = [G.float().double() for G in everything[STEPS * seed : STEPS * (seed + 1)]]
        changes = (2 * torch.rand(G.shape, generator=generator, dtype=torch.float64) - 1 for G in given)
        changed = [G * (1 + HALF_A_DIGIT * change) for G, change in zip(given, changes, strict=True)]
        before, after = (steps(kind, dtype, some, **options).sum(0) for some in (given, changed))
        yield float((after - before).norm() / before.norm() / HALF_A_DIGIT)


def measure() -> Iterator[dict[str, Any]]:
    for name, (kind, options) in OPTIMIZERS.items():
        for dtype in (torch.float32, torch.float64):
            for power in POWERS:
                found = list(amplifications(kind, power, dtype, **options))
                yield {"optimizer": name, "dtype": str(dtype)[6:], "power": power, "samples": found}


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The largest amplification over the streams, by optimizer and spectrum."""
    header = ["optimizer", "arithmetic", *(f"σ = i^-{power:g}" for power in POWERS)]
    lines: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        lines.setdefault((row["optimizer"], row["dtype"]), []).append(_two_digits(max(row["samples"])))
    body = ([*key, *values] for key, values in lines.items())
    return f"{table(header, body, left=header[:2])}\n\n{rows[0]['processor']}, {rows[0]['commit']}"


def _two_digits(value: float) -> str:
    """
    >>> _two_digits(37412.0), _two_digits(0.8412)
    ('37,000', '0.84')
    """
    return f"{float(f'{value:.1e}'):,.0f}" if value >= 10 else f"{value:.2g}"


def main(arguments: Sequence[str] | None = None) -> None:
    options = tyro.cli(Options, prog="python -m benchmarks.quality.rounding", args=arguments)
    torch.set_num_threads(1)
    here = machine()
    rows = [{**row, **here} for row in measure()]
    with user_mistakes("benchmarks.quality.rounding"):
        save(options.out, rows)
    print(markdown(load(options.out, "optimizer")))


if __name__ == "__main__":
    main()

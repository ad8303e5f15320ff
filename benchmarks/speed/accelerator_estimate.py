"""Estimate the time of a step on an A100 and an H100, from operation and byte counts.

    python -m benchmarks.speed.accelerator_estimate [--rank L] [--width D] [--layers N] [--tokens T]

Nothing is measured. A product takes the time of its arithmetic or of its memory traffic, whichever is longer.
Other operations take the time of their memory traffic. It is counted in a step on meta tensors, which use
the code path of an accelerator. The sustained shares of peak speed and the time of an eigenproblem are
assumptions; they are printed with the table. Products are in TF32, as with
``torch.set_float32_matmul_precision("high")``, or in float32, torch's default.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from unittest import mock

import torch
import tyro
from rich import box
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.common.arguments import at_least
from benchmarks.speed.product_floor import Product, shampoo, soap
from sketchy import SketchyShampoo, SketchySOAP
from sketchy.analysis.markdown import table
from sketchy.experiments.mistakes import user_mistakes


@dataclass(frozen=True)
class Device:
    name: str
    fp32: float  # flop/s, dense, from the data sheet
    tf32: float
    bf16: float
    bandwidth: float  # bytes/s


DEVICES = (
    Device("A100 80GB", 19.5e12, 156e12, 312e12, 2.04e12),
    Device("H100 SXM", 67e12, 494e12, 989e12, 3.35e12),
)
ARITHMETIC, TRAFFIC, TRAINING = 0.6, 0.8, 0.4  # sustained shares of peak: products, memory, a training step
# Seconds for one eigenproblem. Libraries have a batched kernel up to 32 x 32. They solve larger ones one by
# one, in about a millisecond at 64 x 64 and linearly more above.
BATCHED_UP_TO, BATCHED, ONE_BY_ONE = 32, 2e-5, 1e-3 / 64
ADAMW_PASSES = 7  # fused: reads p, g, m, v; writes p, m, v


@dataclass(frozen=True)
class Options:
    """Estimate a step on accelerators; the defaults are a transformer of 1.3 billion parameters."""

    rank: int = 64
    """The rank of the sketches."""
    width: int = 2048
    """The width d of the transformer."""
    layers: int = 24
    """Its layers, of four matrices each: 3d x d, d x d, 4d x d, d x 4d."""
    tokens: int = 65_536
    """Tokens per step on one device."""


def bytes_moved(p: Product) -> int:
    """In float32, each operand once. A product that adds to its target reads the target, too."""
    operands = p.rows * p.inner + p.inner * p.columns + p.rows * p.columns
    added = p.rows * p.columns if p.name in ("U Uᵀ X", "[U, edge] [inner; Vᵀ]") else 0
    return 4 * (operands + added)


def seconds(products: list[Product], device: Device, rate: float) -> float:
    return sum(
        max(p.flops / (ARITHMETIC * rate), bytes_moved(p) / (TRAFFIC * device.bandwidth)) for p in products
    )


def eigenproblem(rank: int) -> float:
    """Assumed seconds."""
    return BATCHED if rank <= BATCHED_UP_TO else ONE_BY_ONE * rank


class Traffic(TorchDispatchMode):
    """Counts the bytes that operations read and write, without products, which have their own count."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = self.operations = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if func.is_view or "empty" in name or name in ("_unsafe_view", "detach", "lift_fresh"):
            return out
        self.operations += 1
        if name in ("mm", "bmm", "addmm", "baddbmm", "baddbmm_"):
            return out
        read, written = _bytes((args, kwargs)), _bytes(out)
        if name.startswith("_foreach") and not written:
            written = _bytes(args[0])
        if "copy_" in name or name in ("fill_", "zero_"):  # these don't read their target
            read -= _bytes(args[0])
        self.bytes += read + written
        return out


def _bytes(tree: object) -> int:
    return sum(x.numel() * x.element_size() for x in tree_leaves(tree) if isinstance(x, torch.Tensor))


def traffic(kind: type[Optimizer], shapes: list[tuple[int, int]], layers: int, rank: int) -> Traffic:
    """The traffic of the second step."""
    params = [nn.Parameter(torch.empty(shape, device="meta")) for _ in range(layers) for shape in shapes]
    optimizer = kind(params, rank=rank, path="sketch")  # type: ignore[call-arg]
    for p in params:
        p.grad = torch.empty_like(p)
    with mock.patch.object(
        torch, "autocast", lambda *_, **__: nullcontext()
    ):  # torch has no autocast for meta tensors
        optimizer.step()
        with Traffic() as found:
            optimizer.step()
    return found


COLUMNS = (
    "device", "optimizer", "training step / AdamW's", "without eigenproblems", "products", "in float32",
    "other operations", "eigenproblems", "AdamW", "forward and backward",
)  # fmt: skip


@dataclass(frozen=True)
class Estimate:
    """One step of both optimizers on each device."""

    options: Options

    @property
    def shapes(self) -> list[tuple[int, int]]:
        d = self.options.width
        return [(3 * d, d), (d, d), (4 * d, d), (d, 4 * d)]

    @property
    def weights(self) -> int:
        return self.options.layers * sum(m * n for m, n in self.shapes)

    @property
    def problems(self) -> int:
        return 2 * len(self.shapes) * self.options.layers

    @cached_property
    def moved(self) -> dict[type[Optimizer], Traffic]:
        o = self.options
        return {kind: traffic(kind, self.shapes, o.layers, o.rank) for kind in (SketchyShampoo, SketchySOAP)}

    def lines(self) -> Iterator[list[str]]:
        for device in DEVICES:
            for kind, counted in ((SketchyShampoo, shampoo), (SketchySOAP, soap)):
                yield self._line(device, kind, counted)

    def _line(
        self, device: Device, kind: type[Optimizer], counted: Callable[..., list[Product]]
    ) -> list[str]:
        o, rate = self.options, TRAFFIC * device.bandwidth
        all_products = [p for m, n in self.shapes for p in counted(m, n, o.rank, o.rank)]
        products, plain = (
            o.layers * seconds(all_products, device, peak) for peak in (device.tf32, device.fp32)
        )
        passes, small = self.moved[kind].bytes / rate, self.problems * eigenproblem(o.rank)
        adamw = ADAMW_PASSES * 4 * self.weights / rate
        training = 6 * self.weights * o.tokens / (TRAINING * device.bf16)
        times = (products, plain, passes, small, adamw, training)
        ratios = (
            (training + step) / (training + adamw) for step in (products + passes + small, products + passes)
        )
        shown = [f"{ratio:.3f}" for ratio in ratios] + [f"{1e3 * t:,.0f} ms" for t in times]
        return [device.name, kind.__name__, *shown]

    def words(self) -> str:
        """The assumptions, the counts, and what is missing."""
        o = self.options
        counts = "; ".join(
            f"{kind.__name__}: {found.bytes / (4 * self.weights):.0f} reads and writes of all weights without"
            f" products, {found.operations:,} operations"
            for kind, found in self.moved.items()
        )
        return (
            f"One step, {self.weights / 1e9:.2f} billion sketched weights, rank {o.rank}, {o.tokens:,} tokens"
            f" per step and device. Assumed: {ARITHMETIC:.0%} of the peak of TF32 (or of float32),"
            f" {TRAFFIC:.0%} of memory bandwidth, {TRAINING:.0%} of bfloat16's peak in training,"
            f" {1e3 * eigenproblem(o.rank):g} ms for each of {self.problems} eigenproblems."
            f" Counted: {counts}. Not included: launches, embeddings."
        )

    def markdown(self) -> str:
        return f"{table(COLUMNS, self.lines(), left=COLUMNS[:2])}\n\n{self.words()}"


def main(arguments: Sequence[str] | None = None) -> None:
    options = tyro.cli(Options, prog="python -m benchmarks.speed.accelerator_estimate", args=arguments)
    with user_mistakes("benchmarks.speed.accelerator_estimate"):
        at_least(2, rank=options.rank)
        at_least(1, layers=options.layers, tokens=options.tokens)
        at_least(options.rank, width=options.width)
    estimate = Estimate(options)
    shown = Table(box=box.SIMPLE_HEAD)
    for column in COLUMNS:
        shown.add_column(column)
    for line in estimate.lines():
        shown.add_row(*line)
    console = Console(width=170)
    console.print(shown)
    console.print(estimate.words(), highlight=False)


if __name__ == "__main__":
    main()

"""What a step should cost on an accelerator that is not here, from flop and byte counts alone.

    python -m benchmarks.estimate [--rank L] [--width D] [--layers N] [--tokens T]

A product takes the longer of its arithmetic and its memory traffic; all else its traffic, which is counted
from a step on meta tensors: these take the road of an accelerator, where no value is read. Nothing is
measured: the sustained shares of peak and the time of an eigenproblem are assumptions, printed with it.
"""

from contextlib import nullcontext
from dataclasses import dataclass
from unittest import mock

import torch
import tyro
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.floor import Product, shampoo, soap
from sketchy import SketchyShampoo, SketchySOAP


@dataclass(frozen=True)
class Device:
    name: str
    tf32: float  # flop/s, dense, from the data sheet
    bf16: float
    bandwidth: float  # bytes/s


DEVICES = (Device("A100 80GB", 156e12, 312e12, 2.04e12), Device("H100 SXM", 494e12, 989e12, 3.35e12))
ARITHMETIC, TRAFFIC, TRAINING = 0.6, 0.8, 0.4  # sustained shares of peak: products, memory, a training step
EIGENPROBLEM = 1e-3  # seconds for one of 64 x 64; libraries solve small ones one after another
ADAMW_PASSES = 7  # fused: reads p, g, m, v; writes p, m, v


@dataclass(frozen=True)
class Options:
    """Estimate a step on accelerators; the defaults are a transformer of 1.3 billion parameters."""

    rank: int = 64
    """Of the sketches."""
    width: int = 2048
    """Of the transformer."""
    layers: int = 24
    """Of four matrices each: 3d x d, d x d, 4d x d, d x 4d."""
    tokens: int = 65_536
    """On one device, a step."""


def bytes_moved(p: Product) -> int:
    """float32, each operand once; a product that is added to its target reads it, too."""
    operands = p.rows * p.inner + p.inner * p.columns + p.rows * p.columns
    added = p.rows * p.columns if p.name in ("U Uᵀ X", "[U, edge] [inner; Vᵀ]") else 0
    return 4 * (operands + added)


def seconds(products: list[Product], device: Device) -> float:
    return sum(
        max(p.flops / (ARITHMETIC * device.tf32), bytes_moved(p) / (TRAFFIC * device.bandwidth))
        for p in products
    )


class Traffic(TorchDispatchMode):
    """Bytes that operations read and write, products apart: those have their own count."""

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
        if "copy_" in name or name in ("fill_", "zero_"):  # what is written over is not read
            read -= _bytes(args[0])
        self.bytes += read + written
        return out


def _bytes(tree: object) -> int:
    return sum(x.numel() * x.element_size() for x in tree_leaves(tree) if isinstance(x, torch.Tensor))


def traffic(kind: type[Optimizer], shapes: list[tuple[int, int]], layers: int, rank: int) -> Traffic:
    """Of one step, after the first."""
    params = [nn.Parameter(torch.empty(shape, device="meta")) for _ in range(layers) for shape in shapes]
    optimizer = kind(params, rank=rank, path="sketch")  # type: ignore[call-arg]
    for p in params:
        p.grad = torch.empty_like(p)
    with mock.patch.object(torch, "autocast", lambda *_, **__: nullcontext()):  # there is none for meta
        optimizer.step()
        with Traffic() as found:
            optimizer.step()
    return found


def main(options: Options) -> None:
    d, l, layers = options.width, options.rank, options.layers
    shapes = [(3 * d, d), (d, d), (4 * d, d), (d, 4 * d)]
    weights = layers * sum(m * n for m, n in shapes)
    problems = 2 * len(shapes) * layers
    table = Table(
        title=f"one step, {weights / 1e9:.2f} billion sketched weights, rank {l}, estimated",
        caption=f"assumed shares of peak: {ARITHMETIC:.0%} of TF32, {TRAFFIC:.0%} of memory,"
        f" {TRAINING:.0%} of bfloat16 in training; {options.tokens:,} tokens a step and device",
    )
    columns = (
        "device", "optimizer", "products", "all else", "eigenproblems", "AdamW", "forward and backward",
        "over AdamW's training step", "without eigenproblems",
    )  # fmt: skip
    for column in columns:
        table.add_column(column)
    moved = {kind: traffic(kind, shapes, layers, l) for kind in (SketchyShampoo, SketchySOAP)}
    for device in DEVICES:
        rate = TRAFFIC * device.bandwidth
        training = 6 * weights * options.tokens / (TRAINING * device.bf16)
        adamw = ADAMW_PASSES * 4 * weights / rate
        for kind, counted in ((SketchyShampoo, shampoo), (SketchySOAP, soap)):
            products = layers * seconds([p for m, n in shapes for p in counted(m, n, l, l)], device)
            passes, small = moved[kind].bytes / rate, problems * EIGENPROBLEM
            times = (products, passes, small, adamw, training)
            ratios = (
                (training + step) / (training + adamw)
                for step in (products + passes + small, products + passes)
            )
            table.add_row(
                device.name,
                kind.__name__,
                *(f"{1e3 * t:,.0f} ms" for t in times),
                *(f"{ratio:.3f}" for ratio in ratios),
            )
    console = Console(width=160)
    console.print(table)
    for kind, found in moved.items():
        console.print(
            f"{kind.__name__}: {found.bytes / (4 * weights):.0f} reads and writes of all weights beside"
            f" products, {found.operations:,} operations."
        )
    console.print(
        f"Eigenproblems: {problems} of {l} x {l}, {1e3 * EIGENPROBLEM:g} ms each. Not in it: launches,"
        " embeddings."
    )


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))

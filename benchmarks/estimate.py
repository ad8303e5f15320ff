"""What a step should cost on an accelerator that is not here, from flop and byte counts alone.

    python -m benchmarks.estimate [--rank L] [--width D] [--layers N] [--tokens T]

A product takes the longer of its arithmetic and its memory traffic; an elementwise pass its traffic. Nothing
is measured: the sustained shares of peak are assumptions, printed with the table.
"""

from dataclasses import dataclass

import tyro
from rich.console import Console
from rich.table import Table

from benchmarks.floor import Product, shampoo, soap


@dataclass(frozen=True)
class Device:
    name: str
    tf32: float  # flop/s, dense, from the data sheet
    bf16: float
    bandwidth: float  # bytes/s


DEVICES = (Device("A100 80GB", 156e12, 312e12, 2.04e12), Device("H100 SXM", 494e12, 989e12, 3.35e12))
ARITHMETIC, TRAFFIC, TRAINING = 0.6, 0.8, 0.4  # sustained shares of peak: products, memory, a training step
# reads and writes of the whole weight beside the products: row norms 1; momentum 2 + 2; the graft's length 1;
# the direction's length 1; the weight 2 + 1
PASSES = 10
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


def main(options: Options) -> None:
    d, l, layers = options.width, options.rank, options.layers
    shapes = [(3 * d, d), (d, d), (4 * d, d), (d, 4 * d)]
    weights = layers * sum(m * n for m, n in shapes)
    table = Table(
        title=f"one step, {weights / 1e9:.2f} billion sketched weights, rank {l}, estimated",
        caption=f"assumed shares of peak: {ARITHMETIC:.0%} of TF32, {TRAFFIC:.0%} of memory,"
        f" {TRAINING:.0%} of bfloat16 in training; {options.tokens:,} tokens a step and device",
    )
    for column in ("device", "optimizer", "products", "passes", "AdamW", "training step", "share of it"):
        table.add_column(column)
    for device in DEVICES:
        rate = TRAFFIC * device.bandwidth
        training = 6 * weights * options.tokens / (TRAINING * device.bf16)
        for name, counted in (("SketchyShampoo", shampoo), ("SketchySOAP", soap)):
            products = layers * seconds([p for m, n in shapes for p in counted(m, n, l, l)], device)
            passes, adamw = (count * 4 * weights / rate for count in (PASSES, ADAMW_PASSES))
            times = (products, passes, adamw, training)
            share = (products + passes) / training
            table.add_row(device.name, name, *(f"{1e3 * t:,.0f} ms" for t in times), f"{share:.1%}")
    console = Console(width=130)
    console.print(table)
    console.print(
        f"Not in it: {2 * len(shapes)} eigendecompositions of {layers} matrices {l} x {l} each, and launches."
    )


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))

"""Estimate the time of a step on an A100 and an H100, from operation and byte counts.

    python -m benchmarks.speed.accelerator_estimate [--rank L] [--width D] [--layers N] [--tokens T]
        [--batch-ms T] [--launch-us T] [--bandwidth B ...] [--tf32 F ...]

Nothing is measured. A product takes the time of its arithmetic or of its memory traffic, whichever is longer.
Other operations take the time of their memory traffic. It is counted in a step on meta tensors, which use
the code path of an accelerator. The peaks of the devices, their sustained shares, the time of a batch of
eigenproblems and that of a launch are assumptions: they are arguments, and are printed with the table. The
host starts operations while the device works, so the longer of the two times counts. Products are in TF32, as
with ``torch.set_float32_matmul_precision("high")``, or in float32, torch's default.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import tyro
from rich import box
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.common.arguments import at_least, positive
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
    batch_ms: float = 2.0
    """Milliseconds of one batch of eigenproblems. Since torch 2.12 all sizes are batched on CUDA. A batched
    solver took 8.4 ms for 500 float32 problems of 100 x 100 (pytorch#174674); ours are fewer, in float64."""
    launch_us: float = 5.0
    """Microseconds of the host for one operation."""
    products: float = 0.6
    """Sustained share of peak flops, in products."""
    traffic: float = 0.8
    """Sustained share of the bandwidth of memory."""
    training: float = 0.4
    """Sustained share of bfloat16's peak flops, in forward and backward."""
    devices: tuple[str, ...] = ("A100 80GB", "H100 SXM")
    """Names of devices. The next four have a number for each, from its data sheet."""
    bandwidth: tuple[float, ...] = (2.04e12, 3.35e12)
    """Bytes per second of memory."""
    fp32: tuple[float, ...] = (19.5e12, 67e12)
    """Flops per second in float32."""
    tf32: tuple[float, ...] = (156e12, 494e12)
    """In TF32, dense."""
    bf16: tuple[float, ...] = (312e12, 989e12)
    """In bfloat16, dense."""

    @property
    def all_devices(self) -> list[Device]:
        numbers = zip(self.devices, self.fp32, self.tf32, self.bf16, self.bandwidth, strict=True)
        return [Device(*each) for each in numbers]


def bytes_moved(p: Product) -> int:
    """In float32, each operand once. A product that adds to its target reads the target, too."""
    operands = p.rows * p.inner + p.inner * p.columns + p.rows * p.columns
    added = p.rows * p.columns if p.name in ("U Uᵀ X", "[U, edge] [inner; Vᵀ]") else 0
    return 4 * (operands + added)


def seconds(products: list[Product], flops: float, bandwidth: float) -> float:
    """``flops``, ``bandwidth``: sustained, per second."""
    return sum(max(p.flops / flops, bytes_moved(p) / bandwidth) for p in products)


class Traffic(TorchDispatchMode):
    """Counts the bytes that operations read and write, without products, which have their own count."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = self.operations = self.batches = 0  # batches: of eigenproblems

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if func.is_view or "empty" in name or name in ("_unsafe_view", "detach", "lift_fresh"):
            return out
        self.operations += 1
        self.batches += name == "_linalg_eigh"
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
    optimizer.step()
    with Traffic() as found:
        optimizer.step()
    return found


COLUMNS = (
    "device", "optimizer", "training step / AdamW's", "without eigenproblems", "products", "in float32",
    "other operations", "eigenproblems", "launches", "AdamW", "forward and backward",
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

    @cached_property
    def moved(self) -> dict[type[Optimizer], Traffic]:
        o = self.options
        return {kind: traffic(kind, self.shapes, o.layers, o.rank) for kind in (SketchyShampoo, SketchySOAP)}

    def lines(self) -> Iterator[list[str]]:
        for device in self.options.all_devices:
            for kind, counted in ((SketchyShampoo, shampoo), (SketchySOAP, soap)):
                yield self._line(device, kind, counted)

    def _line(
        self, device: Device, kind: type[Optimizer], counted: Callable[..., list[Product]]
    ) -> list[str]:
        o, rate, moved = self.options, self.options.traffic * device.bandwidth, self.moved[kind]
        all_products = [p for m, n in self.shapes for p in counted(m, n, o.rank, o.rank)]
        products, plain = (
            o.layers * seconds(all_products, o.products * peak, rate) for peak in (device.tf32, device.fp32)
        )
        passes, small = moved.bytes / rate, moved.batches * o.batch_ms / 1e3
        launches = moved.operations * o.launch_us / 1e6
        adamw = ADAMW_PASSES * 4 * self.weights / rate
        training = 6 * self.weights * o.tokens / (o.training * device.bf16)
        times = (products, plain, passes, small, launches, adamw, training)
        ratios = (
            (training + max(step, launches)) / (training + adamw)
            for step in (products + passes + small, products + passes)
        )
        shown = [f"{ratio:.3f}" for ratio in ratios] + [f"{1e3 * t:,.0f} ms" for t in times]
        return [device.name, kind.__name__, *shown]

    def words(self) -> str:
        """The assumptions, the counts, and what is missing."""
        o = self.options

        def peaks(name: str) -> str:
            return " and ".join(f"{number / 1e12:g}" for number in getattr(o, name))

        counts = "; ".join(
            f"{kind.__name__}: {found.bytes / (4 * self.weights):.0f} reads and writes of all weights without"
            f" products, {found.operations:,} operations, {found.batches} batches of eigenproblems"
            for kind, found in self.moved.items()
        )
        return (
            f"One step, {self.weights / 1e9:.2f} billion sketched weights, rank {o.rank}, {o.tokens:,} tokens"
            f" per step and device. Assumed: {o.products:.0%} of the peak of TF32, {peaks('tf32')} Tflop/s"
            f" (or of float32, {peaks('fp32')}); {o.traffic:.0%} of memory bandwidth,"
            f" {peaks('bandwidth')} TB/s; {o.training:.0%} of bfloat16's peak in training, {peaks('bf16')}"
            f" Tflop/s; {o.batch_ms:g} ms for a batch of eigenproblems (torch 2.12 or newer);"
            f" {o.launch_us:g} µs of the host for an operation, while the device works. A step takes the time"
            " of the device or of the launches, whichever is"
            f" longer. Counted: {counts}. Not included: embeddings."
        )

    def markdown(self) -> str:
        return f"{table(COLUMNS, self.lines(), left=COLUMNS[:2])}\n\n{self.words()}"


def main(arguments: Sequence[str] | None = None) -> None:
    options = tyro.cli(Options, prog="python -m benchmarks.speed.accelerator_estimate", args=arguments)
    with user_mistakes("benchmarks.speed.accelerator_estimate"):
        at_least(2, rank=options.rank)
        at_least(1, layers=options.layers, tokens=options.tokens)
        at_least(options.rank, width=options.width)
        shares = {name: getattr(options, name) for name in ("products", "traffic", "training")}
        positive(batch_ms=options.batch_ms, launch_us=options.launch_us, **shares)
        for name in ("bandwidth", "fp32", "tf32", "bf16"):
            numbers = getattr(options, name)
            if len(numbers) != len(options.devices):
                raise ValueError(f"{name}: {len(numbers)} numbers for {len(options.devices)} devices")
            positive(**{name: min(numbers)})
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

"""Estimate what a step costs on many devices, under FSDP2: bytes sent, arithmetic and time of each device.

    python -m benchmarks.speed.sharded_estimate [--rank L] [--devices 8 64 512] [--bandwidth B] [--rate R]
        [--batch-ms T]

Nothing is measured, and nothing was run on a GPU. Bytes and products of ours are those of the real step, run
on meta tensors (`sketchy.analysis.traffic`). Beside it are FSDP2's own traffic, and two ways to give whole
gradients to Muon: to all devices, or to owners. Bandwidth, flop rate and the time of a batch of
eigenproblems are assumptions, and arguments.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import tyro
from rich import box
from rich.console import Console
from rich.table import Table
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.common.arguments import at_least, positive
from sketchy import SketchyShampoo, SketchySOAP
from sketchy.analysis.markdown import table
from sketchy.analysis.state import GROUPS, Weight
from sketchy.analysis.traffic import Message, batches_on_ranks, on_ranks
from sketchy.analysis.weights import of_factory
from sketchy.experiments.mistakes import user_mistakes
from sketchy.optim.engine import Engine

MODELS = {"Llama-2-7B": "llama2_7b", "Llama-2-70B": "llama2_70b"}
OURS: tuple[type[Engine], ...] = (SketchyShampoo, SketchySOAP)
NEWTON_SCHULZ = 5  # steps of Muon


@dataclass(frozen=True)
class Options:
    """Estimate a step on many devices, under FSDP2."""

    rank: int = 64
    """The rank of the sketches."""
    devices: tuple[int, ...] = (8, 64, 512)
    """Numbers of devices. All of them share the weights."""
    bandwidth: float = 50e9
    """Bytes per second that a device sends; 50e9 is a network link of 400 Gbit/s for each device."""
    rate: float = 200e12
    """Flops per second in matrix products; 200e12 is 40 % of an H100's peak in TF32."""
    batch_ms: float = 2.0
    """Milliseconds of one batch of eigenproblems, whose number hardly matters."""


@dataclass(frozen=True)
class Cost:
    """Of one step, for one device."""

    sent: float = 0.0  # bytes
    flops: float = 0.0
    batches: int = 0  # of eigenproblems

    def __add__(self, more: "Cost") -> "Cost":
        return Cost(self.sent + more.sent, self.flops + more.flops, self.batches + more.batches)

    def __mul__(self, times: int) -> "Cost":
        return Cost(times * self.sent, times * self.flops, times * self.batches)

    def seconds(self, options: Options) -> float:
        """Sending, then arithmetic, then eigenproblems: nothing overlaps."""
        small = self.batches * options.batch_ms / 1e3
        return self.sent / options.bandwidth + self.flops / options.rate + small


class Products(TorchDispatchMode):
    """Counts the flops of matrix products."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = func.overloadpacket.__name__.rstrip("_")
        if name in ("mm", "bmm", "addmm", "baddbmm"):
            A, B = args[-2:] if name in ("mm", "bmm") else args[1:3]
            self.flops += 2 * A.numel() * B.shape[-1]
        return func(*args, **(kwargs or {}))


@cache
def ours(optimizer: type[Engine], weight: Weight, devices: int, rank: int) -> Cost:
    """One weight: what a device sends, and its products. Eigenproblems are counted for all weights."""
    with Products() as products:
        planned = on_ranks(optimizer, [weight], devices, rank=rank)
    return Cost(planned.sent, products.flops)


def gathered(weight: Weight, devices: int) -> Cost:
    """Muon, if the gradient is gathered by all devices, and each takes the whole step."""
    part = Message("all_gather", -(-weight.bytes // devices), devices)
    return Cost(part.sent, newton_schulz(weight))


def owned(weight: Weight, devices: int) -> Cost:
    """Muon, if a weight has an owner, which gets the gradient and returns the step. All own equally much.

    A device sends its part of a gradient to the owner, and a share of 1 / devices of all steps to the others.
    """
    part = weight.bytes / devices
    return Cost(2 * part * (devices - 1) / devices, newton_schulz(weight) / devices)


def newton_schulz(weight: Weight) -> float:
    """The flops of X Xᵀ, a polynomial of it, and its product with X, for each step."""
    m, n = sorted(weight.sides)
    return NEWTON_SCHULZ * (4 * m * m * n + 2 * m**3)


def fsdp(weights: Counter[Weight], devices: int) -> float:
    """Bytes that FSDP2 sends by itself: two gathers of the weights in bfloat16, gradients in float32."""
    numbers = sum(weight.count * times for weight, times in weights.items())
    return (2 * 2 + 4) * numbers * (devices - 1) / devices


COLUMNS = ("SketchyShampoo", "SketchySOAP", "gather to all", "owners")


@dataclass(frozen=True)
class Estimate:
    """One step of each method, for each model and number of devices."""

    options: Options

    @cached_property
    def models(self) -> dict[str, Counter[Weight]]:
        return {
            model: Counter(of_factory(f"sketchy.experiments.architectures:{name}").values())
            for model, name in MODELS.items()
        }

    def costs(self, model: str, devices: int) -> dict[str, Cost]:
        """Of each method. Muon takes the weights that ours sketch; what is not a matrix is left out."""
        matrices = {w: times for w, times in self.models[model].items() if w.group == GROUPS[0]}
        found = dict.fromkeys(COLUMNS, Cost())
        for weight, times in matrices.items():
            for kind in OURS:
                cost = ours(kind, weight, devices, self.options.rank)  # type: ignore[arg-type]
                found[kind.__name__] += cost * times
            found["gather to all"] += gathered(weight, devices) * times
            found["owners"] += owned(weight, devices) * times
        for kind in OURS:
            batches = batches_on_ranks(kind, Counter(matrices).elements(), devices, rank=self.options.rank)
            found[kind.__name__] += Cost(batches=batches)
        return found

    def bytes_lines(self) -> Iterator[list[str]]:
        for model, weights in self.models.items():
            for devices in self.options.devices:
                costs = self.costs(model, devices)
                sizes = [fsdp(weights, devices), *(cost.sent for cost in costs.values())]
                yield [model, f"{devices}", *(_three(size / 1e9) for size in sizes)]

    def time_lines(self) -> Iterator[list[str]]:
        for model in self.models:
            for devices in self.options.devices:
                costs = self.costs(model, devices).values()
                flops = (_three(cost.flops / 1e12) for cost in costs)
                times = (f"{1e3 * cost.seconds(self.options):,.0f} ms" for cost in costs)
                yield [model, f"{devices}", *(f"{a}, {b}" for a, b in zip(flops, times, strict=True))]

    def crossing(self, model: str, kind: type[Engine]) -> float:
        """The number of devices from which owners send less than ours.

        Ours send c (W - 1) / W bytes on W devices, and owners o (W - 1) / W², so it is o / c.
        """
        devices = max(*self.options.devices, 2)
        costs = self.costs(model, devices)
        return devices * costs["owners"].sent / costs[kind.__name__].sent

    def words(self) -> str:
        """What was counted and assumed, and where each method wins."""
        o = self.options
        where = "; ".join(
            f"{model} {self.crossing(model, SketchyShampoo):.0f} (SketchySOAP:"
            f" {self.crossing(model, SketchySOAP):.0f})"
            for model in self.models
        )
        return (
            "This is an estimate; nothing was run on a GPU. It is for one step, one device, and the matrices"
            f" that ours sketch, at rank {o.rank}. Assumed: a device sends {o.bandwidth / 1e9:g} GB/s and"
            f" multiplies matrices with {o.rate / 1e12:g} Tflop/s; a batch of eigenproblems takes"
            f" {o.batch_ms:g} ms (torch 2.12 or newer; each wave of weights has one, and each device solves"
            " its share of it); nothing overlaps. FSDP2 itself: two gathers of all weights in bfloat16, and"
            " gradients in float32. Gather to all, owners: Muon with whole gradients, on all devices or on"
            " one each; owners have equal loads, also if there are fewer matrices than devices. In bfloat16"
            " their products would take about half the"
            " time. Not included: latency, passes over memory, embeddings and vectors. Ours send least below"
            f" this number of devices, and owners above: {where}."
        )

    def tables(self) -> tuple[tuple[tuple[str, ...], list[list[str]]], ...]:
        return (
            (("GB sent", "devices", "FSDP2 itself", *COLUMNS), list(self.bytes_lines())),
            (("Tflop, time", "devices", *COLUMNS), list(self.time_lines())),
        )

    def markdown(self) -> str:
        shown = [table(columns, lines, left=columns[:1]) for columns, lines in self.tables()]
        return "\n\n".join([*shown, self.words()])


def _three(x: float) -> str:
    """Three digits or more, without an exponent."""
    return f"{x:,.0f}" if x >= 100 else f"{x:.3g}"


def main(arguments: Sequence[str] | None = None) -> None:
    options = tyro.cli(Options, prog="python -m benchmarks.speed.sharded_estimate", args=arguments)
    with user_mistakes("benchmarks.speed.sharded_estimate"):
        at_least(2, rank=options.rank, devices=min(options.devices, default=0))
        positive(bandwidth=options.bandwidth, rate=options.rate, batch_ms=options.batch_ms)
    estimate = Estimate(options)
    console = Console(width=120)
    for columns, lines in estimate.tables():
        shown = Table(box=box.SIMPLE_HEAD)
        for column in columns:
            shown.add_column(column, justify="left" if column == columns[0] else "right")
        for line in lines:
            shown.add_row(*line)
        console.print(shown)
    console.print(estimate.words(), highlight=False)


if __name__ == "__main__":
    main()

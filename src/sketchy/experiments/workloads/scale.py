"""The sizes and settings of a run, and the ranges in which they are searched."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Self, get_args, get_type_hints

Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True, kw_only=True)
class Scale:
    """Everything that may differ between runs of a workload; ``--set name=value`` changes one field.

    A workload adds the sizes of its network and of its augmentation in a subclass.
    """

    batch: int  # rows of a step, over all ranks
    micro_batch: int  # rows of one forward pass
    steps: int  # of a final run
    tuning_steps: int  # of a trial
    look_every: int  # steps between two looks at held-out rows
    lr: float
    weight_decay: float  # decoupled: a step multiplies weights by 1 - lr * weight_decay
    beta1: float = 0.9
    beta2: float = 0.999
    warmup: float = 0.05  # share of the steps; the rate rises linearly from 0, then falls to 0 as a cosine
    clip: float = math.inf  # largest norm of the whole gradient
    dropout: float = 0.0
    label_smoothing: float = 0.0
    graft: str = "rmsprop"  # of `shampoo` and `s-shampoo`, the paper's optimizers
    block_size: int  # of both
    rank: int  # of `s-shampoo`
    start_step: int = 101  # the first preconditioned step of both
    roots_every: int = 10  # steps between two inverse roots of both
    own_rank: int = 64  # of `sketchy-shampoo` and `sketchy-soap`, which have our settings
    precision: Precision = "float32"  # of forward and backward; everything else is float32

    def __post_init__(self) -> None:
        for name in ("batch", "micro_batch", "steps", "tuning_steps", "look_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")
        if self.batch % self.micro_batch:
            raise ValueError(
                f"micro_batch={self.micro_batch}: must divide the batch, which has {self.batch} rows"
            )
        for name, low, high in (
            ("lr", 0.0, math.inf),
            ("weight_decay", 0.0, math.inf),
            ("warmup", 0.0, 1.0),
            ("clip", 0.0, math.inf),
            ("dropout", 0.0, 1.0),
            ("label_smoothing", 0.0, 1.0),
        ):
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name}={getattr(self, name)}: must be in [{low:g}, {high:g}]")

    def changed(self, values: Mapping[str, Any]) -> Self:
        """A copy with other values; a text is read as the type of its field.

        >>> small = dict(batch=8, micro_batch=4, steps=4, tuning_steps=4, look_every=2, block_size=8, rank=4)
        >>> Scale(**small, lr=1e-3, weight_decay=0.1).changed({"lr": "2e-3", "steps": "8"}).lr
        0.002
        """
        hints = get_type_hints(type(self))
        found = {}
        for name, value in values.items():
            if name not in hints:
                known = ", ".join(each.name for each in fields(self))
                raise ValueError(f"{name}={value}: no such setting; there are {known}")
            found[name] = _read(name, value, hints[name])
        return replace(self, **found)


def _read(name: str, value: Any, kind: Any) -> Any:
    """The value, or what its text says."""
    if not isinstance(value, str):
        return value
    if allowed := get_args(kind):
        if value not in allowed:
            raise ValueError(f"{name}={value}: must be one of {', '.join(allowed)}")
        return value
    if kind is bool:
        if value.lower() not in ("true", "false"):
            raise ValueError(f"{name}={value}: must be true or false")
        return value.lower() == "true"
    try:
        return kind(value)
    except ValueError:
        raise ValueError(f"{name}={value}: must be {'an integer' if kind is int else 'a number'}") from None


@dataclass(frozen=True)
class Range:
    """Where a setting is searched.

    >>> Range(1e-4, 1e-2).at(0.5), round(Range(1e-3, 0.1, one_minus=True).at(0.5), 4), Choice(1, 10).at(0.7)
    (0.001, 0.99, 10)
    """

    low: float
    high: float
    log: bool = True
    one_minus: bool = False  # the range is of 1 - value, as for β₁ and β₂

    def at(self, share: float) -> float:
        """The value at a share of the range, from 0 to 1."""
        value = self.low + share * (self.high - self.low)
        if self.log:
            value = math.exp(math.log(self.low) + share * (math.log(self.high) - math.log(self.low)))
            value = float(f"{value:.12g}")
        return 1 - value if self.one_minus else value

    def share(self, value: float) -> float:
        """The inverse of `at`."""
        value = 1 - value if self.one_minus else value
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True, init=False)
class Choice:
    """One of a few values."""

    values: tuple[float | str, ...]

    def __init__(self, *values: float | str) -> None:
        object.__setattr__(self, "values", values)

    def at(self, share: float) -> float | str:
        """The value at a share from 0 to 1; all have the same chance."""
        return self.values[min(int(share * len(self.values)), len(self.values) - 1)]

    def share(self, value: float | str) -> float:
        """Its place among the values, from 0 to 1."""
        return self.values.index(value) / max(1, len(self.values) - 1)


Ranges = Mapping[str, Range | Choice]  # by the name of a field of the scale


@dataclass(frozen=True)
class GiveUp:
    """A trial ends at a share of its steps if its metric is not better than this."""

    at: float  # share of the steps
    metric: float


@dataclass(frozen=True)
class Tuning:
    """How the settings of an optimizer are found: equal budgets for all."""

    ranges: Ranges
    trials: int  # for each optimizer
    chosen_by: Literal["loss", "metric"] = "metric"  # of the validation rows, at the end of a trial
    own: Mapping[str, Ranges] = field(default_factory=dict)  # by optimizer: replaces or adds ranges
    give_up: GiveUp | None = None

    def of(self, optimizer: str) -> Ranges:
        return {**self.ranges, **self.own.get(optimizer, {})}


@dataclass(frozen=True)
class Preset:
    """A scale by name, with its data set and its search."""

    scale: Scale
    tuning: Tuning
    data: str  # one of the workload's sources
    differs: str = ""  # what differs from the paper; printed under each table and figure

"""Who is compared: an optimizer by name, and how it is built for a model at a learning rate.

All decay weights by 0.01; everything else is each optimizer's default.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import AdamW, Optimizer

import sketchy
from benchmarks.peers import SOAP

CENTRE = 4e-3  # of the grid of rates
CENTRES = {"soap": 1.6e-2}  # ungrafted: where a few directions hold the gradient, its step is short
RATIO = 2.0  # of a rate to the one before


@dataclass(frozen=True)
class Contender:
    """An optimizer, at a rank if it is a sketched one."""

    optimizer: str
    rank: int | None = None

    def __str__(self) -> str:
        return self.optimizer if self.rank is None else f"{self.optimizer}, rank {self.rank}"

    @property
    def sketched(self) -> bool:
        return self.rank is not None

    def build(self, model: nn.Module, rate: float) -> Optimizer:
        options = {"lr": rate, "weight_decay": 0.01}
        if self.rank is not None:
            options["rank"] = self.rank
        return BUILD[self.optimizer](model, options)


def _plain(kind: Callable[..., Optimizer]) -> Callable[[nn.Module, dict[str, Any]], Optimizer]:
    return lambda model, options: kind(model.parameters(), **options)


def _named(kind: Callable[..., Optimizer]) -> Callable[[nn.Module, dict[str, Any]], Optimizer]:
    """Told the names, ours send embeddings and output heads to their Adam path."""
    return lambda model, options: kind(model.named_parameters(), **options)


BUILD: dict[str, Callable[[nn.Module, dict[str, Any]], Optimizer]] = {
    "adamw": _plain(AdamW),
    "soap": _plain(SOAP),
    "shampoo": _named(sketchy.Shampoo),
    "sketchy_shampoo": _named(sketchy.SketchyShampoo),
    "sketchy_soap": _named(sketchy.SketchySOAP),
}
RANKS = {"sketchy_shampoo": (32,), "sketchy_soap": (32, 8)}  # at which the sketched ones are run by default


def contenders(optimizers: tuple[str, ...], ranks: tuple[int, ...] | None = None) -> list[Contender]:
    """The named optimizers, the sketched ones at ``ranks`` (or at their default ranks)."""
    if unknown := [name for name in optimizers if name not in BUILD]:
        raise ValueError(f"optimizers={' '.join(unknown)}: unknown; known are {', '.join(BUILD)}")
    return [
        Contender(name, rank)
        for name in dict.fromkeys(optimizers)
        for rank in ((ranks or RANKS[name]) if name in RANKS else (None,))
    ]


def rates(optimizer: str, count: int) -> list[float]:
    """The grid, equally wide for everyone: ``count`` rates around the optimizer's centre.

    >>> rates("adamw", 6)
    [0.001, 0.002, 0.004, 0.008, 0.016, 0.032]
    """
    return [CENTRES.get(optimizer, CENTRE) * RATIO ** (i - (count - 1) // 2) for i in range(count)]


def beyond(tried: dict[float, float]) -> float | None:
    """The next rate to try if the best of ``tried`` (rate: loss) is the lowest or the highest; else None.

    A grid of one rate has no ends.

    >>> beyond({0.001: 2.0, 0.002: 1.0}), beyond({0.001: 2.0, 0.002: 1.0, 0.004: 1.5})
    (0.004, None)
    """
    if len(tried) < 2:
        return None
    best, low, high = min(tried, key=tried.__getitem__), min(tried), max(tried)
    return low / RATIO if best == low else high * RATIO if best == high else None

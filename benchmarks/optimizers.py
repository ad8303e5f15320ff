"""Optimizers by name: how each is built for named parameters, at which settings, and how often it refreshes.

Packages are imported when an optimizer is built. One that is not installed, or refuses, raises there, and
whoever compares shows its message.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn, optim
from torch.optim import Optimizer

import sketchy

Named = list[tuple[str, nn.Parameter]]
Make = Callable[[Named, float, int | None], Optimizer]


@dataclass(frozen=True)
class Entry:
    """One optimizer at its own recommended settings."""

    make: Make
    settings: str  # where they aren't the defaults, or matter
    period: int = 1  # steps from one refresh to the next: what a step costs is a mean over these
    ranked: bool = False  # whether it takes a rank


def weights(named: Named) -> list[nn.Parameter]:
    return [p for _, p in named]


def plain(kind: Callable[..., Optimizer], **options: Any) -> Make:
    return lambda named, lr, rank: kind(weights(named), lr=lr, **options)


def ours(kind: Callable[..., Optimizer]) -> Make:
    """Told the names, ours send embeddings and output heads to their Adam path."""
    return lambda named, lr, rank: kind(named, lr=lr, **({} if rank is None else {"rank": rank}))


OPTIMIZERS: dict[str, Entry] = {
    "sketchy_shampoo": Entry(ours(sketchy.SketchyShampoo), "fresh every step", ranked=True),
    "sketchy_soap": Entry(ours(sketchy.SketchySOAP), "fresh every step", ranked=True),
    "adamw": Entry(plain(optim.AdamW, foreach=True), "foreach"),
    "adamw_fused": Entry(plain(optim.AdamW, fused=True), "fused"),
}


def build(name: str, named: Named, lr: float = 1e-3, rank: int | None = None) -> Optimizer:
    if name not in OPTIMIZERS:
        raise ValueError(f"optimizer={name}: unknown; known are {', '.join(OPTIMIZERS)}")
    return OPTIMIZERS[name].make(named, lr, rank)

"""Weights during a stream of gradients that does not depend on them, for tests of equality."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cases import F64

STEPS = 50


def gradients(shape: tuple[int, ...], seed: int = 0, steps: int = STEPS) -> Tensor:
    """(steps, *shape), of unlike scales along each axis, so that sketches have something to cut."""
    G = torch.randn(steps, *shape, generator=torch.Generator().manual_seed(seed), dtype=F64)
    for axis, size in enumerate(shape):
        scale = torch.arange(1, size + 1, dtype=F64) ** -0.7
        G = G * scale.reshape(-1, *[1] * (len(shape) - 1 - axis))
    return G


def start(shape: tuple[int, ...], seed: int = 1) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def train(
    kind: type[torch.optim.Optimizer], weights: Sequence[Tensor], streams: Sequence[Tensor], **options: Any
) -> list[Tensor]:
    """Each weight after each step, (steps, *shape), under one optimizer that holds them all."""
    params = [torch.nn.Parameter(w.clone()) for w in weights]
    optimizer = kind(params, **options)
    history: list[list[Tensor]] = [[] for _ in params]
    for step in zip(*streams, strict=True):
        for p, G in zip(params, step, strict=True):
            p.grad = G.clone()
        optimizer.step()
        for p, past in zip(params, history, strict=True):
            past.append(p.detach().clone())
    return [torch.stack(past) for past in history]


def train_one(kind: type[torch.optim.Optimizer], X: Tensor, G: Tensor, **options: Any) -> Tensor:
    return train(kind, [X], [G], **options)[0]

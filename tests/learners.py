"""The learners under test, their dense forms in a few lines each, and streams to feed them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from sketchy.core.linalg import gaussian
from sketchy.oco import LEARNERS
from sketchy.reference import DenseSketch, pseudo_power

DIM, SKETCH_SIZE, ETA, DELTA = 7, 4, 0.3, 0.2
Rule = Callable[[list[Tensor]], Tensor]  # all gradients so far → the step that the last one leads to


@dataclass(frozen=True)
class Case:
    name: str
    rule: Rule | None = None  # the dense form
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return "-".join([self.name, *map(str, self.options.values())])


def _covariance(gs: list[Tensor], weights: Callable[[int], float] = lambda t: 1.0) -> Tensor:
    return sum(weights(t) * torch.outer(g, g) for t, g in enumerate(gs, 1)) + torch.zeros(DIM, DIM).double()


def _sketch(
    gs: list[Tensor], weights: Callable[[int], float] = lambda t: 1.0, rank: int = SKETCH_SIZE
) -> DenseSketch:
    sketch = DenseSketch.empty(DIM, rank)
    for t, g in enumerate(gs, 1):
        sketch = sketch.update(weights(t) * torch.outer(g, g))
    return sketch


EYE = torch.eye(DIM, dtype=torch.float64)


def ogd(gs: list[Tensor]) -> Tensor:
    return ETA * gs[-1] / (len(gs) + DELTA) ** 0.5


def adagrad(gs: list[Tensor]) -> Tensor:
    return ETA * gs[-1] / (DELTA + torch.stack(gs).square().sum(0)).sqrt()


def full_adagrad(gs: list[Tensor]) -> Tensor:
    return ETA * pseudo_power(DELTA * EYE + _covariance(gs), -0.5) @ gs[-1]


def s_adagrad(gs: list[Tensor]) -> Tensor:
    return ETA * pseudo_power(DELTA * EYE + _sketch(gs).compensated(), -0.5) @ gs[-1]


def ada_fd(gs: list[Tensor]) -> Tensor:
    return ETA * torch.linalg.inv(DELTA * EYE + pseudo_power(_sketch(gs).G_bar, 0.5)) @ gs[-1]


def son(gs: list[Tensor]) -> Tensor:
    return torch.linalg.inv(DELTA * EYE + _covariance(gs, lambda t: 1 / (ETA * t**0.5))) @ gs[-1]


def fd_son(gs: list[Tensor]) -> Tensor:
    return torch.linalg.inv(DELTA * EYE + _sketch(gs, lambda t: 1 / (ETA * t**0.5)).G_bar) @ gs[-1]


def rfd_son(gs: list[Tensor]) -> Tensor:
    sketch = _sketch(gs, lambda t: 1 / (ETA * t))
    return torch.linalg.inv((DELTA + sketch.rho / 2) * EYE + sketch.G_bar) @ gs[-1]


def ada_lr(gs: list[Tensor]) -> Tensor:
    G = _covariance(gs)
    Pi = gaussian(DIM, SKETCH_SIZE, seed=hash((0, len(gs))) % 2**63, like=G)
    Q = torch.linalg.qr(G @ Pi)[0]
    M = Q @ (Q.T @ G)  # the approximation of G: its right singular vectors V, and values
    root = pseudo_power(M.T @ M, 0.25)
    V = pseudo_power(M.T @ M, 0.0)
    return ETA * V @ torch.linalg.inv(root + DELTA * EYE) @ V @ gs[-1]


def radagrad(gs: list[Tensor]) -> Tensor:
    Pi = gaussian(DIM, SKETCH_SIZE, seed=0, like=gs[0]) / SKETCH_SIZE**0.5
    S = _covariance(gs) @ Pi
    P = pseudo_power(S @ S.T, 0.0, threshold=1e-12)
    M = S.T @ P  # its right singular vectors span the range of S
    root = pseudo_power(M.T @ M, 0.25, threshold=1e-12)
    if len(gs) < SKETCH_SIZE:  # fewer directions than columns: QR completes the basis by arbitrary ones
        raise ValueError("the dense form needs a sketch of full rank")
    return ETA * (P @ torch.linalg.inv(root + DELTA * EYE) @ P @ gs[-1] + gs[-1] - P @ gs[-1])


def epoch_adagrad(gs: list[Tensor]) -> Tensor:
    start = (len(gs) - 1) // 3 * 3
    return ETA * pseudo_power(DELTA * EYE + _covariance(gs[:start]), -0.5) @ gs[-1]


def sketched_epoch_adagrad(gs: list[Tensor]) -> Tensor:
    start = (len(gs) - 1) // 3 * 3
    return ETA * pseudo_power(DELTA * EYE + _sketch(gs[:start]).compensated(), -0.5) @ gs[-1]


def ggt(gs: list[Tensor]) -> Tensor:
    recent = gs[::-1][:SKETCH_SIZE]
    W = torch.stack([0.9**age * g for age, g in enumerate(recent)], 1)
    return ETA * torch.linalg.inv(pseudo_power(W @ W.T, 0.5) + DELTA * EYE) @ gs[-1]


DENSE = [
    Case("ogd", ogd),
    Case("adagrad", adagrad),
    Case("full-adagrad", full_adagrad),
    Case("s-adagrad", s_adagrad),
    Case("ada-fd", ada_fd),
    Case("son", son),
    Case("fd-son", fd_son),
    Case("rfd-son", rfd_son),
    Case("ada-lr", ada_lr),
    Case("radagrad", radagrad),
    Case("epoch-adagrad", epoch_adagrad, {"update_points": 3}),
    Case("epoch-adagrad", sketched_epoch_adagrad, {"update_points": 3, "sketched": True}),
    Case("ggt", ggt, {"decay": 0.9}),
]
# Every registered learner must keep the common promises, also one without a dense form here.
CASES = DENSE + [Case(name) for name in LEARNERS if name not in {case.name for case in DENSE}]


def stream(kind: str, rounds: int, dim: int, seed: int = 0) -> Tensor:
    """(rounds, dim) gradients: random, decaying spectrum, three repeated, with zeros, changing scale, 0/1."""
    generator = torch.Generator().manual_seed(seed)
    G = torch.randn(rounds, dim, generator=generator, dtype=torch.float64)
    if kind == "decaying":
        return G * 0.7 ** torch.arange(dim)
    if kind == "repeated":
        return G[torch.randint(3, (rounds,), generator=generator)]
    if kind == "zeros":
        return G * (torch.rand(rounds, 1, generator=generator) < 0.5)
    if kind == "scaled":
        return G * 10.0 ** torch.randint(-2, 2, (rounds, 1), generator=generator)
    if kind == "sparse":
        return (torch.rand(rounds, dim, generator=generator) < 0.3).double()
    assert kind == "random", kind
    return G


STREAMS = ("random", "decaying", "repeated", "zeros", "scaled", "sparse")

"""Streams of gradients with their true spectra, and a network that is trained in many ways."""

from typing import Any

import torch
from torch import Tensor, nn

from sketchy.analysis.spectra import SpectrumMonitor

BETA2 = 0.95


def gradients(steps: int, shape: tuple[int, ...], seed: int = 0) -> list[Tensor]:
    """A stream whose covariances decay as 1 / i² on both sides, with noise."""
    rng = torch.Generator().manual_seed(seed)
    m, n = shape[0], torch.Size(shape[1:]).numel()
    left, right = (
        torch.linalg.qr(torch.randn(d, d, generator=rng))[0] / torch.arange(1, d + 1) for d in (m, n)
    )
    return [(left @ torch.randn(m, n, generator=rng) @ right.T).reshape(shape) for _ in range(steps)]


def truth(stream: list[Tensor], beta2: float = BETA2) -> dict[str, Tensor]:
    """The eigenvalues of L and R, dense, descending."""
    found = {}
    for axis in ("left", "right"):
        C: Any = 0.0
        for gradient in stream:
            G = gradient.double().flatten(1)
            A = G if axis == "left" else G.T
            C = beta2 * C + A @ A.T
        found[axis] = torch.linalg.eigvalsh(C).flip(-1).clamp(min=0)
    return found


def share(eigenvalues: Tensor, k: int) -> float:
    return float(eigenvalues[:k].sum() / eigenvalues.sum())


def intrinsic(eigenvalues: Tensor) -> float:
    return float(eigenvalues.sum() / eigenvalues[0])


def follow(source: Any, weight: Tensor, stream: list[Tensor], optimizer: Any = None, **options: Any) -> Any:
    """The monitor after a run in which ``weight`` gets each gradient of the stream."""
    optimizer = optimizer or torch.optim.SGD([weight], lr=0.0)
    with SpectrumMonitor(source, **{"every": len(stream), **options}) as monitor:
        for gradient in stream:
            weight.grad = gradient.clone()
            optimizer.step()
    return monitor


class Net(nn.Module):
    def __init__(self, *shape: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(shape, dtype=dtype))
        self.bias = nn.Parameter(torch.zeros(shape[0]))


class Loop:
    """Trains the same network on the same rows in different ways."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
        self.rows = torch.randn(8, 12, 6)

    def loss(self, step: int, part: slice = slice(None)) -> Tensor:
        return self.net(self.rows[step][part]).square().sum()

    def plain(self, optimizer: torch.optim.Optimizer) -> None:
        for step in range(8):
            optimizer.zero_grad()
            self.loss(step).backward()
            optimizer.step()

    def accumulated(self, optimizer: torch.optim.Optimizer) -> None:
        for step in range(8):
            for part in (slice(0, 5), slice(5, 12)):
                self.loss(step, part).backward()
            optimizer.step()
            optimizer.zero_grad()

    def by_closure(self, optimizer: torch.optim.Optimizer) -> None:
        for step in range(8):

            def closure(step: int = step) -> Tensor:
                optimizer.zero_grad()
                loss = self.loss(step)
                loss.backward()
                return loss

            optimizer.step(closure)

    def scaled(self, optimizer: torch.optim.Optimizer) -> None:
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
        for step in range(8):
            optimizer.zero_grad()
            scaler.scale(self.loss(step)).backward()
            scaler.step(optimizer)
            scaler.update()

    def under_autocast(self, optimizer: torch.optim.Optimizer) -> None:
        for step in range(8):
            optimizer.zero_grad()
            self.loss(step).backward()
            with torch.autocast("cpu", torch.bfloat16):
                optimizer.step()


def sgd(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(net.parameters(), lr=0.01)

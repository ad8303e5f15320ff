"""A compiled step: `torch.compile(optimizer.step)`, compared with the eager one at every step, on digits.

python examples/compiled_step.py           # the step tells the compiler to run it eagerly
"""

import time
from collections.abc import Callable
from itertools import pairwise

import torch
from sklearn.datasets import load_digits
from torch import nn

import sketchy


def main(
    steps: int = 10, rank: int = 8, widths: tuple[int, ...] = (64, 10), optimizer_name: str = "SketchyShampoo"
) -> list[float]:
    """Train two equal networks, one with a compiled step; print and return the relative differences."""
    torch.manual_seed(0)
    images, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    images = images.float() / 16
    eager, compiled = (nn.Sequential(*(nn.Linear(m, n) for m, n in pairwise(widths))) for _ in range(2))
    compiled.load_state_dict(eager.state_dict())

    runs: list[tuple[nn.Sequential, torch.optim.Optimizer, Callable[[], None]]] = []
    for model in (eager, compiled):
        optimizer = getattr(sketchy, optimizer_name)(model.named_parameters(), lr=3e-3, rank=rank)
        runs.append((model, optimizer, optimizer.step if model is eager else torch.compile(optimizer.step)))

    apart = []
    for step in range(1, steps + 1):
        rows = torch.randint(len(labels), (128,))
        seconds = []
        for model, optimizer, take_step in runs:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
            began = time.perf_counter()
            take_step()
            seconds.append(time.perf_counter() - began)
        pairs = list(zip(eager.parameters(), compiled.parameters(), strict=True))
        apart.append(max(((p - q).norm() / p.norm()).item() for p, q in pairs))
        print(f"step {step:3d}  apart {apart[-1]:.1e}  eager {seconds[0]:.4f} s  compiled {seconds[1]:.4f} s")
    return apart


if __name__ == "__main__":
    main()

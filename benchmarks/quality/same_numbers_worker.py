"""The process that trains with one source tree for ``benchmarks.quality.same_numbers``.

Its arguments are the task, the optimizer, its rank, the learning rate, the steps, the dtype and a number of
eps by which every gradient is changed. It writes the training losses as one JSON list. Trees of different
versions run it, so it uses the public API only.
"""

import json
import sys

import torch
from torch import Tensor, nn

import sketchy
from sketchy.experiments.tasks import load


def main() -> None:
    name, optimizer_name, rank, rate, steps, dtype_name, eps = sys.argv[1:]
    torch.set_num_threads(1)
    dtype = getattr(torch, dtype_name)
    task = load(name)
    model = task.model(0).to(dtype)
    options = {"rank": int(rank)} if int(rank) else {}
    optimizer = getattr(sketchy, optimizer_name)(model.named_parameters(), lr=float(rate), **options)
    losses = []
    for step in range(int(steps)):
        inputs, targets = (x.to(dtype) if x.is_floating_point() else x for x in task.rows(0, step))
        loss = task.loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        _jolt(model, float(eps) * torch.finfo(dtype).eps, step)
        optimizer.step()
        losses.append(loss.item())
    print(json.dumps({"source": sketchy.__file__, "losses": losses}))


def _jolt(model: nn.Module, size: float, seed: int) -> None:
    """Change every entry of every gradient by a share of at most ``size``."""
    generator = torch.Generator().manual_seed(seed)
    gradients: list[Tensor] = [p.grad for p in model.parameters() if p.grad is not None]
    for g in gradients if size else []:
        g.mul_(1 + size * (2 * torch.rand(g.shape, generator=generator, dtype=g.dtype) - 1))

"""The weights of GPT-2's blocks, and the optimizers that step them: ours, torch's, and others' SOAP."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from sketchy import optim

Named = list[tuple[str, nn.Parameter]]
LR = 1e-5


@dataclass(frozen=True)
class Size:
    """Of the list of blocks. GPT-2 small has 12 of width 768."""

    width: int
    layers: int
    rank: int


def weights(size: Size, device: torch.device) -> Named:
    """The blocks, without embeddings: all optimizers use Adam for these."""
    d = size.width
    shapes = {
        "ln_1.weight": (d,),
        "ln_1.bias": (d,),
        "attn.c_attn.weight": (3 * d, d),
        "attn.c_attn.bias": (3 * d,),
        "attn.c_proj.weight": (d, d),
        "attn.c_proj.bias": (d,),
        "ln_2.weight": (d,),
        "ln_2.bias": (d,),
        "mlp.c_fc.weight": (4 * d, d),
        "mlp.c_fc.bias": (4 * d,),
        "mlp.c_proj.weight": (d, 4 * d),
        "mlp.c_proj.bias": (d,),
    }
    return [
        (f"h.{layer}.{name}", nn.Parameter(torch.zeros(shape, device=device)))
        for layer in range(size.layers)
        for name, shape in shapes.items()
    ]


class Gradients:
    """Two sets of random gradients, in turn."""

    def __init__(self, named: Named) -> None:
        self.params = [p for _, p in named]
        generator = torch.Generator().manual_seed(0)
        self.sets = [[_random(p, generator) for p in self.params] for _ in range(2)]

    def set(self) -> None:
        """Give all weights the next gradients. They are not copied: steps only read them."""
        self.sets.reverse()
        for p, grad in zip(self.params, self.sets[0], strict=True):
            p.grad = grad


def _random(p: Tensor, generator: torch.Generator) -> Tensor:
    return torch.empty_like(p) if p.is_meta else 1e-3 * torch.randn(p.shape, generator=generator).to(p.device)


@dataclass(frozen=True)
class Contender:
    """An optimizer that is timed, or several that share the weights."""

    name: str
    make: Callable[[Named, int], Sequence[Optimizer]]  # of weights and the rank
    period: int = 1  # steps from one refresh of its preconditioner to the next; times are means over it
    ours: bool = False


def _ours(kind: str, **options: Any) -> Callable[[Named, int], Sequence[Optimizer]]:
    return lambda named, rank: [getattr(optim, kind)(named, lr=LR, rank=rank, **options)]


def _adamw(named: Named, rank: int, **options: Any) -> Sequence[Optimizer]:
    return [torch.optim.AdamW([p for _, p in named], lr=LR, **options)]


def _muon(named: Named, rank: int) -> Sequence[Optimizer]:
    if not hasattr(torch.optim, "Muon"):
        raise ModuleNotFoundError("not in this torch")
    matrices, rest = ([p for _, p in named if (p.dim() == 2) is wanted] for wanted in (True, False))
    return [torch.optim.Muon(matrices, lr=LR), torch.optim.AdamW(rest, lr=LR, foreach=True)]


def _heavyball(named: Named, rank: int) -> Sequence[Optimizer]:
    module = import_module("heavyball")
    module.utils.compile_mode = None
    return [module.SOAP([p for _, p in named], lr=LR)]


def _pytorch_optimizer(named: Named, rank: int) -> Sequence[Optimizer]:
    return [import_module("pytorch_optimizer").SOAP([p for _, p in named], lr=LR)]


ADAMW = "AdamW (foreach)"
CONTENDERS = (
    Contender(ADAMW, partial(_adamw, foreach=True)),
    Contender("AdamW (fused)", partial(_adamw, fused=True)),
    Contender("torch.optim.Muon, AdamW for vectors", _muon),
    Contender("SketchyShampoo", _ours("SketchyShampoo"), ours=True),
    Contender("SketchySOAP", _ours("SketchySOAP"), ours=True),
    Contender("SketchySOAP, SMALL", _ours("SketchySOAP", **optim.SMALL), ours=True),
    Contender("SOAP (heavyball), refreshed every 2nd step", _heavyball, period=2),
    Contender("SOAP (pytorch_optimizer), refreshed every 10th step", _pytorch_optimizer, period=10),
)

"""The optimizers that train the paper's workloads, by name. All decay all weights, as in the paper."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from sketchy.core import tasks
from sketchy.core.polar import polar_
from sketchy.experiments.workloads.scale import Scale
from sketchy.optim import PAPER, Shampoo, SketchyShampoo, SketchySOAP
from sketchy.optim.engine import Engine
from sketchy.optim.routing import is_vector, looks_like_embedding_or_head

Named = list[tuple[str, Tensor]]
Make = Callable[[Named, Scale], Optimizer]


def make(name: str, network: nn.Module, scale: Scale) -> Optimizer:
    """The optimizer of all weights of a network that are trained."""
    check(name)
    return OPTIMIZERS[name]([(n, p) for n, p in network.named_parameters() if p.requires_grad], scale)


def check(name: str) -> None:
    """Raise ValueError if there is no such optimizer."""
    if name not in OPTIMIZERS:
        raise ValueError(f"optimizer={name!r}: no such optimizer; there are {', '.join(OPTIMIZERS)}")


def planned_bytes(name: str, network: nn.Module, scale: Scale) -> int:
    """The size of the optimizer's state, before any step; ``network`` may be on the meta device."""
    optimizer = make(name, network, scale)
    if isinstance(optimizer, Engine):
        return optimizer.report().bytes
    groups = optimizer.param_groups
    return sum((4 if group.get("muon") else 8) * p.numel() for group in groups for p in group["params"])


def _common(scale: Scale) -> dict[str, Any]:
    return {"lr": scale.lr, "betas": (scale.beta1, scale.beta2), "weight_decay": scale.weight_decay}


def _adamw(named: Named, scale: Scale) -> Optimizer:
    return AdamW([p for _, p in named], **_common(scale))


def _paper(scale: Scale) -> dict[str, Any]:
    """The paper's settings of Shampoo and S-Shampoo: all weights with two or more axes are preconditioned."""
    own = {"graft": scale.graft, "block_size": scale.block_size, "start_step": scale.start_step}
    return {**PAPER, **own, "eps": 1e-6, "path": "sketch", **_common(scale)}


def _shampoo(named: Named, scale: Scale) -> Optimizer:
    options = {key: value for key, value in _paper(scale).items() if key not in ("rank", "update_every")}
    return Shampoo(named, **options, roots_every=scale.roots_every)


def _s_shampoo(named: Named, scale: Scale) -> Optimizer:
    return SketchyShampoo(named, **_paper(scale) | {"rank": scale.rank, "update_every": scale.roots_every})


def _sketchy_shampoo(named: Named, scale: Scale) -> Optimizer:
    return SketchyShampoo(named, rank=scale.own_rank, **_common(scale))


def _sketchy_soap(named: Named, scale: Scale) -> Optimizer:
    return SketchySOAP(named, rank=scale.own_rank, **_common(scale))


class Muon(AdamW):
    """Muon for hidden weights, with all axes after the first merged; AdamW for vectors, embeddings and heads.

    A step of Muon has AdamW's usual length: 0.2 for an entry, in root mean square.
    """

    def __init__(self, named: Named, **options: Any) -> None:
        aside = [is_vector(p) or looks_like_embedding_or_head(name, tuple(p.shape)) for name, p in named]
        groups = []
        for muon in (True, False):
            params = [p for (_, p), other in zip(named, aside, strict=True) if other is not muon]
            groups += [{"params": params, "muon": muon}] if params else []
        super().__init__(groups, **options)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        everything = self.param_groups
        for group in everything:
            for p in group["params"] if group["muon"] else ():
                if p.grad is not None:
                    self._orthogonal_(p, group)
        self.param_groups = [group for group in everything if not group["muon"]]
        try:
            return super().step(closure)
        finally:
            self.param_groups = everything

    def _orthogonal_(self, p: Tensor, group: dict[str, Any]) -> None:
        assert p.grad is not None
        state, beta1 = self.state[p], group["betas"][0]
        momentum = state.setdefault("momentum", torch.zeros_like(p))
        state.setdefault("step", torch.zeros(())).add_(1)  # AdamW's loading looks for it
        momentum.lerp_(p.grad, 1 - beta1)
        p.mul_(1 - group["lr"] * group["weight_decay"])
        direction = p.grad.lerp(momentum, beta1).flatten(1)[None]  # Nesterov's
        found, _ = tasks.run(polar_(direction, direction.new_ones(1, dtype=torch.float64), steps=5))
        length = found.norm()
        if length > 0:
            p.sub_((found * (0.2 * p.numel() ** 0.5 / length)).view_as(p), alpha=float(group["lr"]))


def _muon(named: Named, scale: Scale) -> Optimizer:
    return Muon(named, **_common(scale))


OPTIMIZERS: dict[str, Make] = {
    "adamw": _adamw,
    "shampoo": _shampoo,  # dense
    "s-shampoo": _s_shampoo,  # the paper's, with its settings
    "sketchy-shampoo": _sketchy_shampoo,  # with our settings
    "sketchy-soap": _sketchy_soap,
    "muon": _muon,
}

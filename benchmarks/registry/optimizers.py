"""Optimizers by name: how each is built, with which settings, and how often it refreshes its preconditioner.

Packages are imported when an optimizer is built. If one is not installed or raises an error, the benchmarks
show its message. Settings are those that the authors recommend, mostly the defaults. If a setting changes
during training (PSGD refreshes less and less often), the cheapest stage is used.
"""

import logging
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import nn, optim
from torch.optim import Optimizer

import sketchy
from benchmarks.registry.muon_8bit import Muon8bit
from sketchy.optim.routing import looks_like_embedding_or_head

Named = list[tuple[str, nn.Parameter]]
Make = Callable[[Named, float, int | None], Optimizer]


@dataclass(frozen=True)
class Entry:
    """One optimizer at its recommended settings."""

    make: Make
    settings: str
    period: int = 1  # steps from one refresh to the next; the time of a step is a mean over these
    refresh: Callable[[Any], None] | None = None  # makes the next step refresh; for long periods
    ranked: bool = False  # whether it takes a rank


class Several(Optimizer):
    """Several optimizers for different weights of one network."""

    def __init__(self, *parts: Optimizer) -> None:
        self.parts = parts
        super().__init__([group for part in parts for group in part.param_groups], {})
        self.param_groups = [
            group for part in parts for group in part.param_groups
        ]  # the same objects, not copies

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None if closure is None else torch.enable_grad()(closure)()
        for part in self.parts:
            part.step()
        self.state.update({p: state for part in self.parts for p, state in part.state.items()})
        return loss


def weights(named: Named) -> list[nn.Parameter]:
    return [p for _, p in named]


def hidden(named: Named) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The hidden matrices of a network, and all other weights: vectors, N-d weights, embeddings, heads."""
    inside = [n for n, p in named if p.ndim == 2 and not looks_like_embedding_or_head(n, tuple(p.shape))]
    if not inside:
        raise ValueError("unsupported: it takes hidden 2-d weights only, and there are none")
    return [p for n, p in named if n in inside], [p for n, p in named if n not in inside]


def plain(kind: Callable[..., Optimizer], **options: Any) -> Make:
    return lambda named, lr, rank: kind(weights(named), lr=lr, **options)


def ours(kind: Callable[..., Optimizer], **options: Any) -> Make:
    """Ours get the names of the weights, to use Adam for embeddings and output heads."""
    return lambda named, lr, rank: kind(named, lr=lr, **options, **({} if rank is None else {"rank": rank}))


def package(module: str, kind: str, **options: Any) -> Make:
    """A class of a package that may not be installed."""

    def make(named: Named, lr: float, rank: int | None) -> Optimizer:
        return getattr(import_module(module), kind)(weights(named), lr=lr, **options)

    return make


def vocabulary_aside(make: Make) -> Make:
    """Use AdamW for embeddings and heads, if an optimizer would decompose an axis of any length."""

    def made(named: Named, lr: float, rank: int | None) -> Optimizer:
        aside = [n for n, p in named if looks_like_embedding_or_head(n, tuple(p.shape))]
        rest = [p for n, p in named if n in aside]
        main = make([(n, p) for n, p in named if n not in aside], lr, rank)
        return Several(main, optim.AdamW(rest, lr=lr)) if rest else main

    return made


def muon(kind: Callable[..., Optimizer]) -> Make:
    """Muon for the hidden matrices, AdamW for the rest."""

    def make(named: Named, lr: float, rank: int | None) -> Optimizer:
        matrices, rest = hidden(named)
        return Several(kind(matrices, lr=lr), *([optim.AdamW(rest, lr=lr)] if rest else []))

    return make


def low_rank(load: Callable[[], Callable[..., Optimizer]], kind_of_projection: str) -> Make:
    """GaLore: hidden matrices are projected, with the settings of its README."""

    def make(named: Named, lr: float, rank: int | None) -> Optimizer:
        matrices, rest = hidden(named)
        projected = {"rank": 128, "update_proj_gap": 200, "scale": 0.25, kind_of_projection: "std"}
        groups: list[dict[str, Any]] = [{"params": matrices, **projected}]
        return load()([*groups, *([{"params": rest}] if rest else [])], lr=lr)

    return make


def galore() -> Callable[..., Optimizer]:
    """galore-torch imports transformers for one check of torch's version, and bitsandbytes for 8-bit Adam.

    Its AdamW uses neither. If they are missing, empty modules take their place, so that it can be imported.
    """
    for name, contents in (
        ("transformers.utils.versions", {"require_version": lambda *_: None}),
        ("bitsandbytes.optim.optimizer", {"Optimizer2State": Optimizer}),
    ):
        parts = name.split(".")
        try:
            import_module(parts[0])
        except ModuleNotFoundError:
            for i in range(len(parts)):
                sys.modules.setdefault(".".join(parts[: i + 1]), types.ModuleType(parts[i]))
            vars(sys.modules[name]).update(contents)
    return import_module("galore_torch").GaLoreAdamW


def heavyball(kind: str, **options: Any) -> Make:
    def make(named: Named, lr: float, rank: int | None) -> Optimizer:
        module = import_module("heavyball")
        module.utils.compile_mode = None
        return getattr(module, kind)(weights(named), lr=lr, **options)

    return make


def torchao(named: Named, lr: float, rank: int | None) -> Optimizer:
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)  # it warns of every CUDA library that it doesn't find
    try:
        return import_module("torchao.optim").AdamW8bit(weights(named), lr=lr)
    finally:
        logging.disable(level)


def distributed_shampoo(named: Named, lr: float, rank: int | None) -> Optimizer:
    module = import_module("distributed_shampoo")
    return module.DistributedShampoo(
        weights(named),
        lr=lr,
        betas=(0.9, 0.999),
        epsilon=1e-12,
        max_preconditioner_dim=8192,
        precondition_frequency=10,
        start_preconditioning_step=10,
        grafting_config=module.AdamPreconditionerConfig(beta2=0.999, epsilon=1e-8),
        # by default it merges small axes, which makes vectors of short matrices
        distributed_config=module.SingleDeviceDistributedConfig(target_parameter_dimensionality=2),
    )


def dion(named: Named, lr: float, rank: int | None) -> Optimizer:
    kind = import_module("dion").Dion2
    matrices, rest = hidden(named)
    groups: list[dict[str, Any]] = [{"params": matrices}]
    groups += [{"params": rest, "algorithm": "adamw"}] if rest else []
    return kind(groups, lr=lr)


# ---- how to cause a refresh


def _next_period(period: int) -> Callable[[Any], None]:
    """For optimizers that count steps in their groups, before they compare."""

    def refresh(optimizer: Any) -> None:
        for group in optimizer.param_groups:
            group["step"] = (group["step"] // period + 1) * period - 1

    return refresh


def _galore_refresh(optimizer: Any) -> None:
    for state in optimizer.state.values():
        state["step"] = (state["step"] // 200 + 1) * 200


def _kron_refresh(optimizer: Any) -> None:
    optimizer.param_groups[0]["update_counter"] = 1_000_000


def _heavyball_refresh(optimizer: Any) -> None:
    optimizer.inner_group["cumulative_prob"] = int(optimizer.inner_group["cumulative_prob"]) + 0.999


OPTIMIZERS: dict[str, Entry] = {
    "sketchy_shampoo": Entry(ours(sketchy.SketchyShampoo), "fresh every step", ranked=True),
    "sketchy_soap": Entry(ours(sketchy.SketchySOAP), "fresh every step", ranked=True),
    "adamw": Entry(plain(optim.AdamW, foreach=True), "foreach"),
    "adamw_fused": Entry(plain(optim.AdamW, fused=True), "fused"),
    "adafactor": Entry(plain(optim.Adafactor), "torch's"),
    "muon": Entry(muon(optim.Muon), "torch's, bfloat16 inside; AdamW for all but hidden matrices"),
    "muon_8bit": Entry(
        muon(Muon8bit), "our own, torch's with 8-bit momentum; float32 AdamW for all but hidden matrices"
    ),
    "po_soap": Entry(package("pytorch_optimizer", "SOAP"), "refreshed every 10th step", period=10),
    "po_shampoo": Entry(
        vocabulary_aside(package("pytorch_optimizer", "Shampoo")),
        "refreshed every step; AdamW for embeddings and heads",
    ),
    "po_scalable_shampoo": Entry(
        package("pytorch_optimizer", "ScalableShampoo"),
        "blocks of 512, refreshed every 1000th step",
        period=1000,
        refresh=_next_period(1000),
    ),
    "po_kron": Entry(
        package("pytorch_optimizer", "Kron", pre_conditioner_update_probability=0.03),
        "refreshed every 34th step, where its schedule ends (at first every step)",
        period=34,
        refresh=_kron_refresh,
    ),
    "po_alice": Entry(
        package("pytorch_optimizer", "Alice"),
        "rank 256, refreshed every 200th step",
        period=200,
        refresh=_next_period(200),
    ),
    "po_galore": Entry(
        low_rank(lambda: import_module("pytorch_optimizer").GaLore, "projection_type"),
        "rank 128, refreshed every 200th step",
        period=200,
        refresh=_next_period(200),
    ),
    "galore_torch": Entry(
        low_rank(galore, "proj_type"),
        "rank 128, refreshed every 200th step",
        period=200,
        refresh=_galore_refresh,
    ),
    "heavyball_soap": Entry(heavyball("SOAP"), "eager, refreshed every 2nd step", period=2),
    "heavyball_psgd_kron": Entry(
        heavyball("PSGDKron", preconditioner_update_probability=0.03),
        "eager, refreshed every 33rd step, where its schedule ends (at first every step)",
        period=33,
        refresh=_heavyball_refresh,
    ),
    "torchao_adamw_8bit": Entry(torchao, "compiled"),
    "distributed_shampoo": Entry(distributed_shampoo, "refreshed every 10th step", period=10),
    "soap_reference": Entry(package("soap", "SOAP"), "refreshed every 10th step", period=10),
    "dion2": Entry(dion, "AdamW for all but hidden matrices"),
}


def build(name: str, named: Named, lr: float = 1e-3, rank: int | None = None) -> Optimizer:
    if name not in OPTIMIZERS:
        raise ValueError(f"optimizer={name}: unknown; known are {', '.join(OPTIMIZERS)}")
    return OPTIMIZERS[name].make(named, lr, rank)

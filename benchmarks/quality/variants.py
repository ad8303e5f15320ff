"""The optimizers that are compared in training quality, and the grids of their learning rates.

All use decoupled weight decay of 0.01. All other settings are those that the authors of each optimizer
recommend, see ``benchmarks.registry.optimizers``.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from torch import nn, optim
from torch.optim import Optimizer

import sketchy
from benchmarks.common.arguments import known
from benchmarks.registry.changes import ABLATION, KINDS, named
from benchmarks.registry.dense_soap import SOAP
from benchmarks.registry.optimizers import OPTIMIZERS, Entry, Make, Named, heavyball, ours, package, plain
from sketchy.experiments.quality import Variant
from sketchy.optim import SMALL


def under_budget(**options: Any) -> Make:
    """SketchySOAP with the bytes that it has at a rank as its budget."""

    def make(named: Named, lr: float, rank: int | None) -> Optimizer:
        size = sketchy.SketchySOAP(named, lr=lr, rank=rank).report().bytes
        return sketchy.SketchySOAP(named, lr=lr, budget=f"{size}B", **options)

    return make


# Ours with other options. A name begins with the name of the optimizer. They run only if asked for.
WITH_OPTIONS: dict[str, Entry] = {
    "sketchy_soap_int8": Entry(
        ours(sketchy.SketchySOAP, momentum_dtype="int8", adam_dtype="int8"),
        "momentum and Adam's path in 8 bits",
        ranked=True,
    ),
    "sketchy_soap_small": Entry(
        ours(sketchy.SketchySOAP, **SMALL), "momentum in 4 bits, Adam's path in 8", ranked=True
    ),
    "sketchy_soap_sweeps": Entry(
        ours(sketchy.SketchySOAP, solver="sweeps"), "without eigendecompositions", ranked=True
    ),
    "sketchy_shampoo_sweeps": Entry(
        ours(sketchy.SketchyShampoo, solver="sweeps"), "without eigendecompositions", ranked=True
    ),
    "sketchy_soap_polar": Entry(ours(sketchy.SketchySOAP, polar=3), "with a polar step", ranked=True),
    "sketchy_soap_small_polar": Entry(
        ours(sketchy.SketchySOAP, polar=3, **SMALL), "momentum in 4 bits, with a polar step", ranked=True
    ),
    "sketchy_soap_budget": Entry(under_budget(), "the bytes of this rank as a budget", ranked=True),
    "sketchy_soap_shapes": Entry(
        under_budget(budget_every=10**9), "the bytes of this rank, divided by shapes alone", ranked=True
    ),
    **{
        named(name, change): Entry(ours(KINDS[name], **options), change, ranked=True)
        for name, own in ABLATION.items()
        for change, options in own.items()
    },
}
ENTRIES: dict[str, Entry] = {
    **{name: entry for name, entry in OPTIMIZERS.items() if name != "adamw_fused"},  # the same steps as adamw
    # The registry has settings for timing a late step of a long run. These runs are short, so here the
    # optimizers use their own schedules, or refresh more often.
    "po_kron": Entry(package("pytorch_optimizer", "Kron"), "its own schedule of refreshes"),
    "heavyball_psgd_kron": Entry(heavyball("PSGDKron"), "eager, its own schedule of refreshes"),
    "po_shampoo": Entry(package("pytorch_optimizer", "Shampoo"), "refreshed every step"),
    "po_scalable_shampoo": Entry(
        package("pytorch_optimizer", "ScalableShampoo", preconditioning_compute_steps=10),
        "blocks of 512, refreshed every 10th step",
    ),
    "adamw_95": Entry(plain(optim.AdamW, foreach=True, betas=(0.9, 0.95)), "foreach, betas (0.9, 0.95)"),
    "soap": Entry(plain(SOAP), "dense, our own, bases fresh every step"),
    "shampoo": Entry(ours(sketchy.Shampoo), "dense, our own, roots fresh every step"),
    **WITH_OPTIONS,
}
SOURCE_TREES = {"distributed_shampoo": "distributed_shampoo", "soap_reference": "soap", "dion2": "dion"}
# Set in every parameter group that has the key. The last one is torch's recommendation for using a learning
# rate tuned for AdamW with Muon.
GROUPS = {
    "weight_decay": 0.01,
    "weight_decouple": True,
    "decoupled_weight_decay": True,
    "adjust_lr_fn": "match_rms_adamw",
}
# The rank is a quarter of the width, as GaLore's authors use. With the recommended new projection every 200th
# step a run would have only two, so there is one every 50th step.
LOW_RANK = {
    "galore_torch": {"rank": 32, "update_proj_gap": 50},
    "po_galore": {"rank": 32, "update_proj_gap": 50},
    "po_alice": {"rank": 32, "leading_basis": 5, "update_interval": 50},
}
RANKS = (4, 8, 16, 32, 64, 128)  # of the sketched optimizers
CENTRE = 4e-3  # of the grid of learning rates
CENTRES = {  # for optimizers whose best rate was far from it in short runs on two tasks
    **dict.fromkeys(("muon", "muon_8bit", "soap", "po_soap", "heavyball_soap", "soap_reference"), 8e-3),
    **dict.fromkeys(("po_galore", "galore_torch", "heavyball_psgd_kron"), 8e-3),
    **dict.fromkeys(("po_kron", "po_alice", "po_scalable_shampoo"), 1.6e-2),
    "adafactor": 6.4e-2,  # relative to the size of a weight
    "po_shampoo": 2.56e-1,  # its second moments are sums, so steps get shorter
}
RATIO = 2.0  # between neighbouring rates


def build(variant: Variant, model: nn.Module, rate: float) -> Optimizer:
    optimizer = ENTRIES[variant.optimizer].make(list(model.named_parameters()), rate, variant.rank)
    for group in optimizer.param_groups:
        settings = {**GROUPS, **LOW_RANK.get(variant.optimizer, {})}
        group.update({key: value for key, value in settings.items() if key in group})
    return optimizer


def everyone() -> tuple[str, ...]:
    """All optimizers, except ours with other options and those not on PyPI that can't be imported here."""
    usual = (name for name in ENTRIES if name not in WITH_OPTIONS)
    return tuple(name for name in usual if name not in SOURCE_TREES or find_spec(SOURCE_TREES[name]))


def variants(optimizers: Sequence[str], ranks: Sequence[int] = RANKS) -> list[Variant]:
    """The named optimizers. Those that take a rank appear once for each of ``ranks``."""
    known(ENTRIES, optimizers=optimizers)
    return [
        Variant(name, rank)
        for name in dict.fromkeys(optimizers)
        for rank in (ranks if ENTRIES[name].ranked else (None,))
    ]


def rates(optimizer: str, count: int, factor: float = 1.0) -> list[float]:
    """The grid of an optimizer: ``count`` learning rates around its centre, each twice the one before.

    The centre is multiplied by ``factor``.

    >>> rates("adamw", 6)
    [0.001, 0.002, 0.004, 0.008, 0.016, 0.032]
    """
    return [factor * CENTRES.get(optimizer, CENTRE) * RATIO ** (i - (count - 1) // 2) for i in range(count)]


def beyond(tried: dict[float, float]) -> float | None:
    """The next rate to try, if the best of ``tried`` (rate: loss) is the lowest or the highest; else None.

    None for a single rate, too.

    >>> beyond({0.001: 2.0, 0.002: 1.0}), beyond({0.001: 2.0, 0.002: 1.0, 0.004: 1.5})
    (0.004, None)
    """
    if len(tried) < 2:
        return None
    best, low, high = min(tried, key=tried.__getitem__), min(tried), max(tried)
    return low / RATIO if best == low else high * RATIO if best == high else None

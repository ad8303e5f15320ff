"""Who is compared in training quality: optimizers by name, at a rank where they take one, and their rates.

All decay weights by 0.01, decoupled from the gradient; everything else is each optimizer's recommended
setting, see ``benchmarks.registry.optimizers``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from torch import nn
from torch.optim import Optimizer

import sketchy
from benchmarks.common.arguments import known
from benchmarks.registry.dense_soap import SOAP
from benchmarks.registry.optimizers import OPTIMIZERS, Entry, heavyball, ours, package, plain

ENTRIES: dict[str, Entry] = {
    **{name: entry for name, entry in OPTIMIZERS.items() if name != "adamw_fused"},  # the same steps as adamw
    # no long axis here; their own schedules, and refreshes within a run this short, where the registry has
    # the cheap end
    "po_kron": Entry(package("pytorch_optimizer", "Kron"), "its own schedule of refreshes"),
    "heavyball_psgd_kron": Entry(heavyball("PSGDKron"), "eager, its own schedule of refreshes"),
    "po_shampoo": Entry(package("pytorch_optimizer", "Shampoo"), "refreshed every step"),
    "po_scalable_shampoo": Entry(
        package("pytorch_optimizer", "ScalableShampoo", preconditioning_compute_steps=10),
        "blocks of 512, refreshed every 10th step",
    ),
    "soap": Entry(plain(SOAP), "dense, our own, bases fresh every step"),
    "shampoo": Entry(ours(sketchy.Shampoo), "dense, our own, roots fresh every step"),
}
SOURCE_TREES = {"distributed_shampoo": "distributed_shampoo", "soap_reference": "soap", "dion2": "dion"}
# set in every parameter group that has the key: equal decay, apart from the gradient; one rate for both
# halves of Muon, as torch recommends to who has a rate tuned for AdamW
GROUPS = {
    "weight_decay": 0.01,
    "weight_decouple": True,
    "decoupled_weight_decay": True,
    "adjust_lr_fn": "match_rms_adamw",
}
# a quarter of the width, the share that GaLore's authors project on, and of that the share of Alice's leading
# basis; a new projection every 50th step, for at the recommended 200 a run would have two
LOW_RANK = {
    "galore_torch": {"rank": 32, "update_proj_gap": 50},
    "po_galore": {"rank": 32, "update_proj_gap": 50},
    "po_alice": {"rank": 32, "leading_basis": 5, "update_interval": 50},
}
RANKS = (4, 8, 16, 32, 64, 128)  # of ours
CENTRE = 4e-3  # of the grid of rates
CENTRES = {  # where that isn't a good place to start, by short runs on two tasks
    **dict.fromkeys(("muon", "soap", "po_soap", "heavyball_soap", "soap_reference"), 8e-3),
    **dict.fromkeys(("po_galore", "galore_torch", "heavyball_psgd_kron"), 8e-3),
    **dict.fromkeys(("po_kron", "po_alice", "po_scalable_shampoo"), 1.6e-2),
    "adafactor": 6.4e-2,  # its rate is relative to the size of a weight
    "po_shampoo": 2.56e-1,  # accumulates and never forgets
}
RATIO = 2.0  # of a rate to the one before


@dataclass(frozen=True)
class Contender:
    """An optimizer, at a rank if it is run at several."""

    optimizer: str
    rank: int | None = None

    def __str__(self) -> str:
        return self.optimizer if self.rank is None else f"{self.optimizer}, rank {self.rank}"

    @property
    def sketched(self) -> bool:
        return self.optimizer.startswith("sketchy_")

    def build(self, model: nn.Module, rate: float) -> Optimizer:
        optimizer = ENTRIES[self.optimizer].make(list(model.named_parameters()), rate, self.rank)
        for group in optimizer.param_groups:
            settings = {**GROUPS, **LOW_RANK.get(self.optimizer, {})}
            group.update({key: value for key, value in settings.items() if key in group})
        return optimizer


ADAMW = Contender("adamw")


def everyone() -> tuple[str, ...]:
    """All but those that exist as source trees only and can't be imported here."""
    return tuple(name for name in ENTRIES if name not in SOURCE_TREES or find_spec(SOURCE_TREES[name]))


def contenders(optimizers: Sequence[str], ranks: Sequence[int] = RANKS) -> list[Contender]:
    """The named optimizers, those that take a rank at each of ``ranks``."""
    known(ENTRIES, optimizers=optimizers)
    return [
        Contender(name, rank)
        for name in dict.fromkeys(optimizers)
        for rank in (ranks if ENTRIES[name].ranked else (None,))
    ]


def rates(optimizer: str, count: int) -> list[float]:
    """The grid, equally wide for everyone: ``count`` rates around the optimizer's centre.

    >>> rates("adamw", 6)
    [0.001, 0.002, 0.004, 0.008, 0.016, 0.032]
    """
    return [CENTRES.get(optimizer, CENTRE) * RATIO ** (i - (count - 1) // 2) for i in range(count)]


def beyond(tried: dict[float, float]) -> float | None:
    """The next rate to try if the best of ``tried`` (rate: loss) is the lowest or the highest; else None.

    A grid of one rate has no ends.

    >>> beyond({0.001: 2.0, 0.002: 1.0}), beyond({0.001: 2.0, 0.002: 1.0, 0.004: 1.5})
    (0.004, None)
    """
    if len(tried) < 2:
        return None
    best, low, high = min(tried, key=tried.__getitem__), min(tried), max(tried)
    return low / RATIO if best == low else high * RATIO if best == high else None

"""Online convex optimization: learners, losses, domains, the loop over rounds, and regret."""

from typing import Any

from sketchy.oco import counterexample as counterexample
from sketchy.oco import domain as domain
from sketchy.oco import loss as loss
from sketchy.oco import reduction as reduction
from sketchy.oco.ada_fd import AdaFD as AdaFD
from sketchy.oco.ada_lr import AdaLR as AdaLR
from sketchy.oco.adagrad import AdaGrad as AdaGrad
from sketchy.oco.epoch_adagrad import EpochAdaGrad as EpochAdaGrad
from sketchy.oco.fd_son import FDSON as FDSON
from sketchy.oco.full_adagrad import FullAdaGrad as FullAdaGrad
from sketchy.oco.ggt import GGT as GGT
from sketchy.oco.learner import Learner as Learner
from sketchy.oco.ogd import OGD as OGD
from sketchy.oco.play import Sums as Sums
from sketchy.oco.play import checkpoints as checkpoints
from sketchy.oco.play import play as play
from sketchy.oco.radagrad import RadaGrad as RadaGrad
from sketchy.oco.regret import best_point as best_point
from sketchy.oco.regret import observed_bound as observed_bound
from sketchy.oco.regret import regret as regret
from sketchy.oco.rfd_son import RFDSON as RFDSON
from sketchy.oco.s_adagrad import SAdaGrad as SAdaGrad
from sketchy.oco.son import SON as SON

# The import of a learner's class registers it.
LEARNERS: dict[str, type[Learner]] = {
    value.name: value
    for value in list(globals().values())
    if isinstance(value, type) and issubclass(value, Learner) and value is not Learner
}


def make(name: str, dim: int, *, sketch_size: int = 10, **options: Any) -> Learner:
    """Make the learner with this name in ``LEARNERS``; its class takes the ``options``.

    ``sketch_size`` is passed to learners that keep a sketch, a projection or a window. Others ignore it.

    >>> import torch
    >>> learner = make("adagrad", 2, eta=0.5)
    >>> learner.update(torch.tensor([3.0, -4.0]))
    >>> learner.point
    tensor([-0.5000,  0.5000], dtype=torch.float64)
    """
    if name not in LEARNERS:
        raise ValueError(f"name={name!r}: must be one of {', '.join(LEARNERS)}")
    if LEARNERS[name].uses_sketch_size:
        options["sketch_size"] = sketch_size
    return LEARNERS[name](dim, **options)

"""Momentum: an average of gradients, as large as the weight, updated in place."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from sketchy.core import momentum
from sketchy.optim.parts.contracts import WeightSpec
from sketchy.optim.slots import Codec, Meaning, Slots
from sketchy.optim.stack import Gradient, Stack


@dataclass(frozen=True)
class Momentum:
    slots: Slots = field(default_factory=dict)  # empty with beta1 = 0
    rounding: float = 0.0  # relative rounding error of an entry, if it is stored in a shorter dtype

    @classmethod
    def of(cls, weight: WeightSpec) -> "Momentum":
        if not weight.options["momentum"]:
            return cls()
        name = weight.options["momentum_dtype"]
        codec = Codec(getattr(torch, name) if name else weight.wide)
        slot = weight.slot(Meaning.MOMENTUM, codec)
        return cls({"momentum": slot}, codec.eps if codec.dtype.itemsize < weight.work.itemsize else 0.0)

    def update(self, stack: Stack, G: Gradient) -> tuple[Tensor, Tensor]:
        """Add the gradient. Return x (K, *shape), a new tensor, and scale (K,): the momentum is scale * x."""
        if not self.slots:
            return G.whole.clone(), torch.ones_like(stack.count, dtype=torch.float64)
        return momentum.advance_(
            stack.own("momentum"),
            G.whole,
            stack.group["betas"][0],
            stack.count,
            moving_average=stack.group["moving_average_momentum"],
            nesterov=stack.group["nesterov"],
            good=stack.good,
        )

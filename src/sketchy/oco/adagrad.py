"""Diagonal AdaGrad."""

import torch
from torch import Tensor

from sketchy.oco.learner import Learner
from sketchy.oco.norm import Diagonal, Norm


class AdaGrad(Learner):
    """Diagonal AdaGrad (Duchi et al. 2011): h ← h + g², w ← w - η g / √h, with h₀ = δ.

    A coordinate does not move until its gradient is nonzero.
    """

    name = "adagrad"
    _tensors = ("sum_of_squares",)

    def _begin(self) -> None:
        self._sum_of_squares = self.delta.expand(-1, self.dim).clone()

    def _step(self, g: Tensor) -> Tensor:
        h = self._sum_of_squares = torch.addcmul(self._sum_of_squares, g, g)
        return self.eta * g / torch.where(h == 0, 1.0, h).sqrt()

    def _norm(self) -> Norm | None:
        return Diagonal(self._sum_of_squares.sqrt())

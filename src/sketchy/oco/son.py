"""SON, the online Newton step."""

import torch
from torch import Tensor

from sketchy.oco.learner import Learner
from sketchy.oco.norm import Dense, LowRank, Norm, eigh, pseudo_power


class SON(Learner):
    """SON (Luo et al. 2016), the online Newton step: w ← w - A⁻¹ g with A = δ I + Σ g gᵀ / (η √t).

    The sum has the same weights as in FD-SON, the sketched form of SON. O(d²) memory.
    """

    name = "son"
    needs_delta = True
    _tensors = ("curvature",)

    def _begin(self) -> None:
        self._curvature = self.delta.unsqueeze(-1) * torch.eye(self.dim, dtype=self.dtype)

    def _step(self, g: Tensor) -> Tensor:
        scaled = g * (self.eta * self.round**0.5).rsqrt()
        self._curvature = torch.baddbmm(self._curvature, scaled.unsqueeze(-1), scaled.unsqueeze(-2))
        lam, V = eigh(self._curvature)
        return LowRank(V.mT, pseudo_power(lam, -1.0), self._zeros(1)).apply(g)

    def _norm(self) -> Norm | None:
        return Dense(self._curvature)

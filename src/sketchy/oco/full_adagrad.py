"""Full-matrix AdaGrad."""

import torch
from torch import Tensor

from sketchy.oco.learner import Learner
from sketchy.oco.norm import Dense, LowRank, Norm, eigh, pseudo_power


class FullAdaGrad(Learner):
    """Full-matrix AdaGrad (Duchi et al. 2011): w ← w - η G^(-1/2) g with G = δ I + Σ g gᵀ; O(d²) memory."""

    name = "full-adagrad"
    _tensors = ("covariance",)

    def _begin(self) -> None:
        self._covariance = self.delta.unsqueeze(-1) * torch.eye(self.dim, dtype=self.dtype)

    def _step(self, g: Tensor) -> Tensor:
        self._covariance = torch.baddbmm(self._covariance, g.unsqueeze(-1), g.unsqueeze(-2))
        lam, V = eigh(self._covariance)
        return self.eta * LowRank(V.mT, pseudo_power(lam, -0.5), self._zeros(1)).apply(g)

    def _norm(self) -> Norm | None:
        lam, V = eigh(self._covariance)
        return Dense((V * pseudo_power(lam, 0.5).unsqueeze(-2)) @ V.mT)

"""Ada-LR."""

from typing import Any

import torch
from torch import Tensor

from sketchy.core.arguments import check_count
from sketchy.core.linalg import gaussian
from sketchy.oco.learner import Learner
from sketchy.oco.norm import LowRank, Norm, pseudo_power


class AdaLR(Learner):
    """Ada-LR (Krummenacher et al. 2016): full-matrix AdaGrad on a random low-rank approximation of G.

    Each round draws a Gaussian Π (d, l). With the QR decomposition Q R = G Π and the SVD U Σ Vᵀ = Qᵀ G,
    w ← w - η V (Σ^(1/2) + δ I)⁻¹ Vᵀ g. This makes the root cheaper but saves no memory: G is d x d. All
    settings share Π, which depends only on ``seed`` and the round.

    If the gradients have rank at most l, the regret bound is that of full-matrix AdaGrad. Otherwise the
    published bound holds only with some probability. :func:`sketchy.oco.observed_bound` always holds, but may
    exceed D Σ ‖g‖, and then it says nothing.
    """

    name = "ada-lr"
    needs_delta = True
    uses_sketch_size = True
    _tensors = ("covariance", "basis", "roots")

    def __init__(self, dim: int, *, sketch_size: int = 10, seed: int = 0, **options: Any) -> None:
        self.sketch_size = min(check_count("sketch_size", sketch_size, 1, "at least 1"), dim)
        self.seed = seed
        super().__init__(dim, **options)

    def _begin(self) -> None:
        self._covariance = self._zeros(self.dim, self.dim)
        self._basis, self._roots = self._zeros(self.sketch_size, self.dim), self._zeros(self.sketch_size)

    def _step(self, g: Tensor) -> Tensor:
        self._covariance = torch.baddbmm(self._covariance, g.unsqueeze(-1), g.unsqueeze(-2))
        broken = ~self._covariance.isfinite().all(-1).all(-1)
        G = self._covariance.masked_fill(broken.reshape(-1, 1, 1), 0.0)  # LAPACK raises an error on nan
        seed = hash((self.seed, self.round)) % 2**63
        Q, _ = torch.linalg.qr(G @ gaussian(self.dim, self.sketch_size, seed=seed, like=g))
        _, sigma, V = torch.linalg.svd(Q.mT @ G, full_matrices=False)
        self._basis = V
        self._roots = sigma.sqrt().masked_fill(broken.unsqueeze(-1), torch.nan)
        inside = self.eta * pseudo_power(self._roots + self.delta, -1.0)
        return LowRank(V, inside, self._zeros(1)).apply(g)

    def _norm(self) -> Norm | None:
        return LowRank(self._basis, self._roots + self.delta, self.delta)

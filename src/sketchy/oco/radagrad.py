"""RadaGrad."""

from typing import Any

import torch
from torch import Tensor

from sketchy.core.arguments import check_count
from sketchy.core.linalg import gaussian
from sketchy.oco.learner import Learner
from sketchy.oco.norm import LowRank, Norm, pseudo_power


class RadaGrad(Learner):
    """RadaGrad (Krummenacher et al. 2016): AdaGrad from a random projection G Π of G; O(d l) memory.

    Π (d, l) is Gaussian of variance 1/l, drawn once from ``seed``. S ← S + g (Πᵀ g)ᵀ. With the QR
    decomposition Q R = S, the SVD U Σ Wᵀ = Sᵀ Q and V = Q W, w ← w - η [V (Σ^(1/2) + δ I)⁻¹ Vᵀ g + g - V Vᵀ
    g]: outside the basis this is a plain gradient step. All settings share Π.

    No regret bound is known in advance. :func:`sketchy.oco.observed_bound` gives one afterwards.
    """

    name = "radagrad"
    needs_delta = True
    uses_sketch_size = True
    _tensors = ("projection", "sketch", "basis", "roots")

    def __init__(self, dim: int, *, sketch_size: int = 10, seed: int = 0, **options: Any) -> None:
        self.sketch_size = min(check_count("sketch_size", sketch_size, 1, "at least 1"), dim)
        self.seed = seed
        super().__init__(dim, **options)

    def _begin(self) -> None:
        l = self.sketch_size
        self._projection = gaussian(self.dim, l, seed=self.seed, like=self.eta) / l**0.5
        self._sketch = self._zeros(self.dim, l)
        self._basis, self._roots = self._zeros(l, self.dim), self._zeros(l)

    def _step(self, g: Tensor) -> Tensor:
        self._sketch = torch.baddbmm(self._sketch, g.unsqueeze(-1), (g @ self._projection).unsqueeze(-2))
        broken = ~self._sketch.isfinite().all(-1).all(-1)
        S = self._sketch.masked_fill(broken.reshape(-1, 1, 1), 0.0)  # LAPACK raises an error on nan
        Q, _ = torch.linalg.qr(S)
        _, sigma, W = torch.linalg.svd(S.mT @ Q)
        V = self._basis = W @ Q.mT
        self._roots = sigma.sqrt().masked_fill(broken.unsqueeze(-1), torch.nan)
        inside = pseudo_power(self._roots + self.delta, -1.0)
        return self.eta * LowRank(V, inside, torch.ones_like(self.eta)).apply(g)

    def _norm(self) -> Norm | None:
        return None  # the step may be longer inside the basis than outside: there is no norm B + c I for it

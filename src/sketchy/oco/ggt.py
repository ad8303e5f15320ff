"""GGT: full-matrix AdaGrad over a window of gradients."""

from typing import Any

import torch
from torch import Tensor

from sketchy.core.arguments import check_count
from sketchy.oco.learner import Learner
from sketchy.oco.norm import LowRank, Norm, eigh, noise_beside, pseudo_power


class GGT(Learner):
    """GGT (Agarwal et al. 2019): w ← w - η ((W Wᵀ)^(1/2) + δ I)⁻¹ g, W = [g_t, β g_{t-1}, β² g_{t-2} ...].

    ``sketch_size`` is r, the number of columns of W; ``decay`` is β. The root comes from the r x r
    eigenproblem of Wᵀ W. O(d r) memory.

    It has no regret bound in advance: the window forgets, and an adversary can make the regret grow as T.
    :func:`sketchy.oco.observed_bound` gives one afterwards.
    """

    name = "ggt"
    needs_delta = True
    uses_sketch_size = True
    _tensors = ("window", "basis", "roots")

    def __init__(self, dim: int, *, sketch_size: int = 10, decay: float = 1.0, **options: Any) -> None:
        check_count("sketch_size", sketch_size, 1, "at least 1 (the window's length)")
        if not 0 <= decay <= 1:
            raise ValueError(f"decay={decay}: must be in [0, 1]")
        self.sketch_size, self.decay = sketch_size, decay
        super().__init__(dim, **options)

    def _begin(self) -> None:
        self._window = self._zeros(self.sketch_size, self.dim)  # rows, the newest first
        self._basis, self._roots = self._zeros(self.sketch_size, self.dim), self._zeros(self.sketch_size)

    def _step(self, g: Tensor) -> Tensor:
        self._window = torch.cat([g.unsqueeze(1), self.decay * self._window[:, :-1]], 1)
        lam, V = eigh(self._window @ self._window.mT)
        # directions of rounding noise would not be orthonormal: pseudo_power sets them to zero
        self._roots = pseudo_power(lam, 0.5)
        self._basis = (V * pseudo_power(lam, -0.5).unsqueeze(-2)).mT @ self._window
        largest = torch.maximum(self._roots.amax(-1, keepdim=True), self.delta)
        threshold = noise_beside(self.delta)
        inside = pseudo_power(self._roots + self.delta, -1.0, largest=largest, threshold=threshold)
        outside = pseudo_power(self.delta, -1.0, largest=largest, threshold=threshold)
        return self.eta * LowRank(self._basis, inside, outside).apply(g)

    def _norm(self) -> Norm | None:
        return LowRank(self._basis, self._roots + self.delta, self.delta)

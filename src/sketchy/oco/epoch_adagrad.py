"""Generic Epoch AdaGrad: the preconditioner is updated only at given rounds."""

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor

from sketchy.core.rank_one import fold_, orthonormal
from sketchy.oco.learner import Learner
from sketchy.oco.norm import LowRank, Norm, eigh, pseudo_power
from sketchy.oco.sketched import CORRECT_EVERY


class EpochAdaGrad(Learner):
    """Generic Epoch AdaGrad (Alg. 5): w ← w - η G_{t_k}^(-1/2) g in the epoch after t_k, G_t = δ I + Σ g gᵀ.

    ``update_points`` are the rounds t_k after which the preconditioner is updated: a set of rounds, or a
    number k for every k-th round. With ``sketched``, S-AdaGrad's G̃ of ``sketch_size`` replaces G. The paper
    requires δ > 0. With δ = 0 the point does not move in the first epoch, as G_0 = 0 has the pseudo-inverse
    0.
    """

    name = "epoch-adagrad"
    uses_sketch_size = True

    def __init__(
        self,
        dim: int,
        *,
        update_points: int | Collection[int] = 10,
        sketched: bool = False,
        sketch_size: int = 10,
        **options: Any,
    ) -> None:
        if isinstance(update_points, int) and update_points < 1:
            raise ValueError(f"update_points={update_points}: must be at least 1, or a set of rounds")
        if sketched and sketch_size < 2:
            raise ValueError(
                f"sketch_size={sketch_size}: must be at least 2 (one kept direction and a free one)"
            )
        self.update_points = update_points if isinstance(update_points, int) else frozenset(update_points)
        self.sketched, self.sketch_size = sketched, min(sketch_size, dim)
        self._tensors = ("basis", "eigenvalues", "diagonal") if sketched else ("covariance",)
        self._tensors += ("directions", "spectrum", "outside")  # the preconditioner in use
        super().__init__(dim, **options)

    def _begin(self) -> None:
        rows = self.sketch_size if self.sketched else self.dim
        self._directions, self._spectrum = self._zeros(rows, self.dim), self._zeros(rows)
        self._outside = self.delta.clone()
        if self.sketched:
            self._basis, self._eigenvalues = self._zeros(rows, self.dim), self._zeros(rows)
            self._diagonal = self.delta.clone()
        else:
            self._covariance = self.delta.unsqueeze(-1) * torch.eye(self.dim, dtype=self.dtype)

    def _step(self, g: Tensor) -> Tensor:
        last, points = self.round - 1, self.update_points
        if last % points == 0 if isinstance(points, int) else last == 0 or last in points:
            self._renew()
        self._learn(g)
        return self.eta * self._power(-0.5).apply(g)

    def _learn(self, g: Tensor) -> None:
        if self.sketched:
            folded = fold_(self._basis, self._eigenvalues, g)
            self._eigenvalues, self._diagonal = folded.eigenvalues, self._diagonal + folded.escaped
            self._basis = folded.basis()
            if self.round % CORRECT_EVERY == 0:
                self._basis = orthonormal(self._basis)
        else:
            self._covariance = torch.baddbmm(self._covariance, g.unsqueeze(-1), g.unsqueeze(-2))

    def _renew(self) -> None:
        if self.sketched:
            self._directions, self._outside = self._basis.clone(), self._diagonal.clone()
            self._spectrum = self._eigenvalues + self._diagonal
        else:
            self._spectrum, V = eigh(self._covariance)
            self._directions, self._outside = V.mT, torch.zeros_like(self.delta)

    def _norm(self) -> Norm | None:
        return self._power(0.5)

    def _power(self, power: float) -> LowRank:
        """G^power for the G of the current epoch."""
        largest = torch.maximum(self._spectrum.amax(-1, keepdim=True), self._outside)
        inside, outside = (pseudo_power(mu, power, largest=largest) for mu in (self._spectrum, self._outside))
        return LowRank(self._directions, inside, outside)

"""The norm ‖x‖² = xᵀ S x of a preconditioner. S is diagonal, low-rank plus a multiple of I, or dense."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sketchy.core.rank_one import NOISE


def pseudo_power(
    mu: Tensor, power: float, *, largest: Tensor | None = None, threshold: Tensor | float = NOISE
) -> Tensor:
    """mu^power for eigenvalues mu (P, n) >= 0, with 0^power = 0 (Moore-Penrose, Sec. 4.1).

    Values up to ``threshold`` times ``largest`` (P, 1) are rounding noise and count as zero. ``largest`` is
    the maximum of each row by default.
    """
    largest = mu.amax(-1, keepdim=True) if largest is None else largest
    # nan stays nan: a diverged setting must be visible
    return mu.pow(power).masked_fill_(mu <= threshold * largest, 0.0)


def noise_beside(delta: Tensor) -> Tensor:
    """The threshold for eigenvalues that include δ (P, 1): 0 where δ > 0, as the user's δ is not noise."""
    return torch.where(delta > 0, 0.0, NOISE)


@dataclass(frozen=True)
class Diagonal:
    """S = diag(s)."""

    s: Tensor  # (P, d), or (P, 1) for a multiple of the identity

    def rows(self, chosen: Tensor) -> "Diagonal":
        return Diagonal(self.s[chosen])

    def dense(self, dim: int) -> Tensor:
        return self.s.expand(-1, dim).diag_embed()


@dataclass(frozen=True)
class LowRank:
    """S = Uᵀ diag(inside) U + outside (I - Uᵀ U): one eigenvalue for all directions outside the basis."""

    basis: Tensor  # U, (P, l, d): rows are orthonormal, or zero if unused
    inside: Tensor  # (P, l)
    outside: Tensor  # (P, 1)

    def rows(self, chosen: Tensor) -> "LowRank":
        return LowRank(self.basis[chosen], self.inside[chosen], self.outside[chosen])

    def apply(self, x: Tensor) -> Tensor:
        """S x for x (P, d)."""
        inside = (self.inside - self.outside) * (self.basis @ x.unsqueeze(-1)).squeeze(-1)
        return self.outside * x + (inside.unsqueeze(1) @ self.basis).squeeze(1)

    def dense(self, dim: int) -> Tensor:
        eye = torch.eye(dim, dtype=self.basis.dtype)
        rest = eye - self.basis.mT @ self.basis
        return self.basis.mT @ (self.inside.unsqueeze(-1) * self.basis) + self.outside.unsqueeze(-1) * rest


@dataclass(frozen=True)
class Dense:
    """S itself, for the full-matrix learners."""

    S: Tensor  # (P, d, d)

    def rows(self, chosen: Tensor) -> "Dense":
        return Dense(self.S[chosen])

    def dense(self, dim: int) -> Tensor:
        return self.S


Norm = Diagonal | LowRank | Dense


def eigh(S: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (P, n), ascending and clamped to >= 0, and eigenvectors (P, n, n) of PSD matrices S.

    The eigenvalues are nan for an S that is not finite. LAPACK alone would raise an error for the whole
    batch.
    """
    broken = ~S.isfinite().all(-1).all(-1)
    lam, V = torch.linalg.eigh(S.masked_fill(broken.reshape(-1, 1, 1), 0.0))
    return lam.clamp(min=0).masked_fill(broken.unsqueeze(-1), torch.nan), V

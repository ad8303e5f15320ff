"""The norm ‖x‖² = xᵀ S x of a preconditioner, in the form it has: diagonal, low-rank plus diagonal, dense."""

from dataclasses import dataclass

import torch
from torch import Tensor

# An eigenvalue at or below this share of the largest is rounding noise and counts as zero.
THRESHOLD = 1e-14


def pseudo_power(mu: Tensor, power: float, largest: Tensor | None = None) -> Tensor:
    """mu^power for eigenvalues mu (..., n) >= 0, with 0^power = 0 (Moore-Penrose, Sec. 4.1).

    Noise counts as zero: what is at or below 1e-14 of ``largest`` (by default the row's maximum).
    """
    largest = mu.amax(-1, keepdim=True) if largest is None else largest
    live = ~(mu <= THRESHOLD * largest)  # nan is live: a diverged setting must show
    return torch.where(live, torch.where(live, mu, 1.0) ** power, 0.0)


@dataclass(frozen=True)
class Diagonal:
    """S = diag(s)."""

    s: Tensor  # (P, d), or (P, 1) for a multiple of the identity

    def dense(self, dim: int) -> Tensor:
        return self.s.expand(-1, dim).diag_embed()


@dataclass(frozen=True)
class LowRank:
    """S = Uᵀ diag(inside) U + outside (I - Uᵀ U): one number for all directions outside the basis."""

    basis: Tensor  # U, (P, l, d): orthonormal rows, or zero rows for directions not in use
    inside: Tensor  # (P, l)
    outside: Tensor  # (P, 1)

    def dense(self, dim: int) -> Tensor:
        eye = torch.eye(dim, dtype=self.basis.dtype)
        rest = eye - self.basis.mT @ self.basis
        return self.basis.mT @ (self.inside.unsqueeze(-1) * self.basis) + self.outside.unsqueeze(-1) * rest


@dataclass(frozen=True)
class Dense:
    """S itself, for the full-matrix learners."""

    S: Tensor  # (P, d, d)

    def dense(self, dim: int) -> Tensor:
        return self.S


Norm = Diagonal | LowRank | Dense

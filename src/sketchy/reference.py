"""The paper, dense and literal: Alg. 1, 2 and 3 on d x d matrices in float64. The tests' oracle.

Read this first. Nothing in the package imports it; every fast version is tested against it.
``beta2`` below 1 gives the exponentially weighted form of Sec. 4.3; 1 is the paper's plain sum.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


def pseudo_power(S: Tensor, power: float, threshold: float = 1e-14) -> Tensor:
    """S^power of a symmetric positive matrix, zero eigenvalues mapped to zero (Sec. 4.1).

    Eigenvalues at or below ``threshold`` times the largest count as zero.
    """
    lam, U = torch.linalg.eigh(S)
    live = lam > threshold * lam[-1].clamp(min=0)
    return (U * torch.where(live, torch.where(live, lam, 1.0) ** power, 0.0)) @ U.T


def fd_update(G_bar: Tensor, M: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """FD-update (Alg. 1): from the sketch Ḡ (d x d) and new mass M (d x d) to ρ_t and the new sketch."""
    lam, U = torch.linalg.eigh(G_bar + M)  # line 3
    lam, U = lam.flip(0)[:rank], U.flip(1)[:, :rank]  # line 4, descending
    rho = lam[-1].clamp(min=0)  # a zero eigenvalue may come out as -1e-17
    return rho, (U * (lam - lam[-1])) @ U.T  # line 5


@dataclass(frozen=True)
class DenseSketch:
    """Ḡ and ρ_{1:t} after t updates: exponentially weighted Frequent Directions (Sec. 4.3)."""

    G_bar: Tensor  # (d, d)
    rho: Tensor  # (): discounted by beta2, as Obs. 6 needs
    rank: int

    @classmethod
    def empty(cls, dim: int, rank: int) -> "DenseSketch":
        zero = torch.zeros(dim, dim, dtype=torch.float64)
        return cls(zero, torch.zeros((), dtype=torch.float64), min(rank, dim))

    def update(self, M: Tensor, beta2: float = 1.0) -> "DenseSketch":
        """(ρ_t, Ḡ_t) = FD-update(β₂ Ḡ_{t-1}, M_t), ρ_{1:t} = β₂ ρ_{1:t-1} + ρ_t."""
        rho_t, G_bar = fd_update(beta2 * self.G_bar, M.double(), self.rank)
        return DenseSketch(G_bar, beta2 * self.rho + rho_t, self.rank)

    def compensated(self) -> Tensor:
        """G̃ = Ḡ + ρ_{1:t} I (Alg. 2, line 6)."""
        return self.G_bar + self.rho * torch.eye(len(self.G_bar), dtype=torch.float64)


@dataclass(frozen=True)
class SAdagrad:
    """S-AdaGrad (Alg. 2): a point and the sketch of its gradients."""

    x: Tensor  # (d,)
    sketch: DenseSketch

    @classmethod
    def start(cls, x: Tensor, rank: int) -> "SAdagrad":
        return cls(x.double(), DenseSketch.empty(len(x), rank))

    def step(
        self,
        g: Tensor,
        lr: float,
        beta2: float = 1.0,
        project: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> "SAdagrad":
        """Lines 5 and 6. ``project(y, S)`` is argmin over x in K of (y - x)ᵀ S (y - x), S = G̃^(1/2)."""
        g = g.double()
        sketch = self.sketch.update(torch.outer(g, g), beta2)
        G_tilde = sketch.compensated()
        y = self.x - lr * pseudo_power(G_tilde, -1 / 2) @ g
        return SAdagrad(project(y, pseudo_power(G_tilde, 1 / 2)) if project else y, sketch)


@dataclass(frozen=True)
class SShampoo:
    """S-Shampoo (Alg. 3): a matrix of weights, and a sketch for its rows and one for its columns."""

    X: Tensor  # (m, n)
    left: DenseSketch
    right: DenseSketch

    @classmethod
    def start(cls, X: Tensor, rank: int) -> "SShampoo":
        m, n = X.shape
        return cls(X.double(), DenseSketch.empty(m, rank), DenseSketch.empty(n, rank))

    def step(self, G: Tensor, lr: float, beta2: float = 1.0, eps: float = 0.0) -> "SShampoo":
        """Lines 5 and 6; ``eps`` I is what L̃ and R̃ start from (line 2)."""
        G = G.double()
        left = self.left.update(G @ G.T, beta2)
        right = self.right.update(G.T @ G, beta2)
        L_tilde = left.compensated() + eps * torch.eye(len(G), dtype=torch.float64)
        R_tilde = right.compensated() + eps * torch.eye(G.shape[1], dtype=torch.float64)
        step = pseudo_power(L_tilde, -1 / 4) @ G @ pseudo_power(R_tilde, -1 / 4)
        return SShampoo(self.X - lr * step, left, right)

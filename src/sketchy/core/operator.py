"""B Bᵀ + ρ I as an operator: products, real powers, trace and log-determinant.

With B Bᵀ = U diag(λ) Uᵀ, its eigenvalues are λ_i + ρ on the basis and ρ on the d - l directions outside. So
f(B Bᵀ + ρ I) x = f(ρ) x + U ((f(λ + ρ) - f(ρ)) * Uᵀ x). Only ``to_dense`` forms a d x d matrix.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from sketchy.core.sketch import Sketch


@dataclass(frozen=True)
class Compensated:
    """G̃ = U diag(λ) Uᵀ + ρ I of Alg. 2 and Alg. 3: the sketch plus the escaped mass.

    An eigenvalue up to ``threshold`` times the largest counts as zero. The inverse of zero is zero
    (Moore-Penrose, Sec. 4.1). So rounding noise is never inverted.
    """

    basis: Tensor  # U, (..., d, l): orthonormal columns
    eigenvalues: Tensor  # λ, (..., l)
    escaped_mass: Tensor  # ρ, (...)
    threshold: float = 1e-14

    @classmethod
    def of(cls, sketch: Sketch, *, threshold: float = 1e-14) -> "Compensated":
        return cls(sketch.basis, sketch.eigenvalues, sketch.escaped_mass, threshold)

    @property
    def dim(self) -> int:
        return self.basis.shape[-2]

    @property
    def outside(self) -> int:
        """The number of directions outside the basis, d - l. Their eigenvalue is ρ."""
        return self.dim - self.basis.shape[-1]

    def spectrum(self) -> tuple[Tensor, Tensor]:
        """The eigenvalues λ + ρ (..., l) on the basis, and ρ (..., 1) outside, float64. Noise is set to zero.

        The second is zero if there are no directions outside.
        """
        rho = self.escaped_mass.unsqueeze(-1)
        inside = self.eigenvalues + rho
        floor = self.threshold * inside.amax(-1, keepdim=True)
        outside = torch.where(rho > floor, rho, 0.0) if self.outside else torch.zeros_like(rho)
        return torch.where(inside > floor, inside, 0.0), outside

    def apply(self, x: Tensor, power: float = 1.0) -> Tensor:
        """G̃^power x for x (..., d, k), in the dtype of x. Power 0 projects onto the range. O(d l k)."""
        inside, outside = (_power(mu, power).unsqueeze(-1) for mu in self.spectrum())
        U, root = self.basis.to(x), outside.sqrt().to(x)
        # multiplied in float64: the weights may exceed the range of x's dtype, the products do not
        y = ((inside - outside) * (U.mT @ x)).to(x)
        return U @ y + root * (root * x)

    def trace(self) -> Tensor:
        inside, outside = self.spectrum()
        return inside.sum(-1) + self.outside * outside.squeeze(-1)

    def logdet(self) -> Tensor:
        """log det G̃; -inf if G̃ is singular."""
        inside, outside = self.spectrum()
        logs = inside.log().sum(-1)
        return logs + self.outside * outside.squeeze(-1).log() if self.outside else logs

    def to_dense(self, power: float = 1.0) -> Tensor:
        """G̃^power as a (..., d, d) matrix, float64."""
        eye = torch.eye(self.dim, dtype=torch.float64, device=self.basis.device)
        return self.apply(eye.expand(*self.basis.shape[:-2], -1, -1), power)


def _power(mu: Tensor, power: float) -> Tensor:
    """mu^power with 0^power = 0; zeros are replaced by 1 before the power is taken."""
    positive = mu > 0
    return torch.where(positive, torch.where(positive, mu, 1.0) ** power, 0.0)

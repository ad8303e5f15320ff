"""FD-update (Alg. 1) of many sketches, each by one vector, through an l x l eigenproblem.

With U the old basis, x = Uᵀ p + β u splits the new vector into its part in the basis and the rest. On the l
directions (u, U), the matrix B Bᵀ + x xᵀ is diag(0, λ) + v vᵀ with v = (β, p). Its eigenvectors rotate the
directions. The large dimension d appears only in matrix products.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# An eigenvalue up to this share of the largest counts as zero: rounding errors may be that large.
NOISE = 1e-14
# If the part outside the basis is below this share of the part inside, it is orthogonalised again, since its
# relative rounding error along the basis is eps divided by the share.
_SAFE_SHARE = 0.1


@dataclass(frozen=True)
class Folded:
    """A sketch after its update by one vector x, in its l eigenvectors."""

    eigenvectors: Tensor  # (P, l, d): rows
    eigenvalues: Tensor  # z, (P, l): ascending; the smallest is subtracted, so that the first is 0
    escaped: Tensor  # ρ_t, (P, 1): the eigenvalue that was subtracted
    coordinates: Tensor  # (P, l): x in the eigenvectors

    def combine(self, weights: Tensor) -> Tensor:
        """f(sketch) x (P, d), given the eigenvalues (P, l) of f(sketch). O(P l d)."""
        return torch.bmm((self.coordinates * weights).unsqueeze(1), self.eigenvectors).squeeze(1)

    def basis(self) -> Tensor:
        """The eigenvectors (P, l, d) with nonzero eigenvalues, other rows zero. The first row is free."""
        if 0.0 not in self.eigenvalues[:, 1].tolist():  # ascending: if the second is not 0, no later one is
            return self.eigenvectors
        return self.eigenvectors.masked_fill((self.eigenvalues == 0).unsqueeze(-1), 0.0)


def fold_(basis: Tensor, eigenvalues: Tensor, x: Tensor, scale: Tensor | None = None) -> Folded:
    """FD-update (Alg. 1) by the vector scale * x: ``sketch.update`` for rank-one streams.

    ``basis``: (P, l, d), orthonormal or zero rows; the first row is overwritten. ``eigenvalues``: (P, l),
    ascending, zero for zero rows. ``x``: (P, d). ``scale``: (P, 1). If a vector is not finite, only its own
    sketch becomes nan. O(P l d).
    """
    used = basis[:, 1:]
    p = torch.bmm(x.unsqueeze(1), used.mT)  # a row times a matrix runs faster than a matrix times a column
    rest = torch.baddbmm(x.unsqueeze(1), p, used, alpha=-1)
    beta = torch.linalg.vector_norm(rest, dim=-1)
    if bool((beta < _SAFE_SHARE * torch.linalg.vector_norm(p, dim=-1)).any()):
        more = torch.bmm(rest, used.mT)
        rest = torch.baddbmm(rest, more, used, alpha=-1)
        p = p + more
        beta = torch.linalg.vector_norm(rest, dim=-1)
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        nothing = beta <= 16 * torch.finfo(x.dtype).eps * size
        beta, rest = beta.masked_fill(nothing, 0.0), rest.masked_fill(nothing.unsqueeze(-1), 0.0)
    least = torch.finfo(x.dtype).tiny ** 0.5  # below it squares underflow; such a row is not used
    torch.div(rest, beta.clamp(min=least).unsqueeze(-1), out=basis[:, :1])
    p = torch.cat([beta, p.squeeze(1)], 1)
    v = p if scale is None else scale * p

    lam, Q = _eigh(eigenvalues, v)
    escaped = lam[:, :1].clamp(min=0)
    z = lam - escaped
    z.masked_fill_(z <= NOISE * lam[:, -1:], 0.0)
    return Folded(torch.bmm(Q.mT, basis), z, escaped, torch.bmm(p.unsqueeze(1), Q).squeeze(1))


def orthonormal(basis: Tensor) -> Tensor:
    """Make nearly orthonormal rows (P, l, d) orthonormal by a Newton-Schulz step. Zero rows stay zero."""
    return torch.baddbmm(basis, torch.bmm(basis, basis.mT), basis, beta=1.5, alpha=-0.5)


def _eigh(d: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (P, n), ascending, and eigenvectors (P, n, n) of diag(d) + v vᵀ; nan where not finite."""
    S = v.unsqueeze(-1) * v.unsqueeze(-2)
    S.diagonal(dim1=-2, dim2=-1).add_(d)
    if math.isfinite(S.sum().item()):
        lam, Q = torch.linalg.eigh(S.mT, UPLO="U")  # a little faster than "L", and than S copied across
        return lam, Q
    broken = ~S.isfinite().all(-1).all(-1)  # LAPACK raises an error on nan and inf
    lam, Q = torch.linalg.eigh(S.masked_fill(broken.reshape(-1, 1, 1), 0.0), UPLO="U")
    lam[broken], Q[broken] = torch.nan, torch.nan
    return lam, Q

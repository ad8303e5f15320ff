"""FD-update (Alg. 1) by one vector at a time for many sketches at once, through an l x l eigenproblem.

With U the old basis, x = Uᵀ p + β u splits the new vector into what lies in the basis and what doesn't. On
the l directions (u, U), the matrix B Bᵀ + x xᵀ is diag(0, λ) + v vᵀ with v = (β, p): its eigenvectors
rotate the directions, and d appears in matrix products alone.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# An eigenvalue at or below this share of the largest is what rounding may leave of a zero.
NOISE = 1e-14
# A remainder below this share of its vector is orthogonalised again: rounding left in it, of the
# directions it should be free of, eps divided by the share.
_SAFE_SHARE = 0.1


@dataclass(frozen=True)
class Folded:
    """A sketch after one vector x was folded in, on the l directions that hold it."""

    eigenvectors: Tensor  # (P, l, d): rows
    eigenvalues: Tensor  # z, (P, l): ascending, lowered by the smallest, so that the first is 0
    escaped: Tensor  # ρ_t, (P, 1): the smallest
    coordinates: Tensor  # (P, l): of x along the eigenvectors

    def combine(self, weights: Tensor) -> Tensor:
        """f(sketch) x, given the values (P, l) of f on the eigenvectors: (P, d). O(P l d)."""
        return torch.bmm((self.coordinates * weights).unsqueeze(1), self.eigenvectors).squeeze(1)

    def basis(self) -> Tensor:
        """The eigenvectors, the first of them free; zero where another eigenvalue is. (P, l, d)."""
        if 0.0 not in self.eigenvalues[:, 1].tolist():  # they ascend
            return self.eigenvectors
        return self.eigenvectors.masked_fill((self.eigenvalues == 0).unsqueeze(-1), 0.0)


def fold_(basis: Tensor, eigenvalues: Tensor, x: Tensor, scale: Tensor | None = None) -> Folded:
    """FD-update (Alg. 1) by the vector scale * x; what ``sketch.update`` does, for rank-one streams.

    ``basis``: (P, l, d), orthonormal or zero rows; the first is free and is overwritten. ``eigenvalues``:
    (P, l), ascending, zero for zero rows. ``x``: (P, d). ``scale``: (P, 1). A sketch that meets numbers that
    aren't finite becomes nan and leaves the others alone. O(P l d).
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
    least = (
        torch.finfo(x.dtype).tiny ** 0.5
    )  # below it, squares underflow: the row is shorter than 1, and unused
    torch.div(rest, beta.clamp(min=least).unsqueeze(-1), out=basis[:, :1])
    p = torch.cat([beta, p.squeeze(1)], 1)
    v = p if scale is None else scale * p

    lam, Q = _eigh(eigenvalues, v)
    escaped = lam[:, :1].clamp(min=0)
    z = lam - escaped
    z.masked_fill_(z <= NOISE * lam[:, -1:], 0.0)
    return Folded(torch.bmm(Q.mT, basis), z, escaped, torch.bmm(p.unsqueeze(1), Q).squeeze(1))


def orthonormal(basis: Tensor) -> Tensor:
    """Nearly orthonormal rows (P, l, d) made so: a Newton-Schulz step to the polar factor. Zero rows stay."""
    return torch.baddbmm(basis, torch.bmm(basis, basis.mT), basis, beta=1.5, alpha=-0.5)


def _eigh(d: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (P, n), ascending, and eigenvectors (P, n, n) of diag(d) + v vᵀ; nan where not finite."""
    S = v.unsqueeze(-1) * v.unsqueeze(-2)
    S.diagonal(dim1=-2, dim2=-1).add_(d)
    if math.isfinite(S.sum().item()):
        lam, Q = torch.linalg.eigh(S.mT, UPLO="U")  # a little faster than "L", and than S copied across
        return lam, Q
    broken = ~S.isfinite().all(-1).all(-1)  # LAPACK raises on them
    lam, Q = torch.linalg.eigh(S.masked_fill(broken.reshape(-1, 1, 1), 0.0), UPLO="U")
    lam[broken], Q[broken] = torch.nan, torch.nan
    return lam, Q

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
# Problems with v = 0 are left out where no more than this share of the batch has changed.
_WORTH_PICKING = 0.85


@dataclass(frozen=True)
class Folded:
    """A sketch after one vector x was folded in, on the l directions that hold it."""

    directions: Tensor  # (P, l, d): what was new in x, then the old basis
    rotation: Tensor  # Q, (P, l, l): column j is the j-th eigenvector in these directions
    eigenvalues: Tensor  # z, (P, l): ascending, lowered by the smallest, so that the first is 0
    escaped: Tensor  # ρ_t, (P, 1): the smallest
    coordinates: Tensor  # (P, 1, l): of x along the eigenvectors

    def combine(self, weights: Tensor) -> Tensor:
        """f(sketch) x, given the values (P, l) of f on the eigenvectors: (P, d). O(P l d)."""
        along = torch.bmm(self.coordinates * weights.unsqueeze(1), self.rotation.mT)
        return torch.bmm(along, self.directions).squeeze(1)

    def basis(self) -> Tensor:
        """The eigenvectors as rows (P, l, d); zero where the eigenvalue is, the first always. O(P l² d)."""
        return torch.bmm(
            self.rotation.masked_fill((self.eigenvalues == 0).unsqueeze(1), 0.0).mT, self.directions
        )


def fold_(basis: Tensor, eigenvalues: Tensor, x: Tensor, scale: Tensor | None = None) -> Folded:
    """FD-update (Alg. 1) by the vector scale * x; what ``sketch.update`` does, for rank-one streams.

    ``basis``: (P, l, d), orthonormal or zero rows; the first is free and is overwritten. ``eigenvalues``:
    (P, l), ascending, zero for zero rows. ``x``: (P, d). ``scale``: (P, 1). A sketch that meets numbers that
    aren't finite becomes nan and leaves the others alone. O(P l d).
    """
    p = torch.bmm(basis, x.unsqueeze(-1))
    rest = torch.baddbmm(x.unsqueeze(1), p.mT, basis, alpha=-1)
    p = p.squeeze(-1)
    beta = torch.linalg.vector_norm(rest, dim=-1)
    if bool((beta < _SAFE_SHARE * torch.linalg.vector_norm(p, dim=-1, keepdim=True)).any()):
        more = torch.bmm(basis, rest.mT)
        rest = torch.baddbmm(rest, more.mT, basis, alpha=-1)
        p = p + more.squeeze(-1)
        beta = torch.linalg.vector_norm(rest, dim=-1)
        size = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        nothing = beta <= 16 * torch.finfo(x.dtype).eps * size
        beta, rest = beta.masked_fill(nothing, 0.0), rest.masked_fill(nothing.unsqueeze(-1), 0.0)
    torch.div(
        rest, beta.clamp(min=torch.finfo(x.dtype).tiny).unsqueeze(-1), out=basis[:, :1]
    )  # 0 / 0 is 0 here
    p[:, :1] = beta
    v = p if scale is None else scale * p

    lam, Q = _eigh(eigenvalues, v)
    escaped = lam[:, :1].clamp(min=0)
    z = lam - escaped
    z.masked_fill_(z <= NOISE * lam[:, -1:], 0.0)
    return Folded(basis, Q, z, escaped, torch.bmm(p.unsqueeze(1), Q))


def orthonormal(basis: Tensor) -> Tensor:
    """Nearly orthonormal rows (P, l, d) made so: a Newton-Schulz step to the polar factor. Zero rows stay."""
    return torch.baddbmm(basis, torch.bmm(basis, basis.mT), basis, beta=1.5, alpha=-0.5)


def _eigh(d: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (P, n), ascending, and eigenvectors (P, n, n) of diag(d) + v vᵀ; nan where not finite.

    LAPACK takes one matrix at a time, and raises on nan: it's given those that need it.
    """
    S = v.unsqueeze(-1) * v.unsqueeze(-2)
    S.diagonal(dim1=-2, dim2=-1).add_(d)
    moved = v.any(-1)
    if math.isfinite(S.sum().item()) and int(moved.sum()) > _WORTH_PICKING * len(v):
        lam, Q = torch.linalg.eigh(S, UPLO="U")  # a little faster than "L"
        return lam, Q
    broken = ~S.isfinite().all(-1).all(-1)
    lam, Q = d.clone(), torch.eye(v.shape[-1], dtype=v.dtype, device=v.device).repeat(len(v), 1, 1)
    chosen = (moved & ~broken).nonzero().squeeze(-1)
    lam[chosen], Q[chosen] = torch.linalg.eigh(S[chosen])
    lam[broken], Q[broken] = torch.nan, torch.nan
    return lam, Q

"""The eigenvectors of diag(d) + v vᵀ for many small problems at once, from the secular equation.

The eigenvalues are the roots of f(λ) = 1 + Σ_i v_i² / (d_i - λ): one in each gap between neighbours of
d and one above. LAPACK's eigenvalues are roots to eps times the largest; a Newton step or two make
each accurate relative to its distance from the poles, and the formula of Gu and Eisenstat then
gives vectors that are orthonormal to working precision, however close the roots. This is more
accurate than LAPACK's eigenvectors of the formed matrix, and faster: the steps are elementwise
operations on all problems together.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

_MOST_STEPS = 8


# A remainder shorter than this share of its vector is orthogonalised again: rounding left in it the
# inverse of the share times eps of the directions it should be free of.
_SAFE_SHARE = 0.1
# What rounding leaves of a zero, relative to the largest, in units of eps.
_NOISE = 16.0


@dataclass(frozen=True)
class Folded:
    """A sketch after one FD-update (Alg. 1) by one vector, in the coordinates of the l directions it had to hold."""

    directions: Tensor  # (P, l, d): the part of the vector that was new, then the old basis
    rotation: Tensor  # Q, (P, l, l): row j holds the j-th eigenvector in these directions
    eigenvalues: Tensor  # z, (P, l): ascending, lowered by the smallest, hence the first is 0
    escaped: Tensor  # ρ_t, (P, 1): the smallest, which was taken off
    coordinates: Tensor  # (P, l): of the vector along the eigenvectors

    def combine(self, weights: Tensor) -> Tensor:
        """f(sketch) x for the vector x, given f's values (P, l) on the eigenvectors: (P, d). O(P l d)."""
        along = (weights * self.coordinates).unsqueeze(1) @ self.rotation
        return torch.bmm(along, self.directions).squeeze(1)

    def basis(self) -> Tensor:
        """The eigenvectors as rows (P, l, d), zero where there is no mass, the first always."""
        live = self.eigenvalues > (_NOISE * torch.finfo(self.eigenvalues.dtype).eps) ** 2 * self.eigenvalues[:, -1:]
        return torch.bmm(self.rotation * live.to(self.rotation).unsqueeze(-1), self.directions)


def fold_(basis: Tensor, eigenvalues: Tensor, x: Tensor, scale: Tensor | None = None) -> Folded:
    """FD-update (Alg. 1) by one vector, scale * x: the plain ``sketch.update`` at the cost of an l x l problem.

    ``basis``: (P, l, d), orthonormal or zero rows, the first zero: it's overwritten. ``eigenvalues``: (P, l),
    ascending, zero for the zero rows. ``x``: (P, d). ``scale``: (P, 1). O(P l d).
    """
    eps = torch.finfo(x.dtype).eps
    along = torch.bmm(basis, x.unsqueeze(-1)).squeeze(-1)
    rest = torch.baddbmm(x.unsqueeze(1), along.unsqueeze(1), basis, alpha=-1).squeeze(1)
    size = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    left = torch.linalg.vector_norm(rest, dim=-1, keepdim=True)
    if bool((left < _SAFE_SHARE * size).any()):
        more = torch.bmm(basis, rest.unsqueeze(-1)).squeeze(-1)
        rest = torch.baddbmm(rest.unsqueeze(1), more.unsqueeze(1), basis, alpha=-1).squeeze(1)
        along = along + more
        left = torch.linalg.vector_norm(rest, dim=-1, keepdim=True)
        left = torch.where(left <= _NOISE * eps * size, 0.0, left)
    torch.div(rest, torch.where(left == 0, torch.inf, left), out=basis[:, 0])
    along[:, :1] = left
    scaled = along if scale is None else scale * along
    lam, Q = eigh_rank_one(eigenvalues, scaled)
    escaped = lam[:, :1].clone()
    coordinates = torch.bmm(Q, along.unsqueeze(-1)).squeeze(-1)
    return Folded(basis, Q, lam - escaped, escaped, coordinates)


def orthonormal(basis: Tensor) -> Tensor:
    """Nearly orthonormal rows (P, l, d) made so: one Newton-Schulz step to the polar factor; zero rows stay."""
    return torch.baddbmm(basis, torch.bmm(basis, basis.mT), basis, beta=1.5, alpha=-0.5)


def eigh_rank_one(d: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (P, n), ascending, and eigenvectors (P, n, n), one per ROW, of diag(d) + v vᵀ.

    ``d``: (P, n), ascending, not negative; ``v``: (P, n). Where v is zero, nothing changes. Problems with
    repeated d or a vanishing v_i, which the secular equation can't take, go through
    :func:`eigh_rank_one_by_svd`; non-finite ones come back as nan. O(P n³), most of it in LAPACK.
    """
    n = d.shape[-1]
    if n == 1:
        return d + v.square(), torch.ones_like(v).unsqueeze(-1)
    S = d.diag_embed() + v.unsqueeze(-1) * v.unsqueeze(-2)
    usable = S.sum((-2, -1)).isfinite() & (v != 0).all(-1) & (d[:, 1:] > d[:, :-1]).all(-1)
    if bool(usable.all()):
        lam, Q, trusted = _polish(d, v, torch.linalg.eigvalsh(S), usable)
    else:
        safe = torch.where(usable.reshape(-1, 1, 1), S, 0.0)
        lam, Q, trusted = _polish(d, v, torch.linalg.eigvalsh(safe), usable)
    if not bool(trusted.all()):
        rest = (~trusted).nonzero().squeeze(-1)
        lam[rest], Q[rest] = eigh_rank_one_by_svd(d[rest], v[rest])
    return lam, Q


def eigh_rank_one_by_svd(d: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The plain form of :func:`eigh_rank_one`: the SVD of the factor [diag(√d), v]."""
    finite = (d.isfinite() & v.isfinite()).all(-1)
    lam, Q = d.clone(), torch.eye(d.shape[-1], dtype=d.dtype, device=d.device).repeat(len(d), 1, 1)
    lam[~finite], Q[~finite] = torch.nan, torch.nan
    moved = (finite & (v != 0).any(-1)).nonzero().squeeze(-1)
    if len(moved):
        factor = torch.cat([d[moved].sqrt().diag_embed(), v[moved].unsqueeze(-1)], -1)
        U, sigma, _ = torch.linalg.svd(factor, full_matrices=False)
        lam[moved], Q[moved] = sigma.flip(-1).square(), U.flip(-1).mT
    return lam, Q


def _polish(d: Tensor, v: Tensor, guess: Tensor, usable: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """λ (P, n), Q (P, n, n) and where they can be trusted (P,), from a guess of λ; the loop
    doesn't wait for those not ``usable``.

    Inside, tensors are (i, j, P) or (j, P), for pole i and root j of problem P.
    """
    eps = torch.finfo(d.dtype).eps
    d, v, guess = d.mT.contiguous(), v.mT.contiguous(), guess.mT.contiguous()
    following = torch.nn.functional.pad(d[1:], (0, 0, 0, 1), value=torch.inf)
    before, after = guess - d, following - guess
    lower = before < after  # the nearer pole is the origin of root j, tau the way from there
    origin = torch.where(lower, d, following)
    tau = torch.where(lower, before.clamp_(min=0), after.clamp_(min=0).neg_())
    sign = lower.to(d.dtype).mul_(2).sub_(1)
    tau = tau + sign * (eps**2 * guess[-1])  # off the pole

    Z, D = v.square().unsqueeze(1), d.unsqueeze(1) - origin
    for _ in range(_MOST_STEPS):
        delta = D - tau
        w = Z / delta
        f = w.sum(0).add_(1)
        t = w.div_(delta).sum(0).mul_(tau)  # tau f'
        ratio = t / (f + t)
        tau = tau * ratio  # Newton's step for tau f(tau), which is smooth where f has its nearer pole
        settled = ((ratio - 1).abs_() <= 8 * eps**0.5).all(0)  # the error squares in each step
        if bool((settled | ~usable).all()):
            break
    delta = D - tau

    # v̂_i² = Π_j (λ_j - d_i) / Π_{j≠i} (d_j - d_i)
    n = len(d)
    apart = d.unsqueeze(1) - d + torch.eye(n, dtype=d.dtype, device=d.device).unsqueeze(-1)
    v_hat = torch.copysign((delta.prod(1) / apart.prod(1)).abs_().sqrt_(), v)
    Q = v_hat.unsqueeze(1) / delta
    length = (Q * Q).sum(0)
    Q = (Q * length.rsqrt()).permute(2, 1, 0).contiguous()
    inside = (tau * sign > 0).all(0)  # false for nan too
    return (origin + tau).mT.contiguous(), Q, usable & settled & inside & length.sum(0).isfinite()

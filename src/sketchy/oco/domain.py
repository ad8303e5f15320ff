"""The decision set K, and projection onto it in a norm: argmin over x in K of (x - y)ᵀ S (x - y).

S becomes a d x d matrix only if it is given as one.

Zero curvature. In directions without a gradient so far, S is zero (its inverse is a pseudo-inverse), and the
argmin is a set of points. Such directions are given 1e-9 of the largest curvature: the point moves along them
only as far as this lowers the distance in the other directions. As that number goes to 0, the limit is the
minimiser nearest to y. It belongs to the argmin, so the theorems hold for it.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from sketchy.oco.norm import Dense, Diagonal, LowRank, Norm

_LEAST_CURVATURE = 1e-9
_MOST_STEPS = 100
_MOST_HALVINGS = 60


class Domain(ABC):
    """A closed convex set K. Points are rows (P, d)."""

    def project(self, y: Tensor, norm: Norm | None) -> Tensor:
        """The point of K nearest to each row of y in ``norm`` (None: Euclidean). Rows with nan stay nan."""
        whole = y.isfinite().all(-1, keepdim=True)
        if isinstance(norm, Diagonal):
            whole &= norm.s.isfinite().all(-1, keepdim=True)
        elif norm is not None:
            S = norm.S.flatten(1) if isinstance(norm, Dense) else norm.inside + norm.outside
            whole &= S.isfinite().all(-1, keepdim=True)
        if not bool(whole.all()):
            x = torch.full_like(y, torch.nan)
            rows = whole.squeeze(-1)
            if bool(rows.any()):
                x[rows] = self.project(y[rows], None if norm is None else norm.rows(rows))
            return x
        if norm is None:
            return self._nearest(y)
        if isinstance(norm, Diagonal):
            return self._nearest_diagonal(y, _raised(norm.s.expand_as(y)))
        if isinstance(norm, Dense):
            lam, V = torch.linalg.eigh(norm.S)
            norm = LowRank(V.mT, lam, lam[:, :1])
        curvature = _raised(torch.cat([_outside(norm), norm.inside], -1))
        return self._nearest_low_rank(y, norm.basis, curvature[:, 1:], curvature[:, :1])

    @abstractmethod
    def contains(self, x: Tensor, tolerance: float = 1e-9) -> Tensor:
        """Whether each row of x (P, d) is in K: (P,)."""

    @abstractmethod
    def least(self, g: Tensor) -> Tensor:
        """A point x of K (d,) that minimises g.x, for g (d,)."""

    @abstractmethod
    def diameter(self, dim: int) -> float:
        """The largest Euclidean distance between two points of K in ``dim`` dimensions."""

    @abstractmethod
    def _nearest(self, y: Tensor) -> Tensor:
        """Projection in the Euclidean norm."""

    @abstractmethod
    def _nearest_diagonal(self, y: Tensor, s: Tensor) -> Tensor:
        """Projection for S = diag(s), s > 0 (P, d)."""

    @abstractmethod
    def _nearest_low_rank(self, y: Tensor, U: Tensor, a: Tensor, c: Tensor) -> Tensor:
        """Projection for S = c I + Uᵀ diag(a - c) U, a >= c > 0. U (P, l, d) has orthonormal or zero rows."""


class Everything(Domain):
    """K is the whole space."""

    def project(self, y: Tensor, norm: Norm | None) -> Tensor:
        return y

    def contains(self, x: Tensor, tolerance: float = 1e-9) -> Tensor:
        return x.isfinite().all(-1)

    def least(self, g: Tensor) -> Tensor:
        if bool((g == 0).all()):
            return torch.zeros_like(g)
        raise ValueError("a linear loss has no minimum on the whole space: give a bounded domain")

    def diameter(self, dim: int) -> float:
        return float("inf")

    def _nearest(self, y: Tensor) -> Tensor:
        return y

    def _nearest_diagonal(self, y: Tensor, s: Tensor) -> Tensor:
        return y

    def _nearest_low_rank(self, y: Tensor, U: Tensor, a: Tensor, c: Tensor) -> Tensor:
        return y


class Ball(Domain):
    """{x : ‖x‖₂ <= radius}."""

    def __init__(self, radius: float = 1.0) -> None:
        if not radius > 0:
            raise ValueError(f"radius={radius}: must be positive")
        self.radius = radius

    def contains(self, x: Tensor, tolerance: float = 1e-9) -> Tensor:
        return torch.linalg.vector_norm(x, dim=-1) <= self.radius * (1 + tolerance)

    def least(self, g: Tensor) -> Tensor:
        return -self.radius * g / torch.linalg.vector_norm(g).clamp(min=torch.finfo(g.dtype).tiny)

    def diameter(self, dim: int) -> float:
        return 2 * self.radius

    def _nearest(self, y: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(y, dim=-1, keepdim=True)
        return torch.where(length > self.radius, self.radius / length * y, y)

    def _nearest_diagonal(self, y: Tensor, s: Tensor) -> Tensor:
        return self._shrink(s, y) * y

    def _nearest_low_rank(self, y: Tensor, U: Tensor, a: Tensor, c: Tensor) -> Tensor:
        inside = (U @ y.unsqueeze(-1)).squeeze(-1)
        rest = y - (inside.unsqueeze(1) @ U).squeeze(1)
        length = torch.linalg.vector_norm(rest, dim=-1, keepdim=True)
        shrink = self._shrink(torch.cat([c, a], -1), torch.cat([length, inside], -1))
        return shrink[:, :1] * rest + ((shrink[:, 1:] * inside).unsqueeze(1) @ U).squeeze(1)

    def _shrink(self, s: Tensor, y: Tensor) -> Tensor:
        """s / (s + μ), with the least μ >= 0 for which (s y) / (s + μ) is no longer than the radius.

        Newton's method on 1 / length as a function of μ. It is nearly linear, and concave, so that μ
        converges from below.
        """
        mu = torch.zeros_like(s[:, :1])
        for _ in range(_MOST_STEPS):
            weight = s / (s + mu)
            x = weight * y
            length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
            fall = (x.square() / (s + mu)).sum(-1, keepdim=True) / length.clamp(min=torch.finfo(s.dtype).tiny)
            over = length / self.radius - 1
            if not bool((over > 64 * torch.finfo(s.dtype).eps).any()):
                break
            mu = mu + torch.where(over > 0, over * length / fall, 0.0)
        return weight * (self.radius / length).clamp(max=1)


class Polyhedron(Domain):
    """A set with flat faces: ``_nearest`` is piecewise linear."""

    @abstractmethod
    def _slope(self, y: Tensor, x: Tensor, W: Tensor) -> Tensor:
        """The derivative of ``_nearest`` at y, applied to the rows W (P, l, d); x is ``_nearest(y)``."""

    def _nearest_low_rank(self, y: Tensor, U: Tensor, a: Tensor, c: Tensor) -> Tensor:
        """Projection for S = c I + Uᵀ diag(a - c) U, a >= c, by Newton's method on the dual in l coordinates.

        With k = (a - c) / c, the dual is the minimum over u of Φ(u) = Σ u²/(2k) + e(y - Uᵀ u) + u.Uy, where
        e(w) = (‖w‖² - ‖w - nearest(w)‖²)/2 has the gradient nearest(w). Φ is convex and piecewise quadratic.
        Its minimiser u gives x = nearest(y - Uᵀ u). Cost per step: O(l² d).
        """
        k = (a - c) / c
        u = torch.zeros_like(a)
        for most in (1e2, 1e4, 1e6, torch.inf):  # start from the solution of a better conditioned problem
            x, u = self._solve_dual(y, U, k.clamp(max=most), u)
            if bool((k <= most).all()):
                break
        return x

    def _solve_dual(self, y: Tensor, U: Tensor, k: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
        own, shared = 1 / (1 + k), k / (1 + k)  # equations divided by 1 + k: no coefficient is large
        over_k = torch.where(k > 0, 1 / k, 0.0)

        def at(u: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
            w = y - (u.unsqueeze(1) @ U).squeeze(1)
            x = self._nearest(w)
            F = own * u - shared * ((x - y).unsqueeze(1) @ U.mT).squeeze(1)
            value = (over_k * u.square()).sum(-1, keepdim=True)
            value = value + (x * (2 * w - x) + 2 * (y - w) * y).sum(-1, keepdim=True)
            return w, x, F, value / 2

        w, x, F, value = at(u)
        before = torch.full_like(y[:, :1], torch.inf)
        for _ in range(_MOST_STEPS):
            largest = y.abs().amax(-1, keepdim=True) + x.abs().amax(-1, keepdim=True)
            size = F.abs().amax(-1, keepdim=True)
            stuck = (size <= 1e-11 * largest) & (size >= before / 2)  # only rounding errors are left
            unsolved = (size > 1e-15 * largest) & ~stuck
            before = size
            if not bool(unsolved.any()):
                break
            inner = self._slope(w, x, U) @ U.mT
            J = own.diag_embed() + shared.unsqueeze(-1) * inner
            move = torch.linalg.solve(J, F.unsqueeze(-1)).squeeze(-1)
            gain = (move * (over_k * move + (inner @ move.unsqueeze(-1)).squeeze(-1))).sum(-1, keepdim=True)
            step = unsolved.to(y)
            for _ in range(_MOST_HALVINGS):
                _, _, F_new, new = at(u - step * move)
                # near the solution, rounding hides the decrease of the value: look at the equations instead
                better = (size <= 1e-9 * largest) & (F_new.abs().amax(-1, keepdim=True) <= size / 2)
                worse = unsolved & ~better & (new > value - 1e-4 * step * gain + 1e-15 * value.abs())
                if not bool(worse.any()):
                    break
                step = torch.where(worse, step / 2, step)
            if bool(((step * move).abs() <= 1e-16 * (largest + u.abs())).all()):
                break
            u = u - step * move
            w, x, F, value = at(u)
        return x, u


class Box(Polyhedron):
    """{x : low <= x_i <= high}; low and high are numbers or (d,) tensors."""

    def __init__(self, low: float | Tensor = -1.0, high: float | Tensor = 1.0) -> None:
        self.low = torch.as_tensor(low, dtype=torch.float64)
        self.high = torch.as_tensor(high, dtype=torch.float64)
        if not bool((self.low < self.high).all()):
            raise ValueError(f"low={low}, high={high}: low must be below high")

    def contains(self, x: Tensor, tolerance: float = 1e-9) -> Tensor:
        return ((x >= self.low - tolerance) & (x <= self.high + tolerance)).all(-1)

    def least(self, g: Tensor) -> Tensor:
        return torch.where(g > 0, self.low.to(g), torch.where(g < 0, self.high.to(g), self._nearest(0 * g)))

    def diameter(self, dim: int) -> float:
        return float(torch.linalg.vector_norm((self.high - self.low).double().expand(dim)))

    def _nearest(self, y: Tensor) -> Tensor:
        return torch.minimum(torch.maximum(y, self.low.to(y)), self.high.to(y))

    def _slope(self, y: Tensor, x: Tensor, W: Tensor) -> Tensor:
        return W * (x == y).to(W).unsqueeze(1)

    def _nearest_diagonal(self, y: Tensor, s: Tensor) -> Tensor:
        return self._nearest(y)


class Simplex(Polyhedron):
    """{x : x_i >= 0, Σ x_i = total}."""

    def __init__(self, total: float = 1.0) -> None:
        if not total > 0:
            raise ValueError(f"total={total}: must be positive")
        self.total = total

    def contains(self, x: Tensor, tolerance: float = 1e-9) -> Tensor:
        return (x >= -tolerance).all(-1) & ((x.sum(-1) - self.total).abs() <= tolerance * self.total)

    def least(self, g: Tensor) -> Tensor:
        return self.total * torch.nn.functional.one_hot(g.argmin(), len(g)).to(g)

    def diameter(self, dim: int) -> float:
        return self.total * 2**0.5 if dim > 1 else 0.0

    def _nearest(self, y: Tensor) -> Tensor:
        return self._nearest_diagonal(y, torch.ones_like(y))

    def _slope(self, y: Tensor, x: Tensor, W: Tensor) -> Tensor:
        free = (x > 0).to(W).unsqueeze(1)
        W = W * free
        return W - free * (W.sum(-1, keepdim=True) / free.sum(-1, keepdim=True))

    def _nearest_diagonal(self, y: Tensor, s: Tensor) -> Tensor:
        """x_i = max(0, y_i - θ / s_i), with the θ that makes the sum ``total``.

        Coordinate i is positive if θ < s_i y_i. So the positive ones come first in descending order of s_i
        y_i.
        """
        order = (s * y).argsort(-1, descending=True)
        edge, value, width = ((t.gather(-1, order)) for t in (s * y, y, 1 / s))
        theta = (value.cumsum(-1) - self.total) / width.cumsum(-1)
        last = ((edge > theta).sum(-1, keepdim=True) - 1).clamp(min=0)
        x = (y - theta.gather(-1, last) / s).clamp(min=0)
        return x * (self.total / x.sum(-1, keepdim=True))


def _outside(norm: LowRank) -> Tensor:
    """The curvature outside the basis. If the basis spans everything, the least curvature inside.

    The outside does not matter then, and this choice keeps the problem well-conditioned.
    """
    used = norm.basis.square().sum(-1) > 0.5
    whole = used.sum(-1, keepdim=True) == norm.basis.shape[-1]
    least = norm.inside.masked_fill(~used, torch.inf).amin(-1, keepdim=True)
    return torch.where(whole, least, norm.outside)


def _raised(curvature: Tensor) -> Tensor:
    """Curvatures (P, n) divided by the largest (if that is not zero), and then raised to at least 1e-9."""
    largest = curvature.amax(-1, keepdim=True)
    largest = torch.where(largest > 0, largest, 1.0)
    return torch.maximum(curvature / largest, torch.full_like(largest, _LEAST_CURVATURE))

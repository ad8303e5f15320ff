"""The best fixed point under the hinge loss, argmin over x in K of Σ_t max(0, 1 - m_t.x), with a certificate.

Any weights 0 <= α_t <= 1 give a lower bound, since max(0, u) >= α u:

    Σ max(0, 1 - m_t.x) >= Σ α_t - max over x in K of (Σ α_t m_t).x.

Both solvers return a point and weights. The point is accepted if its sum of losses exceeds the lower bound by
at most 1e-6 of that sum plus 1e-9 for each round. In directions where K is unbounded, the maximum is taken
over points up to ten times as large as the one found: there Σ α_t m_t is zero up to rounding, and the
rounding error times an unbounded x would be infinite.
"""

import torch
from torch import Tensor

from sketchy.extras import missing
from sketchy.oco.domain import Ball, Box, Domain, Everything, Simplex

_RELATIVE_GAP, _GAP_PER_ROUND = 1e-6, 1e-9


def best_for_hinge(margins: Tensor, domain: Domain) -> Tensor:
    """A best x of K (d,) for the ``margins`` m_t (T, d), label times example, in float64.

    On a ball: tens of Newton steps, each of O(T d² + d³) time. On other domains: a linear program in d + T
    unknowns, which needs SciPy.
    """
    if isinstance(domain, Ball):
        x, weights = _in_ball(margins, domain)
    elif isinstance(domain, Everything | Box | Simplex):
        x, weights = _linear_program(margins, domain)
    else:
        raise ValueError(f"domain={domain}: for the hinge loss it must be Everything, Ball, Box or Simplex")
    gap = _gap(margins, x, weights, domain)
    if not gap <= _accepted(margins, x):
        raise ValueError(
            f"the least sum of hinge losses is known only to {gap:.1e}: must be {_accepted(margins, x):.1e} "
            "(scale the features to a similar size, or give a smaller domain)"
        )
    return x


def _suffered(margins: Tensor, x: Tensor) -> Tensor:
    return (1 - margins @ x).clamp(min=0).sum()


def _accepted(margins: Tensor, x: Tensor) -> Tensor:
    return _RELATIVE_GAP * _suffered(margins, x) + _GAP_PER_ROUND * len(margins)


def _gap(margins: Tensor, x: Tensor, weights: Tensor, domain: Domain) -> Tensor:
    """An upper bound on how much lower the sum of losses can be at another point of K than at x."""
    pull = margins.T @ weights
    bounded: Domain = domain
    if isinstance(domain, Everything | Box):
        unit = 1 / margins.abs().amax().clamp(min=1e-300)  # below this size, a point has losses near 1
        bounded = _as_box(domain, x, end=10 * float(x.abs().amax() + unit))
    bound = weights.sum() - pull @ bounded.least(-pull)
    return _suffered(margins, x) - bound.clamp(min=0)


def _as_box(domain: Everything | Box, x: Tensor, end: float) -> Box:
    """The domain as a box, with infinite ends replaced by ±``end``."""
    box = domain if isinstance(domain, Box) else Box(-torch.inf, torch.inf)
    return Box(box.low.expand_as(x).nan_to_num(neginf=-end), box.high.expand_as(x).nan_to_num(posinf=end))


def _linear_program(margins: Tensor, domain: Everything | Box | Simplex) -> tuple[Tensor, Tensor]:
    """Minimise Σ ξ_t under ξ_t >= 0, ξ_t >= 1 - m_t.x, x in K: the point x, and the multipliers α_t."""
    try:
        import numpy as np
        from scipy import optimize, sparse
    except ImportError as error:
        raise ImportError(missing(error.name or "scipy", "oco"), name=error.name) from error
    T, d = margins.shape
    size, low, high, sums = np.ones(d), np.full(d, -np.inf), np.full(d, np.inf), {}
    if isinstance(domain, Simplex):
        low, sums = np.zeros(d), {"A_eq": np.repeat([1.0, 0.0], [d, T])[None], "b_eq": [domain.total]}
    else:
        size = margins.abs().amax(0).numpy(force=True)  # the solver treats small coefficients as zeros
        size[size == 0] = 1
    if isinstance(domain, Box):
        low, high = (size * end.expand(d).numpy(force=True) for end in (domain.low, domain.high))
    found = optimize.linprog(
        np.repeat([0.0, 1.0], [d, T]),
        A_ub=sparse.hstack(
            [sparse.csr_array(-margins.numpy(force=True) / size), -sparse.eye_array(T)], format="csr"
        ),
        b_ub=-np.ones(T),
        bounds=np.stack([np.append(low, np.zeros(T)), np.append(high, np.full(T, np.inf))], 1),
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
        **sums,
    )
    if found.x is None:
        raise ValueError(f"no best point found for the hinge loss: {found.message}")
    x = domain.project(margins.new_tensor(found.x[:d] / size).unsqueeze(0), None)[0]
    return x, margins.new_tensor(-found.ineqlin.marginals).clamp(0, 1)


def _in_ball(margins: Tensor, ball: Ball, most_steps: int = 300) -> tuple[Tensor, Tensor]:
    """Newton's method on the linear program's logarithmic barrier, for decreasing τ. Steps stay in the ball.

    With u = 1 - m.x, the minimum over ξ of ξ - τ log ξ - τ log(ξ - u) is at ξ = τ/β, ξ - u = τ/α, α + β = 1.
    It is a smooth hinge in u, with slope α and curvature α²β² / (τ (α² + β²)).
    """
    _, singular, basis = torch.linalg.svd(margins, full_matrices=False)
    basis = basis[singular > 1e-12 * singular[0]]  # the best point has no part outside of its span
    margins = margins @ basis.T
    x, tau = margins.new_zeros(len(basis)), 1.0

    def smooth(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The objective up to a constant, and α, β."""
        u = 1 - margins @ x
        root = (u.square() + 4 * tau**2).sqrt()
        ratio = torch.where(u > 0, (root + u) / (2 * tau), 2 * tau / (root - u))  # α / β
        alpha, beta = ratio / (1 + ratio), 1 / (1 + ratio)
        return tau * (1 / beta + beta.log() + alpha.log()).sum(), alpha, beta

    for _ in range(most_steps):
        value, alpha, beta = smooth(x)
        g = -margins.T @ alpha
        bend = (alpha * beta).square() / (tau * (alpha.square() + beta.square()))
        H = margins.T @ (bend.unsqueeze(-1) * margins)
        lam, V = torch.linalg.eigh(H)
        lam = lam.clamp(min=1e-15 * float(H.trace()))
        newton, here = -(V.T @ g) / lam, V.T @ x
        kept = ball._shrink(lam.unsqueeze(0), (here + newton).unsqueeze(0))[0]
        move = V @ (kept * newton - (1 - kept) * here)
        # the weights at the end of the move, to first order: they prove a small gap much earlier than α does
        weights = (alpha - bend * (margins @ move)).clamp(0, 1)
        if _gap(margins, x, weights, ball) <= _accepted(margins, x):
            break
        step = 1.0
        while step > 1e-12 and not smooth(x + step * move)[0] <= value + 0.1 * step * (g @ move):
            step /= 2
        if step > 1e-12:
            x = x + step * move
        if move @ H @ move <= tau or step <= 1e-12:
            tau /= 5
    return x @ basis, weights

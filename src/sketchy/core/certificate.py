"""The certificate: how far B Bᵀ can be from the covariance C, in the operator norm.

One update of the exact solver loses the cut c, which its escaped mass counts. The subspace solver loses
D = C' - Z diag(kept) Zᵀ ⪰ 0, whose norm is bounded by its trace and, with random probes, by products with it.
Both add an allowance for rounding. Past losses are discounted with the covariance (Obs. 6).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# What rounding adds to the error of one update, relative to ‖C'‖ and in units of eps. LAPACK's own SVD
# is off by some twenty eps; for float32 it runs in float64. The subspace solver's long sums add the
# root of their length, in float32 even where products round their factors to fewer digits.
_ROUNDING = {torch.float32: 8.0, torch.float64: 40.0}
# What rounding adds to the trace of D, relative to tr C' and in units of eps.
_TRACE_ROUNDING = 10.0

# Of float32 products, by torch's names for what they may be rounded to: TF32, bfloat16.
_COARSE = dict.fromkeys(("tf32", "high"), 2.0**-10) | dict.fromkeys(("bf16", "medium"), 2.0**-7)

# Two products with 16 probes bound a flat spectrum of 1000 directions to 2.5 times its norm; three
# to 1.6 times, at 5 % of an update's time.
_CHEBYSHEV_DEGREE = 2


def rounding(A: Tensor, *, traced: bool) -> tuple[float, ...]:
    """What rounding may add in one update with A (..., d, k): over ‖C'‖ and, for traces, over tr C'."""
    eps, coarse = torch.finfo(A.dtype).eps, product_eps(A)
    if not traced:
        return (_ROUNDING[A.dtype] * coarse,)
    return (
        _ROUNDING[A.dtype] * coarse + max(A.shape[-2:]) ** 0.5 * eps,
        _TRACE_ROUNDING * coarse + A.shape[-1] ** 0.5 * eps,  # the latter of the sums of k squares
    )


def loss(
    mass: Tensor, top: Tensor, kept: Tensor, escaped: Tensor, rounding: Sequence[float | Tensor]
) -> Tensor:
    """What one update adds to the error bound (...): ‖D‖ at most, from its trace, and rounding.

    ``mass``: tr C' (...). ``top``: √‖C'‖ (...). ``kept``: (..., l). ``escaped``: c² (...). ``rounding``: see
    there.
    """
    lost = escaped if len(rounding) == 1 else _traced(_trace(mass, kept, rounding[1]), kept, escaped)
    return lost + top.square() * rounding[0]


def probed_loss(
    D: "Residual",
    norm: Tensor,
    sigma: Tensor,
    rounding: Sequence[float],
    probes: Tensor,
    failure_probability: float,
) -> Tensor:
    """`loss` from random probes: sharper. ``norm``: ‖A‖ (...). ``sigma``: (..., l), of C'^(1/2)."""
    mass, escaped = D.lam.sum(-1) + norm.square(), sigma[..., -1].square()
    trace = _trace(mass, D.kept, rounding[1])
    width = torch.maximum(
        escaped, torch.maximum(trace / probes.shape[-1], torch.finfo(probes.dtype).eps * mass)
    )
    return norm_bound(D.apply, probes, width, failure_probability) + sigma[..., 0].square() * rounding[0]


def _trace(mass: Tensor, kept: Tensor, rounding: float | Tensor) -> Tensor:
    """tr D = tr C' - Σ kept, at most."""
    return (mass - kept.sum(-1)).clamp_(min=0) + mass * rounding


def _traced(trace: Tensor, kept: Tensor, escaped: Tensor) -> Tensor:
    """‖D‖, at most: D is c² on l directions, which counts once in the norm, and a positive rest."""
    return torch.maximum(escaped, torch.sub(trace, escaped, alpha=kept.shape[-1] - 1))


@dataclass(frozen=True)
class Residual:
    """D = U diag(λ) Uᵀ + A Aᵀ - Z diag(kept) Zᵀ ⪰ 0: what one subspace update loses, never formed."""

    U: Tensor
    lam: Tensor
    A: Tensor
    Z: Tensor
    kept: Tensor

    def apply(self, X: Tensor) -> Tensor:
        """X D for rows X (..., r, d)."""
        lam, kept = (values.to(X).unsqueeze(-2) for values in (self.lam, self.kept))
        # products with few columns run faster from the left, those with few rows from the right
        columns = self.A @ (X @ self.A).mT
        columns = columns + self.U @ (X @ self.U * lam).mT - self.Z @ (X @ self.Z * kept).mT
        return columns.mT.contiguous()


def norm_bound(
    apply: Callable[[Tensor], Tensor], probes: Tensor, width: Tensor, failure_probability: float
) -> Tensor:
    """An upper bound on the norm of a symmetric operator D, (...), float64, from Gaussian probes.

    ``apply`` maps rows X (..., r, d) to X D. ``probes`` is Gaussian (r, d), independent of D. ``width`` (...)
    is a guess of the norm from below: the bound is valid for any positive width, and tight when most of the
    spectrum lies in [0, width].

    With T_q the Chebyshev polynomial on [0, width] and v an eigenvector of D to the eigenvalue mu
    of largest |T_q|, W T_q(D) v = T_q(mu) W v, so that ‖W T_q(D)‖ >= |T_q(mu)| ‖W v‖; and
    ‖W v‖² is chi-square with r degrees, below x = 2 (delta Γ(r/2 + 1))^(2/r) with probability at
    most delta. Inverting the monotone T_q outside [-1, 1] bounds mu. Cost: q products with D.
    """
    width = width.clamp(min=torch.finfo(probes.dtype).tiny)
    half = (width / 2).to(probes).unsqueeze(-1).unsqueeze(-1)
    before, now = probes, apply(probes) / half - probes  # T_0 and T_1 at D / half - 1
    for _ in range(_CHEBYSHEV_DEGREE - 1):
        before, now = now, 2 * (apply(now) / half - now) - before
    now = now.double()
    largest = torch.linalg.eigvalsh(now @ now.mT)[..., -1].clamp(min=0).sqrt()
    r = probes.shape[-2]
    log_chi_square = math.log(2) + (math.log(failure_probability) + math.lgamma(r / 2 + 1)) * 2 / r
    ratio = (largest / math.exp(log_chi_square / 2)).clamp(min=1)
    return width / 2 * (1 + torch.cosh(torch.acosh(ratio) / _CHEBYSHEV_DEGREE))


def product_eps(x: Tensor) -> float:
    """The eps of matrix products with x.

    It is that of its dtype, unless `torch.set_float32_matmul_precision` permits fewer digits. Whether this
    device makes use of the permission is not asked.
    """
    eps = torch.finfo(x.dtype).eps
    if x.dtype != torch.float32:
        return eps
    backend = torch.backends.mkldnn if x.device.type == "cpu" else torch.backends.cuda
    # torch's newer setting, one a backend; the older one may not be read once this was used
    setting = getattr(getattr(backend, "matmul", None), "fp32_precision", None)
    return _COARSE.get(setting or torch.get_float32_matmul_precision(), eps)


def rounding_error(eigenvalues: Tensor, dtype: torch.dtype) -> Tensor:
    """How much B Bᵀ may change (...) when its basis is rounded to ``dtype``."""
    return _ROUNDING[dtype] * torch.finfo(dtype).eps * eigenvalues[..., 0]


def exchange_error(basis: Tensor, eigenvalues: Tensor, other: Tensor) -> Tensor:
    """A bound on how much B Bᵀ changes when ``other`` replaces its basis: 2 ‖E‖ ‖B‖ + ‖E‖² for E = B' - B."""
    E = (other - basis).double() * eigenvalues.sqrt().unsqueeze(-2)
    size = (E.mT @ E).abs().sum(-1).amax(-1).sqrt()  # no norm of EᵀE is above its largest row sum
    return size * (2 * eigenvalues[..., 0].sqrt() + size)

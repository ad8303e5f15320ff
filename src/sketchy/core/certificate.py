"""The certificate: how far B Bᵀ can be from the covariance C, in the operator norm.

Let c² be the eigenvalue that an update subtracts. An update of the exact solver has the error c², which its
escaped mass counts. An update of the subspace solver has the error D = C' - Z diag(kept) Zᵀ ⪰ 0. The trace
of D bounds its norm. With random probes, products with D give a sharper bound. Both solvers add an allowance
for rounding. Past errors decay with the covariance (Obs. 6).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sketchy.core.spread import Spread, total
from sketchy.core.tasks import Task

# What rounding adds to the error of one update, relative to ‖C'‖ and in units of eps. LAPACK's SVD has an
# error of about 20 eps; for float32 it runs in float64. The long sums of the subspace solver add the root of
# their length. That part is in float32's eps even where products use fewer digits (TF32, bfloat16).
_ROUNDING = {torch.float32: 8.0, torch.float64: 40.0}
# What rounding adds to the trace of D, relative to tr C' and in units of eps.
_TRACE_ROUNDING = 10.0

# The eps of float32 products, by torch's names for the precision that they may use: TF32, bfloat16.
_COARSE = dict.fromkeys(("tf32", "high"), 2.0**-10) | dict.fromkeys(("bf16", "medium"), 2.0**-7)

# With 16 probes, two products bound the norm of a flat spectrum of 1000 directions by 2.5 times its value.
# Three products bound it by 1.6 times, and take another 5 % of an update's time.
_CHEBYSHEV_DEGREE = 2


def rounding(A: Tensor, shape: tuple[int, int], *, traced: bool) -> tuple[float, ...]:
    """What rounding may add in one update with A (..., d, k), of which parts may lie here. ``shape``: d, k.

    The first number is relative to ‖C'‖. The second, relative to tr C', is for bounds by traces (``traced``).
    """
    eps, coarse = torch.finfo(A.dtype).eps, product_eps(A)
    if not traced:
        return (_ROUNDING[A.dtype] * coarse,)
    return (
        _ROUNDING[A.dtype] * coarse + max(shape) ** 0.5 * eps,
        _TRACE_ROUNDING * coarse + shape[1] ** 0.5 * eps,  # second term: from sums of k squares
    )


def loss(
    mass: Tensor, top: Tensor, kept: Tensor, escaped: Tensor, rounding: Sequence[float | Tensor]
) -> Tensor:
    """What one update adds to the error bound (...): a bound on ‖D‖ by its trace, plus rounding.

    ``mass``: tr C' (...). ``top``: √‖C'‖ (...). ``kept``: (..., l). ``escaped``: c² (...). ``rounding``: the
    result of `rounding`.
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
    """A sharper `loss`, from random probes. ``norm``: ‖A‖ (...). ``sigma``: (..., l), roots of eig(C')."""
    mass, escaped = D.lam.sum(-1) + norm.square(), sigma[..., -1].square()
    trace = _trace(mass, D.kept, rounding[1])
    width = torch.maximum(
        escaped, torch.maximum(trace / probes.shape[-1], torch.finfo(probes.dtype).eps * mass)
    )
    return norm_bound(D.apply, probes, width, failure_probability) + sigma[..., 0].square() * rounding[0]


def _trace(mass: Tensor, kept: Tensor, rounding: float | Tensor) -> Tensor:
    """An upper bound on tr D = tr C' - Σ kept."""
    return (mass - kept.sum(-1)).clamp_(min=0) + mass * rounding


def _traced(trace: Tensor, kept: Tensor, escaped: Tensor) -> Tensor:
    """An upper bound on ‖D‖. D is c² on l directions, plus a positive rest; the norm counts c² only once."""
    return torch.maximum(escaped, torch.sub(trace, escaped, alpha=kept.shape[-1] - 1))


@dataclass(frozen=True)
class Residual:
    """D = U diag(λ) Uᵀ + A Aᵀ - Z diag(kept) Zᵀ ⪰ 0: the error of one subspace update. It is never formed."""

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
    is a low guess of the norm. The bound is valid for any positive width. It is tight if most of the spectrum
    lies in [0, width].

    Let W be the probes and T_q the Chebyshev polynomial on [0, width]. Let v be a unit eigenvector of D for
    the eigenvalue mu with the largest |T_q(mu)|. Then W T_q(D) v = T_q(mu) W v, so
    ‖W T_q(D)‖ >= |T_q(mu)| ‖W v‖. Here ‖W v‖² is chi-square with r degrees of freedom. It is below
    x = 2 (delta Γ(r/2 + 1))^(2/r) with probability at most delta. Outside the interval T_q is monotone; its
    inverse bounds mu. Cost: q products with D.
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

    It is the eps of x's dtype, unless `torch.set_float32_matmul_precision` permits fewer digits. If it does,
    fewer digits are assumed, whether or not this device uses them.
    """
    eps = torch.finfo(x.dtype).eps
    if x.dtype != torch.float32:
        return eps
    backend = torch.backends.mkldnn if x.device.type == "cpu" else torch.backends.cuda
    # torch's newer setting, one for each backend. Once it was used, the older one may not be read.
    setting = getattr(getattr(backend, "matmul", None), "fp32_precision", None)
    return _COARSE.get(setting or torch.get_float32_matmul_precision(), eps)


def rounding_error(eigenvalues: Tensor, dtype: torch.dtype) -> Tensor:
    """How much B Bᵀ may change (...) when its basis is rounded to ``dtype``."""
    return _ROUNDING[dtype] * torch.finfo(dtype).eps * eigenvalues[..., 0]


def exchange_error(
    basis: Tensor, eigenvalues: Tensor, other: Tensor, spread: Spread | None = None
) -> Task[Tensor]:
    """A bound on how much B Bᵀ changes when ``other`` replaces its basis: 2 ‖E‖ ‖B‖ + ‖E‖² for E = B' - B."""
    E = (other - basis).double() * eigenvalues.sqrt().unsqueeze(-2)
    gram = yield from total(E.mT @ E, spread)
    size = gram.abs().sum(-1).amax(-1).sqrt()  # ‖EᵀE‖ is at most its largest row sum
    return size * (2 * eigenvalues[..., 0].sqrt() + size)

"""The paper's regret bounds as functions: right-hand sides from the true covariance G_T = Σ g_t g_tᵀ.

``eigenvalues`` are those of G_T, (..., d) in any order; ``diameter`` is D, the largest ‖x_t - x*‖₂ that can
occur. Each bound holds for every learning rate; without ``eta`` it's the one at the rate of the theorem.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from sketchy.core.bounds import escaped_mass_bound


def s_adagrad(eigenvalues: Tensor, rank: int, diameter: float, eta: float | None = None) -> Tensor:
    """Thm 3: Regret of S-AdaGrad <= D (√2 tr G^(1/2) + d √(Ω_l / 2)) at η = D / √2.

    In general D²/(2η) (tr G^(1/2) + d √Ω_l) + η tr G^(1/2), with Ω_l of Lemma 1.

    >>> s_adagrad(torch.tensor([4.0, 1.0]), rank=2, diameter=2.0)
    tensor(11.3137)
    """
    d = eigenvalues.shape[-1]
    return _additive(eigenvalues, d * escaped_mass_bound(eigenvalues, rank).sqrt(), diameter, eta)


def s_adagrad_improved(eigenvalues: Tensor, rank: int, diameter: float, eta: float | None = None) -> Tensor:
    """Cor 4: Thm 3 with √(d (d - l) Ω_l) for d √Ω_l; at l = d, full-matrix AdaGrad's bound.

    >>> s_adagrad_improved(torch.tensor([4.0, 1.0]), rank=2, diameter=2.0)
    tensor(8.4853)
    """
    d = eigenvalues.shape[-1]
    extra = (d * max(d - rank, 0) * escaped_mass_bound(eigenvalues, rank)).sqrt()
    return _additive(eigenvalues, extra, diameter, eta)


def full_adagrad(eigenvalues: Tensor, diameter: float, eta: float | None = None) -> Tensor:
    """Full-matrix AdaGrad (Duchi et al. 2011): D²/(2η) tr G^(1/2) + η tr G^(1/2), √2 D tr G^(1/2) at best."""
    return _additive(eigenvalues, torch.zeros_like(eigenvalues[..., 0]), diameter, eta)


def _additive(eigenvalues: Tensor, extra: Tensor, diameter: float, eta: float | None) -> Tensor:
    trace = eigenvalues.clamp(min=0).sqrt().sum(-1)
    eta = diameter / math.sqrt(2) if eta is None else eta
    return (trace + extra) * diameter**2 / (2 * eta) + eta * trace


def adagrad(sums_of_squares: Tensor, width: float, eta: float | None = None) -> Tensor:
    """Diagonal AdaGrad (Duchi et al. 2011): (W²/(2η) + η) Σ_i √(Σ_t g_{t,i}²), W the widest side of K."""
    eta = width / math.sqrt(2) if eta is None else eta
    return (width**2 / (2 * eta) + eta) * sums_of_squares.sqrt().sum(-1)


def ogd(norms: Tensor, diameter: float, eta: float) -> Tensor:
    """OGD at the rates η/√t: D² √T / (2η) + η/2 Σ_t ‖g_t‖² / √t, for the norms (..., T) of the gradients."""
    t = torch.arange(1, norms.shape[-1] + 1, dtype=norms.dtype)
    return diameter**2 * t[-1].sqrt() / (2 * eta) + eta / 2 * (norms.square() / t.sqrt()).sum(-1)


def ada_fd(
    eigenvalues: Tensor, escaped: Tensor, diameter: float, eta: float | Tensor, delta: float | Tensor
) -> Tensor:
    """What Ada-FD's own bound (Wan and Zhang 2021) is at least, as in the proof of Obs. 2.

    η max(1, (1 + √Σ ρ_t) / δ) tr G^(1/2) + D²/(2η) Σ √ρ_t, with ``escaped`` the masses ρ_t (..., T).
    """
    trace = eigenvalues.clamp(min=0).sqrt().sum(-1)
    factor = ((1 + escaped.sum(-1).sqrt()) / delta).clamp(min=1)
    return eta * factor * trace + diameter**2 / (2 * eta) * escaped.sqrt().sum(-1)


def epoch_error(G: Tensor, A: Tensor) -> Tensor:
    """ε_k of the step-skipping theorem: tr(G^(-1/2) S G^(-1/2) A), where G^(1/2) S + S G^(1/2) = A.

    ``G``: G_{t_k}, positive definite; ``A``: what the epoch adds to it. On the eigenvectors of G it's
    Σ_ij A_ij² / (√λ_i √λ_j (√λ_i + √λ_j)).
    """
    lam, V = torch.linalg.eigh(G)
    root = lam.clamp(min=0).sqrt()
    B = V.mT @ A @ V
    pair = root.unsqueeze(-1) * root.unsqueeze(-2) * (root.unsqueeze(-1) + root.unsqueeze(-2))
    return (B.square() / pair).sum((-2, -1))


def epoch_adagrad(covariances: Sequence[Tensor], diameter: float, eta: float) -> Tensor:
    """The step-skipping theorem, for Alg. 5: D²/η tr G_T^(1/2) + η (tr G_T^(1/2) - tr G_0^(1/2)) + η/2 Σ ε_k.

    ``covariances``: G at the update points, G_0 first and G_T last, positive definite.
    """
    first, last = (torch.linalg.eigvalsh(covariances[i]).clamp(min=0).sqrt().sum(-1) for i in (0, -1))
    errors = torch.stack([epoch_error(G, following - G) for G, following in pairwise(covariances)]).sum(0)
    return diameter**2 / eta * last + eta / 2 * (2 * last - 2 * first + errors)

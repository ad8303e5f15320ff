"""Regret bounds. There are two kinds:

- closed forms, which need only the gradients' covariance G_T = Σ g_t g_tᵀ, the domain and the settings;
- :func:`observed`, which needs the steps that a learner took and the norms it projected in. It holds for
  every learner, but is known only afterwards.

| learner | closed form | source |
|---|---|---|
| ogd, adagrad, full-adagrad | ``ogd``, ``adagrad``, ``full_adagrad`` | Zinkevich 2003, Duchi et al. 2011 |
| s-adagrad | ``s_adagrad``, ``s_adagrad_improved`` | the paper |
| s-adagrad, parameter-free | ``s_adagrad_parameter_free`` | ours |
| epoch-adagrad | ``epoch_adagrad`` | the paper; sketched, ours |
| ada-fd | ``ada_fd_upper`` | ours, in the form of Wan and Zhang 2021 |
| son, fd-son | ``son``, ``fd_son`` | the argument of Luo et al. 2016, at our weights |
| rfd-son | ``rfd_son`` | the argument of Luo et al. 2019, at our weights |
| ada-lr | ``ada_lr``, on streams of rank at most l | ours; the published one holds with some probability |
| radagrad, ggt | none: no guarantee is known | |

``eigenvalues`` are those of G_T, (..., d) in any order; ``gradients`` are (T, d); ``diameter`` is D, the
largest possible ‖x_t - x*‖₂. Each bound holds for every learning rate ``eta``. A default ``eta`` is the one
of the theorem.

All bounds follow from one inequality. Let x_{t+1} be the projection of x_t - H_t⁻¹ g_t onto K in the norm of
H_t. Then

    2 Σ g_t.(x_t - x*) <= Σ g_tᵀ H_t⁻¹ g_t + Σ (x_t - x*)ᵀ (H_t - H_{t-1}) (x_t - x*),    H_0 = 0,

and the second sum is at most D² Σ λ_max(H_t - H_{t-1})₊.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from sketchy.core.bounds import escaped_mass_bound

# -- any learner, afterwards -----------------------------------------------------------------------


def observed(gradients: Tensor, steps: Tensor, norms: Tensor, diameter: float) -> Tensor:
    """For any learner that subtracts s_t from x_t and projects onto K in the norm of S_t.

    ``steps``: s_t, (T, d). ``norms``: S_t, (T, d, d). For any c_t >= 0 and H_t = c_t S_t the bound is
    ½ Σ s_tᵀ H_t s_t + D Σ ‖H_t s_t - g_t‖ + D²/2 Σ λ_max(H_t - H_{t-1})₊. This function takes the c_t that
    minimise the middle term. It is zero if the learner steps by S_t⁻¹ g_t, up to a factor.

    >>> g = torch.tensor([[1.0], [-1.0]])  # gradient descent with learning rate 1/2: H = 2
    >>> observed(g, g / 2, torch.ones(2, 1, 1), diameter=1.0)
    tensor(1.5000)
    """
    pulled = (norms @ steps.unsqueeze(-1)).squeeze(-1)
    size = pulled.square().sum(-1)
    c = ((pulled * gradients).sum(-1) / size.clamp(min=torch.finfo(size.dtype).tiny)).clamp(min=0)
    rounds = torch.arange(len(c))
    c = c[torch.where(size > 0, rounds, 0).cummax(0).values]  # a round without a step keeps the previous c
    H = c.reshape(-1, 1, 1) * norms
    rise = torch.linalg.eigvalsh(torch.diff(H, dim=0, prepend=torch.zeros_like(H[:1])))[:, -1].clamp(min=0)
    mismatch = torch.linalg.vector_norm(c.unsqueeze(-1) * pulled - gradients, dim=-1)
    return (c * (pulled * steps).sum(-1)).sum() / 2 + diameter * mismatch.sum() + diameter**2 / 2 * rise.sum()


# -- the AdaGrad family ----------------------------------------------------------------------------


def s_adagrad(
    eigenvalues: Tensor, rank: int, diameter: float, eta: float | None = None, delta: float = 0.0
) -> Tensor:
    """Thm 3: Regret of S-AdaGrad <= D (√2 tr G^(1/2) + d √(Ω_l / 2)) at η = D / √2.

    In general D²/(2η) (tr G^(1/2) + d √Ω_l + √δ) + η tr G^(1/2), with Ω_l of Lemma 1.

    >>> s_adagrad(torch.tensor([4.0, 1.0]), rank=2, diameter=2.0)
    tensor(11.3137)
    """
    d = eigenvalues.shape[-1]
    return _additive(eigenvalues, d * escaped_mass_bound(eigenvalues, rank).sqrt(), diameter, eta, delta)


def s_adagrad_improved(
    eigenvalues: Tensor, rank: int, diameter: float, eta: float | None = None, delta: float = 0.0
) -> Tensor:
    """Cor 4: Thm 3 with √(d (d - l) Ω_l) in place of d √Ω_l. At l = d it is full-matrix AdaGrad's bound.

    >>> s_adagrad_improved(torch.tensor([4.0, 1.0]), rank=2, diameter=2.0)
    tensor(8.4853)
    """
    return _additive(eigenvalues, _escaped_trace(eigenvalues, rank), diameter, eta, delta)


def s_adagrad_parameter_free(
    eigenvalues: Tensor, rank: int, diameter: float, rounds: int, eta: float, delta: float
) -> Tensor:
    """The variant that steps by G̃^(-1/2) and projects in the norm of (G̃ + I)^(1/2), δ > 0. Ours.

    It is Cor 4 with 1 + δ in place of δ, plus (η/2) L + D min(1, 1/(2√δ)) √(T L), because the two norms
    differ. Here L = log det(I + G/δ). The bound follows from three inequalities: √(λ+1)/λ <= λ^(-1/2) + 1/λ,
    √(1 + 1/λ) - 1 <= min(λ^(-1/2), 1/(2λ)), and Σ gᵀ G̃⁻¹ g <= L.
    """
    potential = torch.log1p(eigenvalues.clamp(min=0) / delta).sum(-1)
    mismatch = diameter * min(1.0, 0.5 / math.sqrt(delta)) * (rounds * potential).sqrt()
    return s_adagrad_improved(eigenvalues, rank, diameter, eta, 1 + delta) + eta / 2 * potential + mismatch


def full_adagrad(
    eigenvalues: Tensor, diameter: float, eta: float | None = None, delta: float = 0.0
) -> Tensor:
    """Full-matrix AdaGrad (Duchi et al. 2011): D²/(2η) (tr G^(1/2) + √δ) + η tr G^(1/2).

    With the best η and δ = 0 it is √2 D tr G^(1/2).
    """
    return _additive(eigenvalues, torch.zeros_like(eigenvalues[..., 0]), diameter, eta, delta)


def ada_lr(eigenvalues: Tensor, diameter: float, eta: float, delta: float) -> Tensor:
    """Ada-LR for gradients of rank at most l: D²/(2η) (tr G^(1/2) + δ) + η tr G^(1/2). Ours.

    For such gradients its approximation equals G almost surely. On other streams it does not move outside a
    random basis. Then only :func:`observed` holds, which may exceed D Σ ‖g_t‖.
    """
    return full_adagrad(eigenvalues, diameter, eta, delta**2)


def _additive(eigenvalues: Tensor, extra: Tensor, diameter: float, eta: float | None, delta: float) -> Tensor:
    trace = eigenvalues.clamp(min=0).sqrt().sum(-1)
    eta = diameter / math.sqrt(2) if eta is None else eta
    return (trace + extra + math.sqrt(delta)) * diameter**2 / (2 * eta) + eta * trace


def _escaped_trace(eigenvalues: Tensor, rank: int) -> Tensor:
    """√(d (d - l) Ω_l): an upper bound on what the escaped mass adds to tr G̃^(1/2)."""
    d = eigenvalues.shape[-1]
    return (d * max(d - rank, 0) * escaped_mass_bound(eigenvalues, rank)).sqrt()


def adagrad(sums_of_squares: Tensor, width: float, eta: float | None = None, delta: float = 0.0) -> Tensor:
    """Diagonal AdaGrad (Duchi et al. 2011): Σ_i W²/(2η) √(δ + h_i) + η √h_i with h_i = Σ_t g_{t,i}².

    W is the widest side of K.
    """
    eta = width / math.sqrt(2) if eta is None else eta
    return (width**2 / (2 * eta) * (sums_of_squares + delta).sqrt() + eta * sums_of_squares.sqrt()).sum(-1)


def ogd(norms: Tensor, diameter: float, eta: float, delta: float = 0.0) -> Tensor:
    """OGD with the rates η/√(t+δ): D² √(T+δ) / (2η) + η/2 Σ_t ‖g_t‖² / √(t+δ); ``norms`` are (..., T)."""
    t = torch.arange(1, norms.shape[-1] + 1, dtype=norms.dtype) + delta
    return diameter**2 * t[-1].sqrt() / (2 * eta) + eta / 2 * (norms.square() / t.sqrt()).sum(-1)


def ada_fd(
    eigenvalues: Tensor, escaped: Tensor, diameter: float, eta: float | Tensor, delta: float | Tensor
) -> Tensor:
    """A lower bound on Ada-FD's own regret bound (Wan and Zhang 2021), as in the proof of Obs. 2.

    η max(1, (1 + √Σ ρ_t) / δ) tr G^(1/2) + D²/(2η) Σ √ρ_t, with ``escaped`` the masses ρ_t (..., T). An upper
    bound on the regret is :func:`ada_fd_upper`.
    """
    trace = eigenvalues.clamp(min=0).sqrt().sum(-1)
    factor = ((1 + escaped.sum(-1).sqrt()) / delta).clamp(min=1)
    return eta * factor * trace + diameter**2 / (2 * eta) * escaped.sqrt().sum(-1)


def ada_fd_upper(
    eigenvalues: Tensor, escaped: Tensor, rank: int, diameter: float, eta: float, delta: float
) -> Tensor:
    """Ada-FD, δ > 0: η max(1, √Σρ_t / δ) tr G^(1/2) + D²/(2η) (δ + tr G^(1/2) + l Σ √ρ_t). Ours.

    The first term follows from G^(1/2) ⪯ Ḡ^(1/2) + √Σρ_t I. The second follows from
    Ḡ_t^(1/2) ⪯ (Ḡ_{t-1} + g gᵀ)^(1/2), whose trace is at most tr Ḡ_t^(1/2) + l √ρ_t.
    """
    trace = eigenvalues.clamp(min=0).sqrt().sum(-1)
    factor = (escaped.sum(-1).sqrt() / delta).clamp(min=1)
    rise = delta + trace + min(rank, eigenvalues.shape[-1]) * escaped.sqrt().sum(-1)
    return eta * factor * trace + diameter**2 / (2 * eta) * rise


def epoch_error(G: Tensor, A: Tensor) -> Tensor:
    """ε_k of the step-skipping theorem: tr(G^(-1/2) S G^(-1/2) A), where G^(1/2) S + S G^(1/2) = A.

    ``G``: G_{t_k}, positive definite; ``A``: what the epoch adds to it. In the eigenbasis of G,
    ε_k = Σ_ij A_ij² / (√λ_i √λ_j (√λ_i + √λ_j)).
    """
    lam, V = torch.linalg.eigh(G)
    root = lam.clamp(min=0).sqrt()
    B = V.mT @ A @ V
    pair = root.unsqueeze(-1) * root.unsqueeze(-2) * (root.unsqueeze(-1) + root.unsqueeze(-2))
    return (B.square() / pair).sum((-2, -1))


def epoch_adagrad(
    covariances: Sequence[Tensor], diameter: float, eta: float, rank: int | None = None
) -> Tensor:
    """The step-skipping theorem, for Alg. 5: D²/η tr G_T^(1/2) + η (tr G_T^(1/2) - tr G_0^(1/2)) + η/2 Σ ε_k.

    ``covariances``: G at the update points, G_0 first and G_T last, positive definite. With ``rank`` it is
    the bound of the sketched form (ours), which adds D²/(2η) √(d (d - l) Ω_l), as in Cor 4, since G ⪯ G̃.
    """
    first, last = (torch.linalg.eigvalsh(covariances[i]).clamp(min=0).sqrt().sum(-1) for i in (0, -1))
    errors = torch.stack([epoch_error(G, following - G) for G, following in pairwise(covariances)]).sum(0)
    bound = diameter**2 / eta * last + eta / 2 * (2 * last - 2 * first + errors)
    if rank is None:
        return bound
    added = torch.linalg.eigvalsh(covariances[-1] - covariances[0]).clamp(min=0)
    return bound + diameter**2 / (2 * eta) * _escaped_trace(added, rank)


# -- the online Newton family ----------------------------------------------------------------------
#
# H starts at δ I, δ > 0, and each round adds w_t g_t g_tᵀ with decreasing weights w_t. C is the sum of these
# terms, and λ are its eigenvalues. Losses of curvature σ satisfy
# f_t(x) >= f_t(x_t) + g_t.(x - x_t) + σ/2 (g_t.(x - x_t))² on K. For the squared loss σ = 1/r², with r the
# largest error. With curvature, a round with w_t <= σ adds only to the logarithmic term (``potential``).


def son(gradients: Tensor, diameter: float, eta: float, delta: float, curvature: float = 0.0) -> Tensor:
    """SON, w_t = 1/(η√t): D²/2 (δ + Σ (w_t - σ)₊ ‖g_t‖²) + η√T/2 Σ_i log(1 + λ_i/δ) (Luo et al. 2016)."""
    weights, lam = _weighted(gradients, eta, 0.5)
    return _newton(gradients, weights, diameter, delta, curvature, torch.log1p(lam / delta).sum())


def fd_son(
    gradients: Tensor, rank: int, diameter: float, eta: float, delta: float, curvature: float = 0.0
) -> Tensor:
    """FD-SON: SON's bound with Σ_{i<l} log(1 + λ_i/δ) + l Ω_l/δ as sum of logarithms (Luo et al. 2016).

    Ω_l is that of Lemma 1 for C.
    """
    weights, lam = _weighted(gradients, eta, 0.5)
    rank = min(rank, len(lam))
    potential = torch.log1p(lam[: rank - 1] / delta).sum() + rank * escaped_mass_bound(lam, rank) / delta
    return _newton(gradients, weights, diameter, delta, curvature, potential)


def rfd_son(
    gradients: Tensor, rank: int, diameter: float, eta: float, delta: float, curvature: float = 0.0
) -> Tensor:
    """RFD-SON, w_t = 1/(ηt): D²/2 (α + Σ (w_t - σ)₊ ‖g_t‖²) + ηT/2 P, with α = δ + Ω_l/2 (Luo et al. 2019).

    P = Σ_{i<l} log((λ_i + α)/δ) + (1 + max(l, d - l)) log(α/δ). RFD-SON adds half of the escaped mass to the
    diagonal: too little in l directions, too much in d - l. With a fixed η the bound grows as T; with η of
    order T^(-1/2), as √T.
    """
    weights, lam = _weighted(gradients, eta, 1.0)
    d, rank = len(lam), min(rank, len(lam))
    alpha = delta + escaped_mass_bound(lam, rank) / 2
    outside = (max(rank, d - rank) + 1) * (alpha / delta).log()
    potential = ((lam[: rank - 1] + alpha) / delta).log().sum() + outside
    return _newton(gradients, weights, diameter, float(alpha), curvature, potential)


def _weighted(gradients: Tensor, eta: float, power: float) -> tuple[Tensor, Tensor]:
    """The weights 1/(η t^power), (T,), and the eigenvalues of Σ w_t g_t g_tᵀ, (d,), descending."""
    weights = torch.arange(1, len(gradients) + 1, dtype=gradients.dtype).pow(-power) / eta
    C = gradients.mT @ (weights.unsqueeze(-1) * gradients)
    return weights, torch.linalg.eigvalsh(C).clamp(min=0).flip(-1)


def _newton(
    gradients: Tensor, weights: Tensor, diameter: float, diagonal: float, curvature: float, potential: Tensor
) -> Tensor:
    energy = (weights - curvature).clamp(min=0) @ gradients.square().sum(-1)
    return diameter**2 / 2 * (diagonal + energy) + potential / (2 * weights[-1])

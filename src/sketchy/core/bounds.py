"""The paper's guarantees: how much mass a sketch of a given rank can lose, from the true spectrum."""

import torch
from torch import Tensor


def tail_sum(eigenvalues: Tensor, rank: int) -> Tensor:
    """λ_{l:d} of Lemma 1: the sum of all but the ``rank - 1`` largest eigenvalues (..., d).

    >>> tail_sum(torch.tensor([8.0, 4.0, 2.0, 1.0]), rank=3)
    tensor(3.)
    """
    _check_rank(rank)
    return eigenvalues.sort(descending=True).values[..., rank - 1 :].sum(-1)


def escaped_mass_bound(eigenvalues: Tensor, rank: int) -> Tensor:
    """Ω_l of Lemma 1: an upper bound on the escaped mass of a Frequent Directions sketch of ``rank``.

    It is min over k < l of (l - k)⁻¹ Σ_{i > k} λ_i(C). ``eigenvalues`` (..., d) are those of the true
    covariance C, in any order. It bounds ρ for both solvers, and therefore ‖C - B Bᵀ‖ for the exact one. For
    the exponentially weighted covariance C it is Obs. 6.

    >>> escaped_mass_bound(torch.tensor([8.0, 4.0, 2.0, 1.0]), rank=3)
    tensor(3.)
    >>> escaped_mass_bound(torch.tensor([1.0, 1.0, 1.0, 1.0]), rank=3)
    tensor(1.3333)
    """
    _check_rank(rank)
    rank = min(rank, eigenvalues.shape[-1])
    lam = eigenvalues.sort(descending=True).values
    tails = lam.flip(-1).cumsum(-1).flip(-1)[..., :rank]  # Σ_{i > k} λ_i for k = 0 .. l - 1
    return (tails / torch.arange(rank, 0, -1, dtype=lam.dtype, device=lam.device)).amin(-1)


def weighted_escaped_mass_bound(vectors: Tensor, rank: int, beta2: float) -> Tensor:
    """Obs. 6: Lemma 1's bound for the exponentially weighted covariance Σ_t β₂^(T-t) g_t g_tᵀ of a stream.

    ``vectors``: (..., d, T), one column for each step, the newest last. No d x d matrix is formed.

    >>> weighted_escaped_mass_bound(torch.eye(3), rank=2, beta2=0.5)
    tensor(0.7500)
    """
    age = torch.arange(vectors.shape[-1] - 1, -1, -1, dtype=torch.float64, device=vectors.device)
    weights = beta2 ** (age / 2)
    sigma = torch.linalg.svdvals(vectors * weights.to(vectors))
    missing = vectors.shape[-2] - sigma.shape[-1]  # if T < d, the other eigenvalues are zero
    return escaped_mass_bound(torch.nn.functional.pad(sigma.square(), (0, missing)), rank)


def _check_rank(rank: int) -> None:
    if rank < 1:
        raise ValueError(f"rank={rank}: must be at least 1")

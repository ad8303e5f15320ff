"""Ranks for many weights under one budget: what each rank loses, and the ranks that lose least.

All directions outside of a sketch share one scale. Let μ_1 ≥ ... ≥ μ_d be the spectrum of an axis, and let a
sketch of rank k have the first k directions. The ideal step divides each direction by √μ_i, so that all come
out equally long. The sketch divides those outside by their root mean square: they have the lengths
√(μ_i / mean μ). So the cosine between both steps, over all d directions, is 1 - J(k) with

    J(k) = Σ_{i > k} (1 - √(μ_i / mean_{j > k} μ_j)) / d.

J is the share of directions that is lost. It depends on how unequal the spectrum outside is, not on how much
energy is there: a direction with nearly all energy (such as a mean that never changes) hides nothing else.
`allocated` minimizes a weighted sum of J over all axes of all weights (`optim.menus` has the weights).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

_RUNGS = 4  # ranks in an octave
_STEP = 8  # ranks above it are multiples of it
_HALVINGS = 40
_STEEPEST = 8.0  # exponent of a power law
Values = tuple[Tensor, Tensor, Tensor]  # λ (..., l), ρ (...) and the error bound (...) of a sketch


def ladder(dim: int, least: int, most: int | None = None) -> tuple[int, ...]:
    """The ranks that an axis of length d may have: multiples of 8, at most four in an octave, and d itself.

    >>> ladder(128, 4), ladder(100, 8, 64), ladder(6, 8)
    ((4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128), (8, 16, 24, 32, 40, 48, 56, 64), (6,))
    """
    most = dim if most is None else min(most, dim)
    least = min(least, most)
    rungs, rank = [least], _STEP
    while rank < most:
        rungs += [rank] if rank > least else []
        rank += max(_STEP, 2 ** (rank.bit_length() - 1) // _RUNGS)
    return tuple(dict.fromkeys((*rungs, most)))


def spectrum(sketch: Values, dim: int, lost: Tensor | None = None) -> Tensor:
    """An estimate of all d eigenvalues (..., d) of the covariance C, from the values of a sketch of it.

    Inside, μ_i = λ_i + ρ. Outside, a power law follows, μ_i = μ_l (l / i)^a. Its sum is the mass outside:
    ``lost`` = tr C - tr B Bᵀ (...), minus ρ for each column. If ``lost`` is not known, it is taken from the
    error bound: bounds by traces add up to lost - (l - 1) ρ.
    """
    lam, rho, bound = sketch
    l, n = lam.shape[-1], dim - lam.shape[-1]
    inside = lam + rho.unsqueeze(-1)
    mass = bound - rho if lost is None else lost - l * rho
    top = inside[..., -1]
    share = (mass / top.clamp(min=1e-300)).clamp(0, n)  # in units of the last eigenvalue inside
    logs = (torch.arange(l + 1, dim + 1, device=top.device, dtype=top.dtype) / l).log()
    low, high = torch.zeros_like(share), torch.full_like(share, _STEEPEST)  # a
    for _ in range(_HALVINGS if n else 0):
        a = (low + high) / 2
        larger = (-a.unsqueeze(-1) * logs).exp().sum(-1) > share
        low, high = torch.where(larger, a, low), torch.where(larger, high, a)
    return torch.cat([inside, top.unsqueeze(-1) * (-low.unsqueeze(-1) * logs).exp()], -1)


def power_law(dim: int) -> Tensor:
    """A spectrum (d,) as training often has: μ_i = 1 / i."""
    return 1 / torch.arange(1, dim + 1, dtype=torch.float64)


def losses(mu: Tensor, ranks: Sequence[int]) -> Tensor:
    """J (..., number of ranks): the share of directions that each rank loses, for spectra μ (..., d)."""
    mu = mu.double().clamp(min=0)
    d = mu.shape[-1]
    kept = [min(rank, d - 1) for rank in ranks]
    squares, roots = (x.flip(-1).cumsum(-1).flip(-1)[..., kept] for x in (mu, mu.sqrt()))
    outside = torch.tensor([d - rank for rank in ranks], device=mu.device, dtype=mu.dtype)
    found = outside - outside.sqrt() * roots / squares.clamp(min=1e-300).sqrt()
    return torch.where(squares > 0, found, 0.0).clamp(min=0) / d


@dataclass(frozen=True)
class Choices:
    """What one weight may take: costs and losses of its options. The first is the cheapest."""

    costs: Sequence[int]
    losses: Sequence[float]

    def hull(self) -> list[int]:
        """The options on the lower convex hull of (cost, loss), the cheapest one first."""
        order = sorted(range(len(self.costs)), key=lambda i: (self.costs[i], self.losses[i]))
        kept: list[int] = []
        for i in order:
            if kept and self.losses[i] >= self.losses[kept[-1]]:
                continue
            while len(kept) > 1 and self.rate(kept[-2], kept[-1]) <= self.rate(kept[-1], i):
                kept.pop()
            kept.append(i)
        return kept

    def rate(self, i: int, j: int) -> float:
        """What each unit of cost gains from option i to option j, which costs more."""
        return (self.losses[i] - self.losses[j]) / (self.costs[j] - self.costs[i])


@dataclass(frozen=True)
class Allocation:
    """What `allocated` has chosen."""

    options: list[int]  # of each weight
    rate: float  # what a unit of cost gains where the budget ends; 0 if there is nothing more to gain


def allocated(weights: Sequence[Choices], budget: int) -> Allocation:
    """An option for each weight: together they cost at most ``budget`` and lose as little as possible.

    All weights start with their cheapest option. Then the steps along all hulls are taken by falling rate,
    while they fit. ValueError if even the cheapest options cost more.

    What was taken before the first step that does not fit is optimal for its cost. Proof (Everett 1963): let
    t be the rate of the last step taken. Each weight then has an option with the least loss + t cost, since
    on a hull rates fall, and steps with a rate above t were taken, others not. So the sum of loss + t cost is
    the least of all choices. A choice of no more cost with less loss would have less of it. By the same
    sums, with t the rate of the first step that does not fit, no choice within the budget loses less than
    what was lost then, minus t times what was left of the budget. Later steps that fit only add to this.

    Cost: O(n log n) for n options in all.
    """
    hulls = [weight.hull() for weight in weights]
    chosen = [hull[0] for hull in hulls]
    left = budget - sum(w.costs[i] for w, i in zip(weights, chosen, strict=True))
    if left < 0:
        raise ValueError(f"the smallest ranks need {budget - left:,} bytes, {-left:,} more than the budget")
    steps = [
        (-w.rate(i, j), number, i, j)
        for number, (w, hull) in enumerate(zip(weights, hulls, strict=True))
        for i, j in pairwise(hull)
    ]
    rate = 0.0
    for falling, number, i, j in sorted(steps):
        cost = weights[number].costs[j] - weights[number].costs[i]
        if chosen[number] == i and cost <= left:
            chosen[number], left = j, left - cost
        else:
            rate = max(rate, -falling)
    return Allocation(chosen, rate)


def kinds(weights: Sequence[Choices], rate: float, most: int) -> list[int]:
    """At most ``most`` of the options of alike weights, chosen one by one for the least loss + rate cost.

    Weights with equal options step together, so few kinds mean few operations. The sum that is minimized is
    that of facility location: one by one finds at least 1 - 1/e of what the best ``most`` options gain.
    """
    value = torch.tensor([w.losses for w in weights], dtype=torch.float64)
    value = value + rate * torch.tensor([w.costs for w in weights], dtype=torch.float64)
    best = torch.full((len(weights),), torch.inf, dtype=torch.float64)
    found: list[int] = []
    for _ in range(most):
        sums = torch.minimum(best.unsqueeze(-1), value).sum(0)
        i = int(sums.argmin())
        if found and sums[i] >= best.sum():
            break
        found.append(i)
        best = torch.minimum(best, value[:, i])
    return found

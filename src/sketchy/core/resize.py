"""Another rank for a sketch: columns are cut as by Frequent Directions, or empty ones are added."""

from dataclasses import replace

import torch

from sketchy.core.linalg import fill
from sketchy.core.sketch import Sketch
from sketchy.core.spread import WHOLE
from sketchy.core.tasks import Task, run


def resized(sketch: Sketch, rank: int) -> Sketch:
    """The sketch with ``rank`` columns, at least 2; clipped to d.

    To cut is the cut of Alg. 1, line 5, without a new vector: λ_rank is subtracted from all eigenvalues, and
    is added to ρ. What is lost, B Bᵀ - B' B'ᵀ, has the norm λ_rank, so it is added to the error bound, too.

    To grow adds empty directions, which are random and have the eigenvalue 0. B Bᵀ, ρ and the bound stay.
    At rank d a sketch is a full covariance (`core.dense`), which has no ρ: B Bᵀ + ρ I takes the place of
    B Bᵀ. It differs from C by at most the same bound, since 0 ⪯ C - B Bᵀ ⪯ bound and ρ ≤ bound.

    Cost: O(d l) to cut, O(d rank²) to grow.
    """
    return run(resized_task(sketch, rank))


def resized_task(sketch: Sketch, rank: int) -> Task[Sketch]:
    """`resized` as a task (`core.tasks`)."""
    rank = min(rank, sketch.dim)
    if rank < sketch.rank:
        return _cut(sketch, rank)
    return sketch if rank == sketch.rank else (yield from _grown(sketch, rank))


def _cut(sketch: Sketch, rank: int) -> Sketch:
    lam = sketch.eigenvalues[..., :rank]
    cut = lam[..., -1:]
    lost = cut.squeeze(-1)
    return replace(
        sketch,
        basis=sketch.basis[..., :rank].contiguous(),
        eigenvalues=lam - cut,
        escaped_mass=sketch.escaped_mass + lost,
        error_bound=sketch.error_bound + lost,
    )


def _grown(sketch: Sketch, rank: int) -> Task[Sketch]:
    U, lam = sketch.basis, sketch.eigenvalues
    new = rank - sketch.rank
    live = torch.arange(rank, device=U.device) < sketch.rank
    padded = torch.cat([U, U.new_zeros(*U.shape[:-1], new)], -1)
    spreads = WHOLE if sketch.spread is None else (sketch.spread, None)
    filled = yield from fill(padded, live.expand(*U.shape[:-2], rank), spreads)
    basis = torch.cat([U, filled[..., sketch.rank :]], -1)
    lam = torch.cat([lam, lam.new_zeros(*lam.shape[:-1], new)], -1)
    mass = sketch.escaped_mass
    if rank == sketch.dim:
        lam, mass = lam + mass.unsqueeze(-1), torch.zeros_like(mass)
    return replace(sketch, basis=basis, eigenvalues=lam, escaped_mass=mass)

"""How well sketches of several ranks approximate a real covariance: numbers and a picture."""

import io
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from matplotlib.figure import Figure
from torch import Tensor

from sketchy.core.bounds import escaped_mass_bound
from sketchy.core.sketch import SOLVERS
from sketchy.experiments.plot import COLOURS
from sketchy.frequent_directions import FrequentDirections


@dataclass(frozen=True)
class SketchResult:
    """One sketch of one stream. Errors are operator norms, divided by the norm of the covariance."""

    solver: str
    rank: int
    numbers: int  # kept by the sketch
    error: float  # true error, ‖C - B Bᵀ‖ / ‖C‖
    certified: float  # the sketch's own upper bound
    lemma_1: float  # the paper's upper bound
    microseconds: float  # per vector
    eigenvalues: tuple[float, ...]  # of B Bᵀ + ρ I on the basis, divided by the largest of C


def digits() -> Tensor:
    """The 1,797 images of digits (8 x 8 pixels) that come with scikit-learn, as rows, float32."""
    from sklearn.datasets import load_digits

    return torch.from_numpy(load_digits().data).float() / 16


def spectrum(vectors: Tensor) -> Tensor:
    """The eigenvalues of the covariance Σ a aᵀ of the rows, descending, float64."""
    return torch.linalg.svdvals(vectors.double()).square()


def rows(vectors: Tensor, ranks: Sequence[int]) -> Iterator[SketchResult]:
    """Update a sketch of each rank with the vectors, one by one, with both solvers."""
    C = vectors.double().T @ vectors.double()
    lam = spectrum(vectors)
    for solver in SOLVERS:
        for rank in ranks:
            fd = FrequentDirections(vectors.shape[1], rank, solver=solver, dtype=vectors.dtype)
            start = time.perf_counter()
            for vector in vectors:
                fd.update(vector)
            certified = float(fd.error_bound)
            seconds = time.perf_counter() - start
            yield SketchResult(
                solver=solver,
                rank=fd.rank,
                numbers=fd.rank * (fd.dim + 1) + 2,
                error=float(torch.linalg.matrix_norm(C - fd.dense(), 2) / lam[0]),
                certified=certified / float(lam[0]),
                lemma_1=float(escaped_mass_bound(lam, fd.rank) / lam[0]),
                microseconds=1e6 * seconds / len(vectors),
                eigenvalues=tuple(((fd.eigenvalues + fd.escaped_mass) / lam[0]).tolist()),
            )


def picture(vectors: Tensor, results: Sequence[SketchResult], *, title: str) -> bytes:
    """Left: the true spectrum and those of the sketches. Right: true, certified and guaranteed error."""
    figure = Figure(figsize=(11, 4.6), dpi=130, layout="constrained")
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    left, right = figure.subplots(1, 2)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)

    lam = spectrum(vectors)
    shares = (lam / lam[0]).clamp(min=1e-6).tolist()
    left.semilogy(range(1, len(shares) + 1), shares, color="black", label="true covariance")
    exact = [row for row in results if row.solver == "exact"]
    for row, colour in zip(exact, COLOURS, strict=False):
        left.semilogy(
            range(1, row.rank + 1), row.eigenvalues, "o", ms=3.5, color=colour, label=f"rank {row.rank}"
        )
    left.set(
        xlabel="direction", ylabel="eigenvalue / largest", title="spectrum of the exact sketch, with ρ added"
    )
    left.set_ylim(bottom=1e-5)
    left.legend(frameon=False)

    ranks = [row.rank for row in exact]
    right.semilogy(ranks, [row.lemma_1 for row in exact], "--", color="grey", label="guaranteed (Lemma 1)")
    for solver, colour in zip(SOLVERS, COLOURS, strict=False):
        mine = [row for row in results if row.solver == solver]
        right.semilogy(
            ranks, [row.certified for row in mine], "^:", ms=5, color=colour, label=f"certified, {solver}"
        )
        right.semilogy(ranks, [row.error for row in mine], "o-", ms=4, color=colour, label=f"true, {solver}")
    right.set(xlabel="rank", ylabel="‖C − BBᵀ‖ / ‖C‖", title="true error and its bounds")
    right.set_xscale("log", base=2)
    right.set_xticks(ranks, [str(rank) for rank in ranks])
    right.minorticks_off()
    right.legend(frameon=False, fontsize=8)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()

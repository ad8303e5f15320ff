"""Time Frequent Directions beside an SVD, an eigendecomposition, its matrix products and IncrementalPCA.

    python -m benchmarks.speed.frequent_directions [--threads N] [--rounds N]

Ratios are medians with quartiles over interleaved rounds. Nothing else should be running. After a Ctrl-C the
same command continues with the table that was interrupted.
"""

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import tyro
from rich.console import Console
from rich.progress import track
from torch import Tensor

from benchmarks.common.arguments import at_least
from benchmarks.common.resumable import Sheet, show
from sketchy import FrequentDirections
from sketchy.analysis.timing import interleave, ratio
from sketchy.core import sketch
from sketchy.core.linalg import gaussian
from sketchy.experiments.mistakes import user_mistakes
from sketchy.experiments.summary import exponent

console = Console(width=110)


@dataclass(frozen=True)
class Options:
    """Time Frequent Directions beside other methods in one run."""

    threads: int = 1
    """Threads of torch and BLAS; 1 gives the most repeatable times."""
    rounds: int = 15
    """Interleaved rounds."""
    rows: int = 4000
    """Rows of the comparison with IncrementalPCA."""


def gradients(d: int, n: int, steps: int, exponent: float) -> list[Tensor]:
    """Gaussian matrices whose covariance has the eigenvalues i^-exponent in one fixed basis."""
    g = torch.Generator().manual_seed(0)
    Q = torch.linalg.qr(torch.randn(d, d, generator=g))[0] * torch.arange(1, d + 1) ** (-exponent / 2)
    return [Q @ torch.randn(d, n, generator=g) for _ in range(steps)]


def warm(matrices: list[Tensor], rank: int) -> sketch.Sketch:
    state = sketch.empty(len(matrices[0]), rank)
    for A in matrices:
        state = sketch.update(state, A, beta2=0.99, solver="subspace")
    return state


def own_products(state: sketch.Sketch, A: Tensor, probes: Tensor | None) -> Callable[[], object]:
    """The matrix products of an update alone, as torch.mm of the same shapes.

    A triangular solve counts as a product.
    """
    U, small = state.basis, torch.randn(state.rank, state.rank) / state.rank

    def run() -> object:
        K = torch.mm(A.T, U)
        Y = torch.mm(A, K)  # with K, the power step
        W = torch.mm(K.T, K)
        T = torch.mm(Y, small)
        G = torch.mm(T.T, T)
        N, rotation = torch.mm(small.T, small), torch.mm(small, small)
        Z = torch.mm(T, rotation)
        X = probes
        for _ in range(2 if X is not None else 0):
            assert X is not None
            columns = [torch.mm(F, torch.mm(X, F).T) for F in (A, U, Z)]
            X = columns[0].T.contiguous()
        return W, G, N, X

    return run


def one_update(options: Options) -> Sheet:
    """The subspace update beside everything that could replace it, at d = n = 1024, rank 256, float32."""
    d = n = 1024
    rank, beta2 = 256, 0.99
    ours, bare = "subspace update with certificate", 'subspace update, certificate="none"'
    products, bare_products = "torch.mm, the products of the first", "torch.mm, the products of the second"

    def methods(power: float) -> dict[str, Callable[[], object]]:
        *before, A = gradients(d, n, 7, power)
        state, probes = warm(before, rank), gaussian(16, d, seed=1, like=A)
        C, B = sum((G @ G.T for G in before), torch.zeros(d, d)), state.factor()
        return {
            ours: lambda: sketch.update(state, A, beta2=beta2, solver="subspace", probes=probes),
            bare: lambda: sketch.update(state, A, beta2=beta2, solver="subspace"),
            products: own_products(state, A, probes),
            bare_products: own_products(state, A, None),
            "thin SVD of [√β₂ B, A]": lambda: torch.linalg.svd(
                torch.cat([beta2**0.5 * B, A], 1), full_matrices=False
            ),
            "exact update (QR + float64 SVD)": lambda: sketch.update(state, A, beta2=beta2),
            "β₂ C + A Aᵀ, eigendecomposition": lambda: torch.linalg.eigh((beta2 * C).addmm_(A, A.T)),
        }

    lines: list[tuple[str, ...]] = []
    notes = []
    for power in (1.0, 2.0):
        spectrum = f"i^-{power:.0f}"
        rounds = track(range(options.rounds), f"one update, λ = {spectrum}", transient=True)
        times = interleave(methods(power), rounds=rounds)
        for name, measured in times.items():
            lines.append((spectrum, name, str(measured), ratio(measured, times[ours])))
        lines.append(())
        over, over_bare = ratio(times[ours], times[products]), ratio(times[bare], times[bare_products])
        notes.append(f"over its own products, λ = {spectrum}: {over} with certificate, {over_bare} without")
    return {
        "title": f"one update, d = n = {d}, rank {rank}, float32, {options.threads} thread(s)",
        "columns": ("λ", "method", "time", "times the first"),
        "lines": lines,
        "caption": "\n".join(notes),
    }


def growth(options: Options) -> Sheet:
    """How the time of one subspace update grows with each of its sizes."""
    lines = []
    base = {"d": 1024, "n": 1024, "rank": 64}
    for name, sizes in {"d": [1024, 2048, 4096], "n": [1024, 2048, 4096], "rank": [32, 64, 128, 256]}.items():
        runs = {}
        for size in sizes:
            d, n, rank = ({**base, name: size}[key] for key in ("d", "n", "rank"))
            *before, A = gradients(d, n, 3, 1.0)
            state, W = warm(before, rank), gaussian(16, d, seed=1, like=A)
            runs[str(size)] = lambda s=state, A=A, W=W: sketch.update(
                s, A, beta2=0.99, solver="subspace", probes=W
            )
        rounds = track(range(max(3, options.rounds // 3)), f"growth in {name}", transient=True)
        times = interleave(runs, rounds=rounds)
        medians = [times[str(size)].median for size in sizes]
        milliseconds = ", ".join(f"{1e3 * median:.2f}" for median in medians)
        lines.append(
            (
                name,
                ", ".join(map(str, sizes)),
                milliseconds,
                f"{exponent(sizes, medians):.2f}",
            )
        )
    return {
        "title": "growth of one subspace update with certificate, float32 (1 is linear)",
        "columns": ("in", "sizes", "milliseconds", "fitted exponent"),
        "lines": lines,
    }


def image_rows(rows: int) -> Tensor:
    """Patches of 20 x 50 pixels from the two photographs that come with scikit-learn, in random order."""
    from sklearn.datasets import load_sample_images

    patches = []
    for image in load_sample_images().images:
        grey = torch.tensor(image).float().mean(-1) / 255
        patches.append(grey.unfold(0, 20, 5).unfold(1, 50, 5).reshape(-1, 1000))
    everything = torch.cat(patches)
    order = torch.randperm(len(everything), generator=torch.Generator().manual_seed(0))
    return everything[order[: rows // 50 * 50]].contiguous()  # IncrementalPCA refuses a short last batch


def streaming(options: Options) -> Sheet:
    """Vectors of real data, d = 1000, rank 50, beside IncrementalPCA with batches of 50."""
    from sklearn.decomposition import IncrementalPCA

    rank = batch = 50
    rows = image_rows(options.rows)
    centred = rows - rows.mean(0)  # IncrementalPCA removes the mean; without one, both see the same matrix
    C = centred.double().T @ centred.double()

    # Each method returns its approximation of C, which is formed later and not timed, and its error bound.
    Result = tuple[Callable[[], Tensor], Tensor | None]

    def ours(solver: str, blocks: int) -> Result:
        fd = FrequentDirections(1000, rank, solver=solver)
        for block in centred if blocks == 1 else centred.split(blocks):
            fd.update(block if blocks == 1 else block.mT)
        return fd.dense, fd.error_bound  # reading the bound adds the vectors in the buffer

    def theirs() -> Result:
        pca = IncrementalPCA(n_components=rank, batch_size=batch)
        for block in centred.split(batch):
            pca.partial_fit(block.numpy())

        def dense() -> Tensor:
            lam, mean = (torch.tensor(x).double() for x in (pca.singular_values_**2, pca.mean_))
            V = torch.tensor(pca.components_).double()
            return (V.T * lam) @ V + len(rows) * torch.outer(mean, mean)

        return dense, None

    runs: dict[str, Callable[[], Result]] = {
        "FrequentDirections exact, vector by vector": lambda: ours("exact", 1),
        "FrequentDirections exact, blocks of 50": lambda: ours("exact", batch),
        "FrequentDirections subspace, vector by vector": lambda: ours("subspace", 1),
        "FrequentDirections subspace, blocks of 50": lambda: ours("subspace", batch),
        "scikit-learn IncrementalPCA, batches of 50": theirs,
    }
    times = interleave(runs, rounds=track(range(3), "streaming", transient=True), repeats=1)
    lines = []
    first, largest = times[next(iter(times))], torch.linalg.matrix_norm(C, 2)
    for name, run in runs.items():
        approximation, certified = run()
        error = torch.linalg.matrix_norm(C - approximation(), 2) / largest
        micro = f"{1e6 * times[name].median / len(rows):.1f} µs"
        known = "none" if certified is None else f"{certified / largest:.5f}"
        lines.append((name, micro, ratio(times[name], first), f"{error:.5f}", known))
    return {
        "title": f"{len(rows)} image patches, d = 1000, rank {rank}, float32, {options.threads} thread(s)",
        "columns": ("method", "per vector", "times the first", "‖C - sketch‖ / ‖C‖", "certified"),
        "lines": lines,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    options = tyro.cli(Options, prog="python -m benchmarks.speed.frequent_directions", args=arguments)
    with user_mistakes("benchmarks.speed.frequent_directions"):
        at_least(1, threads=options.threads)
        at_least(3, rounds=options.rounds)  # for quartiles
        at_least(100, rows=options.rows)
    torch.set_num_threads(options.threads)
    console.print(f"torch {torch.__version__}, {platform.machine()}, {os.cpu_count()} cores")
    tables = {made.__name__: partial(made, options) for made in (one_update, growth, streaming)}
    show("benchmarks.speed.frequent_directions", tables, options, console)


if __name__ == "__main__":
    main()

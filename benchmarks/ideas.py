"""What was tried to make a step fast, each idea against what it replaced, interleaved in one run.

    python -m benchmarks.ideas [--rounds N]

The sizes are those of one GPT-2-small weight at rank 64, or 1024 x 1024 at rank 256. One thread.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import tyro
from rich.console import Console
from rich.table import Table
from torch import Tensor

import sketchy
from benchmarks.timing import interleave, ratio
from sketchy.core import linalg, momentum, panels


@dataclass(frozen=True)
class Options:
    """Time what was tried to make a step fast."""

    rounds: int = 15
    """Interleaved rounds."""


@dataclass(frozen=True)
class Idea:
    name: str
    kept: bool
    before: Callable[[], object]
    after: Callable[[], object]


def whole(run: Callable[[], object]) -> Callable[[], object]:
    """The same with stacks in one piece."""

    def at_once() -> object:
        size, panels._BYTES = panels._BYTES, 1 << 40
        try:
            return run()
        finally:
            panels._BYTES = size

    return at_once


def refined(N: Tensor, X: Tensor) -> Tensor:
    """One refinement of eigenvectors by products: quadratic near the truth, lost where eigenvalues meet."""
    R = torch.eye(len(N)) - X.mT @ X
    S = X.mT @ (N @ X)
    theta = S.diagonal() / (1 - R.diagonal())
    gaps = theta.unsqueeze(0) - theta.unsqueeze(1)
    return X + X @ torch.where(gaps.abs() > 1e-6, (S + theta * R) / gaps, R / 2)


def stepping(graft: str) -> Callable[[], None]:
    p = torch.nn.Parameter(torch.randn(2304, 768) / 50)
    p.grad = torch.randn(2304, 768)
    return sketchy.SketchyShampoo([p], graft=graft).step


def ideas() -> list[Idea]:
    m, n, l = 2304, 768, 64
    G, M, U, V = torch.randn(1, m, n), torch.randn(1, m, n), torch.randn(1, m, l), torch.randn(1, n, l)
    K, P, C = torch.randn(1, m, l), torch.randn(1, l, n), torch.randn(1, m, n)
    B = torch.randn(1, 1024, 256)
    W = B.mT @ B
    N = -W[0] / 1024
    H, L = torch.randn(1, n, m), torch.linalg.cholesky(K.mT @ K)
    X = torch.linalg.eigh(N)[1]
    ones = torch.ones(1)

    def advance() -> object:
        return momentum.advance_(M, G, 0.9, ones, moving_average=True, nesterov=True)

    def sequential() -> object:
        return C.baddbmm_(U, P).baddbmm_(K, V.mT)

    def fused() -> object:
        return C.baddbmm_(torch.cat([U, K + U @ (P @ V)], -1), torch.cat([P, V.mT], -2))

    def by_panels() -> None:
        for _, piece in panels.panels(C):
            C[piece].baddbmm_(U[piece], P).baddbmm_(K[piece], V.mT)

    def solved() -> object:
        Y = linalg.product(H.mT, V).addcmul_(U, ones)
        return torch.linalg.solve_triangular(L, Y.mT, upper=False).mT

    def solved_in_place() -> object:
        Y = (U * ones).add_(linalg.product(H.mT, V)).mT
        return torch.linalg.solve_triangular(L, Y, upper=False, out=Y).mT

    return [
        Idea(
            "largest entry, to see that all are finite → row norms, needed anyway",
            True,
            lambda: torch.linalg.vector_norm(G, torch.inf, dim=(1, 2)),
            lambda: torch.linalg.vector_norm(G, dim=-1),
        ),
        Idea(
            "norms along columns → sums of squares",
            True,
            lambda: torch.linalg.vector_norm(G, dim=-2),
            lambda: (G * G).sum(-2),
        ),
        Idea("momentum in one piece → by panels that stay in cache", True, whole(advance), advance),
        Idea(
            "Gᵀ (G V) as written → from the left where G lies transposed",
            True,
            lambda: G.mT @ (G @ V),
            lambda: linalg.product(G.mT, G @ V),
        ),
        Idea("(Gᵀ K + U λ) L⁻ᵀ as the product lies → by rows, in place", True, solved, solved_in_place),
        Idea(
            "Cholesky of 256 x 256 → on a stride that is no power of two",
            True,
            lambda: torch.linalg.cholesky_ex(W),
            lambda: linalg.cholesky(W),
        ),
        Idea(
            "a whole step, length by rows and columns → by rows", True, stepping("factored"), stepping("rows")
        ),
        Idea("both inverse roots in turn → in one product of twice the width", False, sequential, fused),
        Idea("both inverse roots in turn → by panels that stay in cache", False, sequential, by_panels),
        Idea(
            "eigendecomposition, 256 x 256 → one refinement by products",
            False,
            lambda: torch.linalg.eigh(N),
            lambda: refined(N, X),
        ),
    ]


def main(options: Options) -> None:
    torch.set_num_threads(1)
    table = Table(title="ideas for a faster step, float32, one thread")
    for column in ("idea: before → after", "before", "after", "before / after", "kept"):
        table.add_column(column)
    for idea in ideas():
        times = interleave(
            {"before": idea.before, "after": idea.after}, rounds=options.rounds, title=idea.name
        )
        before, after = times["before"], times["after"]
        row = (f"{1e3 * before.median:.2f} ms", f"{1e3 * after.median:.2f} ms", ratio(before, after))
        table.add_row(idea.name, *row, "yes" if idea.kept else "no")
    Console(width=150).print(table)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))

"""Time each idea for a faster step against the code that it replaces.

    python -m benchmarks.speed.step_ideas [--rounds N]

The sizes are those of one GPT-2-small weight at rank 64, or 1024 x 1024 at rank 256. Both versions take turns
on one core, and CPU time counts. Rows go to benchmarks/results/ideas.jsonl.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import tyro
from rich.progress import track
from torch import Tensor

import sketchy
from benchmarks.common.arguments import at_least
from benchmarks.common.process import pin
from benchmarks.common.provenance import machine
from benchmarks.common.results import RESULTS, load, save
from benchmarks.speed.step_table import about
from sketchy.analysis.markdown import table
from sketchy.analysis.timing import Times, interleave, ratio
from sketchy.core import linalg
from sketchy.core.tasks import run
from sketchy.core.tuned import panels, products
from sketchy.experiments.mistakes import user_mistakes

FILE = RESULTS / "ideas.jsonl"
COLUMNS = ("idea: before → after", "before", "after", "before / after", "kept")


@dataclass(frozen=True)
class Options:
    """Time each idea for a faster step against the code that it replaces."""

    rounds: int = 15
    """Interleaved rounds."""
    out: Path = FILE
    """The file of the rows."""
    table: Path | None = None
    """Print the rows of this file as a Markdown table, and measure nothing."""


@dataclass(frozen=True)
class Idea:
    name: str
    kept: bool
    before: Callable[[], object]
    after: Callable[[], object]


def refined(N: Tensor, X: Tensor) -> Tensor:
    """One refinement of eigenvectors by products. It is quadratic, but fails for equal eigenvalues."""
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
    N = -(B.mT @ B)[0] / 1024
    L = torch.linalg.cholesky(K.mT @ K)
    X = torch.linalg.eigh(N)[1]
    wide, thin, small = torch.randn(1, n, 3072), torch.randn(1, 3072, l), torch.full((1, 1, 1), 1e-9)
    one_pass = partial(torch._fused_sgd_, [M[0]], [C[0]], [], lr=1e-9, weight_decay=1e-9, momentum=0.0)

    def advance(rows: int = m) -> None:
        for g, x, y in zip(G.split(rows, 1), M.split(rows, 1), C.split(rows, 1), strict=True):
            torch.add(x.lerp_(g, 0.1), g, alpha=0.1, out=y)

    def sequential() -> object:
        return C.baddbmm_(U, P).baddbmm_(K, V.mT)

    def fused() -> object:
        return C.baddbmm_(torch.cat([U, K + U @ (P @ V)], -1), torch.cat([P, V.mT], -2))

    def by_panels() -> None:
        for _, piece in panels.panels(C):
            C[piece].baddbmm_(U[piece], P).baddbmm_(K[piece], V.mT)

    def solved() -> object:
        Y = products.product(G.mT, K) + V
        return torch.linalg.solve_triangular(L, Y.mT, upper=False).mT

    def solved_in_place() -> object:
        return products.solve_transposed_(products.add_product_(V.clone(), G.mT, K), L)

    def descended() -> object:
        return M.mul_(1 - small).addcmul_(C, small, value=-1)

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
        Idea("momentum in one piece → by panels that stay in cache", False, advance, lambda: advance(192)),
        Idea(
            "weight decay, then the step → torch's kernel for plain descent",
            True,
            descended,
            lambda: one_pass(dampening=0.0, nesterov=False, maximize=False, is_first_step=False),
        ),
        Idea(
            "Gᵀ (G V) as written → from the left where G lies transposed",
            True,
            lambda: G.mT @ (G @ V),
            lambda: products.product(G.mT, G @ V),
        ),
        Idea(
            "G K for a K that lies by columns → copied by rows",
            True,
            lambda: G @ P.mT,
            lambda: G @ products.by_rows(P.mT),
        ),
        Idea(
            "Uᵀ X, 768 x 3072, rows a page apart → 512 rows at a time",
            True,
            lambda: V.mT @ wide,
            lambda: products.product(wide.mT, V),
        ),
        Idea(
            "X + U Z, 768 x 3072, rows a page apart → Zᵀ by rows",
            True,
            lambda: wide.baddbmm_(V, thin.mT.contiguous()),
            lambda: products.add_outer_(wide, V, thin),
        ),
        Idea("(Gᵀ K + U λ) L⁻ᵀ → added in the product, solved where it lies", True, solved, solved_in_place),
        Idea(
            "Gram matrix of 1024 x 256 and its factor → three quarters of it, on a longer stride",
            True,
            lambda: torch.linalg.cholesky_ex(B.mT @ B),
            lambda: run(linalg.gram_factor(B)),
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


def measure(idea: Idea, rounds: int) -> dict[str, Any]:
    """CPU and wall seconds of both versions, by round."""
    runs = {"before": idea.before, "after": idea.after}
    times = interleave(runs, rounds=track(range(rounds), idea.name, transient=True))
    samples = {name: {"cpu": each.cpu, "wall": each.rounds} for name, each in times.items()}
    return {"idea": idea.name, "kept": idea.kept, "samples": samples}


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    def lines() -> Iterable[Sequence[str]]:
        for row in rows:
            before, after = (Times(row["samples"][name]["cpu"]) for name in ("before", "after"))
            times = (f"{1e3 * each.median:.2f} ms" for each in (before, after))
            yield row["idea"], *times, ratio(before, after), "yes" if row["kept"] else "no"

    return f"{table(COLUMNS, lines(), left=(COLUMNS[0], COLUMNS[-1]))}\n\n{about(rows[0])}"


def main(arguments: Sequence[str] | None = None) -> None:
    options = tyro.cli(Options, prog="python -m benchmarks.speed.step_ideas", args=arguments)
    with user_mistakes("benchmarks.speed.step_ideas"):
        at_least(2, rounds=options.rounds)  # for quartiles
        if options.table is not None:
            print(markdown(load(options.table, "idea")))
            return
        options.out.parent.mkdir(parents=True, exist_ok=True)  # fail now, not after the measurement
    pin()
    here = machine()
    rows = [{**measure(idea, options.rounds), **here} for idea in ideas()]
    with user_mistakes("benchmarks.speed.step_ideas"):
        save(options.out, rows)
    print(markdown(rows))


if __name__ == "__main__":
    main()

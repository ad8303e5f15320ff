"""The matrix-product floor: the large products of one step of ours and nothing else, by torch.mm or bmm.

The shapes come from the algorithm. Weights of one shape go through one batch. Results are written into
allocated memory. A triangular solve counts as a whole product, although it does about half of the work.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sketchy.core.axes import merge


@dataclass(frozen=True)
class Product:
    """(rows x inner) times (inner x columns)."""

    name: str
    rows: int
    inner: int
    columns: int
    solve: bool = False  # whether the step does a triangular solve instead

    @property
    def flops(self) -> int:
        return 2 * self.rows * self.inner * self.columns


def update(d: int, k: int, l: int) -> list[Product]:
    """Adding A (d x k) to a sketch of rank l: a power step, Cholesky-QR, a rotation."""
    if l == d:  # the whole covariance
        return [Product("U Λ Uᵀ", d, d, d), Product("A Aᵀ", d, k, d)]
    return [
        Product("K = Aᵀ U", k, d, l),
        Product("Kᵀ K", l, k, l),
        Product("Y = A K", d, k, l),
        Product("T = Y L⁻ᵀ", d, l, l, solve=True),
        Product("Tᵀ T", l, d, l),
        Product("Lᵀ L", l, l, l),
        Product("L⁻ᵀ V", l, l, l, solve=True),
        Product("T V", d, l, l),
    ]


def shampoo(m: int, n: int, left: int, right: int) -> list[Product]:
    """SketchyShampoo on an m x n weight: two updates, and two inverse roots applied to momentum."""
    products = []
    for d, k, l in ((m, n, left), (n, m, right)):
        products += [*update(d, k, l), Product("Uᵀ X", l, d, k), Product("U Uᵀ X", d, l, k)]
    return products


def whiten(d: int, k: int, l: int, r: int) -> list[Product]:
    """What whitening A (d x k) by the other sketch (k x r) adds to an update of a sketch of rank l."""
    if l == d:  # A W is formed, in float64
        return [Product("A V", d, k, r), Product("Vᵀ Aᵀ", r, k, d), Product("V (Vᵀ Aᵀ)", k, r, d)]
    return [Product("Vᵀ K", r, k, l), Product("W K", k, r, l), Product("W W K", k, r, l)]


def soap(m: int, n: int, left: int, right: int) -> list[Product]:
    """SketchySOAP: two updates, moments in the new bases, gradient and momentum in the bases, and back."""
    coordinates = [
        Product("Uᵀ X", left, m, n),
        Product("X V", m, n, right),
        Product("Uᵀ X V", left, n, right),
    ]
    l, r = left + 1, right + 1  # one more for the complement of a basis
    transport = [
        Product("new Uᵀ old U", left, m, left),
        Product("new Vᵀ old V", right, n, right),
        Product("what old U leaves", m, left, left),
        Product("what old V leaves", n, right, right),
        Product("cosines moments", l, l, r),
        Product("cosines moments cosinesᵀ", l, r, r),
    ]
    edges = [Product("left edge", left, right, n), Product("right edge", m, left, right)]
    if (m, n) == (left, right):
        back = [Product("U core", m, left, right), Product("U core Vᵀ", m, right, n)]
    else:
        back = [
            Product("U core", m, left, right),
            Product("core Vᵀ", left, right, n),
            Product("[U, edge] [inner; Vᵀ]", m, left + right, n),
        ]
    updates = [*update(m, n, left), *update(n, m, right)]
    whitened = [*whiten(m, n, left, right), *whiten(n, m, right, left)]
    return [*updates, *whitened, *transport, *coordinates, *edges, *coordinates, *back]


PRODUCTS = {"sketchy_shampoo": shampoo, "sketchy_soap": soap}


def stacks(optimizer: str, report: Iterable[Any]) -> list[tuple[int, list[Product]]]:
    """The number of sketched weights of each shape and rank, and the products of one of them."""
    kinds = Counter((merge(row.shape, None), row.ranks) for row in report if row.path == "sketch")
    return [
        (count, PRODUCTS[optimizer](*shape, *ranks))  # two axes, both sketched
        for (shape, ranks), count in kinds.items()
    ]


def flops(table: Sequence[tuple[int, list[Product]]], *, solves: bool = True) -> int:
    return sum(count * p.flops for count, products in table for p in products if solves or not p.solve)


def runner(table: Sequence[tuple[int, list[Product]]]) -> Callable[[], None]:
    """A function that does all products of a table."""
    memory: dict[tuple[str, int, int, int], Tensor] = {}

    def operand(role: str, count: int, rows: int, columns: int) -> Tensor:
        key = (role, count, rows, columns)
        if key not in memory:
            memory[key] = torch.randn(count, rows, columns)
        return memory[key] if count > 1 else memory[key][0]

    calls = [
        (
            torch.mm if count == 1 else torch.bmm,
            operand("in", count, p.rows, p.inner),
            operand("in", count, p.inner, p.columns),
            operand("out", count, p.rows, p.columns),
        )
        for count, products in table
        for p in products
    ]

    def run() -> None:
        for multiply, A, B, out in calls:
            multiply(A, B, out=out)

    return run

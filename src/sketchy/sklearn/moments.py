"""Count, mean and squares of rows that come in blocks, and what a block adds to the scatter beside its own.

PCA needs the scatter S = Σ (x - m)(x - m)ᵀ about the mean m of all rows, which is known only at the end. If k
new rows with the mean m' and the scatter S' join n rows with m and S, then

    S ← S + S' + b bᵀ    with    b = √(n k / (n + k)) (m' - m),

since Σ (x - c)(x - c)ᵀ = S + n (m - c)(m - c)ᵀ for n rows and any c: with the common mean as c, the last
terms for the old and for the new rows add up to b bᵀ. All three terms are positive semi-definite, and nothing
is ever subtracted. So a sketch of the centred new rows and of b, one more vector for each block, is a sketch
of S itself, however the rows are divided into blocks. Its guarantees hold for S as they are: B Bᵀ ⪯ S and
‖S - B Bᵀ‖ <= error_bound. To merge two estimators, S' is the scatter of the other one, and its sketch takes
the place of its rows.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Moments:
    """Of some rows; all that is known of them beside their sketch."""

    origin: Any  # the mean of the first block
    mean: Any  # of all rows, relative to the origin
    squares: Any  # Σ (x - mean)², by feature
    count: int
    energy: float  # Σ ‖x - origin‖²
    blocks: int

    @classmethod
    def nothing(cls, origin: Any) -> "Moments":
        return cls(origin, np.zeros_like(origin), np.zeros_like(origin), count=0, energy=0.0, blocks=0)

    def join(self, other: "Moments") -> "tuple[Moments, Any]":
        """The rows of both, and b, by whose b bᵀ the scatter exceeds the sum of both scatters."""
        n, k = self.count, other.count
        apart = (other.origin - self.origin) + (other.mean - self.mean)
        between = (n * k / (n + k)) ** 0.5 * apart
        both = Moments(
            self.origin,
            self.mean + k / (n + k) * apart,
            self.squares + other.squares + between**2,
            n + k,
            self.energy + other.energy,
            self.blocks + other.blocks,
        )
        return both, between

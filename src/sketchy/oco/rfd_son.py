"""RFD-SON."""

from torch import Tensor

from sketchy.oco.norm import pseudo_power
from sketchy.oco.sketched import Sketched


class RFDSON(Sketched):
    """RFD-SON (Luo et al. 2019): w ← w - (Ḡ + α I)⁻¹ g, Ḡ the FD sketch of Σ g gᵀ / (η t).

    Robust Frequent Directions adds half of the escaped mass to the diagonal: α = δ + ρ_{1:t} / 2. The paper
    uses δ = 0, which is RFD_0.
    """

    name = "rfd-son"
    escaped_share = 0.5

    def _scale(self) -> Tensor:
        return (self.eta * self.round).rsqrt()

    def _inverse(self, z: Tensor, alpha: Tensor) -> Tensor:
        return pseudo_power(z + alpha, -1.0, threshold=self.threshold)

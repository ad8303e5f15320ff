"""FD-SON."""

from torch import Tensor

from sketchy.oco.norm import pseudo_power
from sketchy.oco.sketched import Sketched


class FDSON(Sketched):
    """FD-SON (Luo et al. 2016): w ← w - (Ḡ + δ I)⁻¹ g, Ḡ the FD sketch of Σ g gᵀ / (η √t)."""

    name = "fd-son"
    needs_delta = True

    def _scale(self) -> Tensor:
        return (self.eta * self.round**0.5).rsqrt()

    def _inverse(self, z: Tensor, alpha: Tensor) -> Tensor:
        return pseudo_power(z + alpha, -1.0, threshold=self.threshold)

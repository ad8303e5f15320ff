"""Ada-FD."""

from torch import Tensor

from sketchy.oco.norm import pseudo_power
from sketchy.oco.sketched import Sketched


class AdaFD(Sketched):
    """Ada-FD (Wan and Zhang 2021): w ← w - η (Ḡ^(1/2) + δ I)⁻¹ g, Ḡ the FD sketch of Σ g gᵀ.

    It does not compensate for the mass that escapes the sketch. Obs. 2 shows the cost, see
    :mod:`sketchy.oco.counterexample`.
    """

    name = "ada-fd"
    needs_delta = True

    def _inverse(self, z: Tensor, alpha: Tensor) -> Tensor:
        return self.eta * pseudo_power(z.sqrt() + alpha, -1.0, threshold=self.threshold)

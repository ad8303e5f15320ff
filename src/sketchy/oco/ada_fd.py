"""Ada-FD."""

from torch import Tensor

from sketchy.oco.norm import pseudo_power
from sketchy.oco.sketched import Sketched


class AdaFD(Sketched):
    """Ada-FD (Wan and Zhang 2021): w ← w - η (Ḡ^(1/2) + δ I)⁻¹ g; what escapes the sketch is not made up for.

    Obs. 2 shows what that costs, see :mod:`sketchy.oco.counterexample`.
    """

    name = "ada-fd"
    needs_delta = True

    def _inverse(self, z: Tensor, alpha: Tensor) -> Tensor:
        return self.eta * pseudo_power(z.sqrt() + alpha, -1.0, threshold=self.threshold)

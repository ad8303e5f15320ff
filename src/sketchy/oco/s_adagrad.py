"""S-AdaGrad, the paper's learner."""

from typing import Any

from torch import Tensor

from sketchy.oco.norm import pseudo_power
from sketchy.oco.sketched import Sketched


class SAdaGrad(Sketched):
    """S-AdaGrad (Alg. 2): w ← w - η G̃^(-1/2) g with G̃ = Ḡ + ρ_{1:t} I + δ I, Ḡ the FD sketch of Σ g gᵀ.

    It projects in the norm of G̃^(1/2). With ``parameter_free`` it projects in the norm of (G̃ + I)^(1/2), the
    variant at the end of Sec. 4.1; delta=1 adds the I to the step too. The paper gives no bound for this
    variant; ours is :func:`sketchy.core.regret.s_adagrad_parameter_free`.
    """

    name = "s-adagrad"
    escaped_share = 1.0

    def __init__(self, dim: int, *, parameter_free: bool = False, **options: Any) -> None:
        self.parameter_free = parameter_free
        super().__init__(dim, **options)

    def _inverse(self, z: Tensor, alpha: Tensor) -> Tensor:
        return self.eta * pseudo_power(z + alpha, -0.5, threshold=self.threshold)

    def _curvature(self, z: Tensor, alpha: Tensor) -> Tensor:
        if self.parameter_free:
            alpha = alpha + 1.0
        return pseudo_power(z + alpha, 0.5, threshold=self.threshold)

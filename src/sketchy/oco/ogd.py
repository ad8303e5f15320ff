"""Online gradient descent."""

from torch import Tensor

from sketchy.oco.learner import Learner
from sketchy.oco.norm import Norm


class OGD(Learner):
    """Online gradient descent: w ← w - η g / √(t + δ), the baseline of the paper's Table 3."""

    name = "ogd"

    def _step(self, g: Tensor) -> Tensor:
        return self.eta / (self.round + self.delta).sqrt() * g

    def _norm(self) -> Norm | None:
        return None

"""What the sketched learners share: an FD sketch of the gradients, a growing diagonal, one update."""

from abc import abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor

from sketchy.core.arguments import check_count
from sketchy.core.rank_one import fold_, orthonormal
from sketchy.oco.learner import Learner
from sketchy.oco.norm import LowRank, Norm, noise_beside

# Each update rotates the basis and adds rounding errors. Orthonormalising it now and then removes them.
CORRECT_EVERY = 64


class Sketched(Learner):
    """A preconditioner f(z + α) on the eigenvectors of an FD sketch with eigenvalues z, and f(α) elsewhere.

    A subclass defines f, the factor that scales gradients before they are sketched, and the share of the
    escaped mass ρ that is added to the diagonal α. α starts at δ. ``sketch_size`` is l: l - 1 directions are
    kept.
    """

    uses_sketch_size = True
    escaped_share: ClassVar[float] = 0.0  # the share of ρ that is added to α
    _tensors = ("basis", "eigenvalues", "diagonal")

    def __init__(self, dim: int, *, sketch_size: int = 10, **options: Any) -> None:
        check_count("sketch_size", sketch_size, 2, "at least 2 (one kept direction and a free one)")
        self.sketch_size = min(sketch_size, dim)
        super().__init__(dim, **options)

    def _begin(self) -> None:
        self._basis = self._zeros(self.sketch_size, self.dim)  # ascending eigenvalues; the first row is free
        self._eigenvalues = self._zeros(self.sketch_size)
        self._diagonal = self.delta.clone()  # α, (P, 1)
        self.threshold = noise_beside(self.delta)

    @torch.inference_mode()
    def _step(self, g: Tensor) -> Tensor:
        folded = fold_(self._basis, self._eigenvalues, g, self._scale())
        self._eigenvalues = folded.eigenvalues
        if self.escaped_share:
            self._diagonal = torch.add(self._diagonal, folded.escaped, alpha=self.escaped_share)
        step = folded.combine(self._inverse(self._eigenvalues, self._diagonal))
        self._basis = folded.basis()
        if self.round % CORRECT_EVERY == 0:
            self._basis = orthonormal(self._basis)
        return step

    def _scale(self) -> Tensor | None:
        """The factor (P, 1) that multiplies this round's gradient before it is sketched; None is 1."""
        return None

    @abstractmethod
    def _inverse(self, z: Tensor, alpha: Tensor) -> Tensor:
        """The step's weights on eigenvectors of eigenvalues z (P, l). z = 0 stands for the space outside."""

    def _curvature(self, z: Tensor, alpha: Tensor) -> Tensor:
        """The eigenvalues of the norm to project in. By default the step divides by them."""
        weight = self._inverse(z, alpha)
        return torch.where(weight == 0, 0.0, 1 / weight)

    def _norm(self) -> Norm | None:
        curvature = self._curvature(self._eigenvalues, self._diagonal)
        return LowRank(self._basis, curvature, curvature[:, :1])  # the first eigenvalue is 0, as outside

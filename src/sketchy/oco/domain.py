"""The decision set K and projection on it in a norm: argmin over x in K of (y - x)ᵀ S (y - x)."""

from abc import ABC, abstractmethod

from torch import Tensor

from sketchy.oco.norm import Norm


class Domain(ABC):
    """A closed convex set K."""

    @abstractmethod
    def project(self, y: Tensor, norm: Norm | None) -> Tensor:
        """The point of K nearest to each row of y (P, d) in ``norm`` (None: the Euclidean one)."""


class Everything(Domain):
    """K is the whole space."""

    def project(self, y: Tensor, norm: Norm | None) -> Tensor:
        return y

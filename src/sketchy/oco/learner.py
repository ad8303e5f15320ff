"""The contract of an online learner: a point to play, and an update by the gradient found there."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from sketchy.oco.domain import Domain, Everything
from sketchy.oco.norm import Norm


class Learner(ABC):
    """Plays ``point``, is told the gradient there by ``update``; one row per setting.

    ``eta`` and ``delta`` are numbers, or 1-D tensors of P settings that are run side by side (they
    are broadcast together); then ``point`` and gradients are (P, dim), else (dim,). Settings never
    mix: one that overflows turns to inf or nan in its own row.

    ``domain`` is the set K; after each step the point is projected on it in the norm of the current
    preconditioner. ``start`` is the first point, the projection of 0 by default.

    A subclass names its tensors in ``_tensors``, builds them in ``_begin`` and gives its rule in ``_step``.
    """

    name: ClassVar[str]
    uses_sketch_size: ClassVar[bool] = False
    needs_delta: ClassVar[bool] = False  # sweeps tune delta as well as eta; the others run at delta = 0
    _tensors: tuple[str, ...] = ()

    def __init__(
        self,
        dim: int,
        *,
        eta: float | Tensor,
        delta: float | Tensor = 0.0,
        domain: Domain | None = None,
        start: Tensor | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        if dim < 1:
            raise ValueError(f"dim={dim}: must be at least 1")
        rate, offset = torch.as_tensor(eta, dtype=dtype), torch.as_tensor(delta, dtype=dtype)
        shape = torch.broadcast_shapes(rate.shape, offset.shape)
        if len(shape) > 1:
            raise ValueError(f"eta and delta have the shape {tuple(shape)}: must be numbers or 1-D tensors")
        if not bool((rate > 0).all()):
            raise ValueError(f"eta={eta}: must be positive")
        if not bool((offset >= 0).all()):
            raise ValueError(f"delta={delta}: must not be negative")
        self.dim, self.dtype, self.domain = dim, dtype, domain or Everything()
        self._batched = len(shape) == 1
        self.eta: Tensor = rate.expand(shape).reshape(-1, 1).clone()  # (P, 1), to meet (P, d)
        self.delta: Tensor = offset.expand(shape).reshape(-1, 1).clone()
        self.round = 0  # t, how many gradients were seen
        first = torch.zeros(dim, dtype=dtype) if start is None else torch.as_tensor(start, dtype=dtype)
        if first.shape[-1:] != (dim,) or first.ndim > 2:
            raise ValueError(f"start has the shape {tuple(first.shape)}: must be ({dim},) or (P, {dim})")
        self._point = self.domain.project(first.expand(self.settings, dim).clone(), None)
        self._begin()

    @property
    def settings(self) -> int:
        """P, how many settings run side by side."""
        return self.eta.shape[0]

    @property
    def point(self) -> Tensor:
        """Where the learner plays now: (P, dim), or (dim,) for a single setting given by numbers."""
        return self._point if self._batched else self._point[0]

    @torch.no_grad()
    def update(self, gradient: Tensor) -> None:
        """One round: learn the gradient at ``point``, move, and project on the domain."""
        if gradient.shape != self.point.shape:
            raise ValueError(
                f"gradient has the shape {tuple(gradient.shape)}: must be that of the point, "
                f"{tuple(self.point.shape)}"
            )
        g = gradient.to(self.dtype)
        self.round += 1
        moved = self._point - self._step(g if self._batched else g.unsqueeze(0))
        self._point = (
            moved if isinstance(self.domain, Everything) else self.domain.project(moved, self._norm())
        )

    @torch.no_grad()
    def restart(self, start: Tensor) -> None:
        """Forget everything and start at ``start`` (Alg. 4 does so in each episode)."""
        self.round = 0
        point = torch.as_tensor(start, dtype=self.dtype).expand(self.settings, self.dim).clone()
        self._point = self.domain.project(point, None)
        self._begin()

    def state_dict(self) -> dict[str, Tensor]:
        """Flat names to copies of tensors; restoring them and going on equals never having stopped."""
        state = {name: getattr(self, f"_{name}").clone() for name in ("point", *self._tensors)}
        return {"round": torch.tensor(self.round), **state}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        expected = self.state_dict()
        if state.keys() != expected.keys():
            raise ValueError(f"state has the keys {sorted(state)}: must have exactly {sorted(expected)}")
        for name in ("point", *self._tensors):
            mine, theirs = expected[name], state[name]
            if theirs.shape != mine.shape or theirs.dtype != mine.dtype:
                raise ValueError(
                    f"state[{name!r}] is {tuple(theirs.shape)} {theirs.dtype}: must be {tuple(mine.shape)} "
                    f"{mine.dtype}, as for a learner made with the same options"
                )
        self.round = int(state["round"])
        for name in ("point", *self._tensors):
            setattr(self, f"_{name}", state[name].clone())

    # -- what a learner fills in -----------------------------------------------------------------

    def _begin(self) -> None:  # noqa: B027 (a learner without state has nothing to begin)
        """Set the tensors of ``_tensors`` (kept under a leading underscore) to those of round 0."""

    @abstractmethod
    def _step(self, g: Tensor) -> Tensor:
        """Take in g (P, dim) as round ``self.round`` = 1, 2, ...; return what to subtract from the point."""

    @abstractmethod
    def _norm(self) -> Norm | None:
        """The norm to project in, that of the preconditioner after ``_step``; None is the plain one."""

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(self.settings, *shape, dtype=self.dtype)

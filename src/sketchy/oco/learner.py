"""The contract of an online learner: it plays a point, and updates it by the gradient there."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from sketchy.oco.domain import Domain, Everything
from sketchy.oco.norm import Norm


class Learner(ABC):
    """Plays ``point``; ``update`` takes the gradient at that point.

    ``eta`` and ``delta`` are numbers, or 1-D tensors of P settings that run as a batch (they are broadcast
    together). With tensors, ``point`` and gradients are (P, dim), otherwise (dim,). Settings do not affect
    each other: if one overflows, only its own row becomes inf or nan.

    ``domain`` is the set K. After each step the point is projected onto it in the norm of the current
    preconditioner. ``start`` is the first point, by default the projection of 0.

    A subclass lists its tensors in ``_tensors``, creates them in ``_begin``, and computes its step in
    ``_step``.
    """

    name: ClassVar[str]
    uses_sketch_size: ClassVar[bool] = False
    needs_delta: ClassVar[bool] = False  # a sweep tunes eta and delta; for other learners delta is 0
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
        self.round = 0  # t, the number of gradients so far
        first = torch.zeros(dim, dtype=dtype) if start is None else torch.as_tensor(start, dtype=dtype)
        if first.shape[-1:] != (dim,) or first.ndim > 2:
            raise ValueError(f"start has the shape {tuple(first.shape)}: must be ({dim},) or (P, {dim})")
        self._point = self.domain.project(first.expand(self.settings, dim).clone(), None)
        self._begin()

    @property
    def settings(self) -> int:
        """P, the number of settings."""
        return self.eta.shape[0]

    @property
    def point(self) -> Tensor:
        """The current point: (P, dim), or (dim,) for a single setting given by numbers."""
        return self._point if self._batched else self._point[0]

    @torch.no_grad()
    def update(self, gradient: Tensor) -> None:
        """One round: take the gradient at ``point``, step, and project onto the domain."""
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
        """Reset the state and start at ``start`` (Alg. 4 does this in each episode)."""
        self.round = 0
        point = torch.as_tensor(start, dtype=self.dtype).expand(self.settings, self.dim).clone()
        self._point = self.domain.project(point, None)
        self._begin()

    def state_dict(self) -> dict[str, Tensor]:
        """Copies of all tensors by name. A run that is restored from them continues bit for bit."""
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

    # -- to be defined by a learner --------------------------------------------------------------

    def _begin(self) -> None:  # noqa: B027 (a learner without state has nothing to begin)
        """Set the tensors of ``_tensors`` for round 0. The tensor "x" is the attribute ``_x``."""

    @abstractmethod
    def _step(self, g: Tensor) -> Tensor:
        """Learn from g (P, dim) in round ``self.round`` = 1, 2, ...; return the step to subtract."""

    @abstractmethod
    def _norm(self) -> Norm | None:
        """The norm to project in: that of the preconditioner after ``_step``. None is the Euclidean norm."""

    def _zeros(self, *shape: int) -> Tensor:
        return torch.zeros(self.settings, *shape, dtype=self.dtype)

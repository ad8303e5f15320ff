"""The gradient covariances of a training run: kept in full, sketched, or read from an optimizer's state.

For a weight with gradients G_i these are L = Σ_i β₂^(t-i) G_i G_iᵀ and R = Σ_i β₂^(t-i) G_iᵀ G_i.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sketchy.core import sketch as core
from sketchy.core.allocation import losses, spectrum
from sketchy.core.axes import layout, merge, unfold
from sketchy.core.linalg import gaussian
from sketchy.core.sketch import Sketch
from sketchy.core.tasks import certain, without_autocast
from sketchy.optim.covariances import KnownCovariance
from sketchy.optim.engine import Engine

_TOO_LARGE = 1e34  # a gradient with an entry this large counts as Inf: squares and norms would overflow
_PROBES = 16  # Gaussian vectors that give a sketch its certified error

AXES = ("left", "right")  # L and R

Include = Callable[[str, Tensor], bool]  # whether to watch a weight, by name and tensor


@dataclass(frozen=True)
class Covariance:
    """Bounds on the spectra of S covariances C, each d x d (Sec. 5.2).

    Let λ be the ``eigenvalues``, followed by zeros. Then λ_i - below <= λ_i(C) <= λ_i + above for all i <= d.
    For a sketch B Bᵀ, ``above`` is its certified error and ``below`` is 0: this is Weyl's inequality for
    0 ⪯ C - B Bᵀ ⪯ above I (up to rounding).
    """

    dim: int  # d
    eigenvalues: Tensor  # λ, (S, l), descending
    escaped_mass: Tensor  # ρ, (S,)
    below: Tensor  # (S,)
    above: Tensor  # (S,)
    trace: Tensor | None = None  # tr C, (S,), if it is known
    columns: int | None = None  # ρ was subtracted from at least so many directions; None: from all l

    @property
    def exact(self) -> bool:
        """Whether all d eigenvalues are kept."""
        return self.eigenvalues.shape[-1] == self.dim

    def top_share(self, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """Σ_{i <= k} λ_i(C) / tr C: a lower bound, an estimate and an upper bound, (S,) each; NaN for C = 0.

        Let K be the sum of the k largest eigenvalues, N that of the others, and T = K + N the trace. By Weyl,

            K >= Σ_{i <= k} (λ_i - below)₊       K <= Σ_{i <= k} λ_i + k above
            N >= Σ_{i > k} (λ_i - below)₊        N <= Σ_{i > k} λ_i + (d - k) above

        If T is known, bounds on N give bounds on K, and the reverse. K / (K + N) increases with K and
        decreases with N, so it is extreme where K and N are. It is at least k / d. If T is not known,
        T >= Σ λ + l ρ, because ρ was subtracted from l directions (or fewer: ``columns``).

        The estimate adds ρ back to each direction: (Σ_{i <= k} λ_i + k ρ) / T, where T is tr C, or
        Σ λ + d ρ if that is not known. It is clipped to the bounds. At full rank it is exact.
        """
        lam, rho, rest = self.eigenvalues, self.escaped_mass, self.dim - k
        lowered = (lam - self.below.unsqueeze(-1)).clamp(min=0)
        (K, N), (K_low, N_low) = ((x[..., :k].sum(-1), x[..., k:].sum(-1)) for x in (lam, lowered))
        K_high, N_high = K + k * self.above, N + rest * self.above
        columns = lam.shape[-1] if self.columns is None else self.columns
        T_low = K_low + N_low + columns * rho if self.trace is None else self.trace
        T_high = K_high + N_high if self.trace is None else self.trace
        K_low, K_high = torch.maximum(K_low, T_low - N_high), torch.minimum(K_high, T_high - N_low)
        low = (K_low / torch.minimum(K_low + N_high, T_high)).clamp(min=k / self.dim, max=1.0)
        high = torch.maximum(low, (K_high / torch.maximum(K_high + N_low, T_low)).clamp(max=1.0))
        trace = K + N + self.dim * rho if self.trace is None else self.trace
        return low, torch.clamp((K + k * rho) / trace, low, high), high

    def lost(self, ranks: Sequence[int]) -> Tensor:
        """The estimated share of directions that a sketch loses (S, number of ranks): `core.allocation`."""
        lam, lost = self.eigenvalues, None
        if self.trace is not None:
            lost = self.trace - lam.sum(-1)
        return losses(spectrum((lam, self.escaped_mass, self.above), self.dim, lost), ranks)

    def intrinsic_dimension(self) -> tuple[Tensor, Tensor, Tensor]:
        """tr C / λ_max(C), between 1 and d: a lower bound, an estimate and an upper bound, (S,) each."""
        low, estimate, high = self.top_share(1)
        return 1 / high, 1 / estimate, 1 / low


@dataclass(frozen=True)
class Reading:
    """The covariances of one axis of one weight."""

    parameter: str
    axis: str
    covariance: Covariance  # one for each block
    skipped: Tensor  # (): gradients that were not finite
    whitened: bool = False  # whether the gradients were whitened by the other axis first


@dataclass(frozen=True)
class Settings:
    """How `Gradients` keeps covariances."""

    beta2: float
    exact_up_to: int  # the longest axis whose full covariance is kept
    rank: int  # of the sketches for longer axes
    block_size: int | None


class Gradients:
    """Covariances of the gradients, for any optimizer. They are updated at each step."""

    def __init__(self, settings: Settings, include: Include | None) -> None:
        self._settings, self._include = settings, include
        self._weights: dict[Tensor, _Weight | None] = {}  # None: not watched

    def observe(self, name: str, p: Tensor) -> None:
        if p.grad is None:
            return
        if p not in self._weights:
            watched = _is_matrix(p) and (self._include is None or self._include(name, p))
            self._weights[p] = _Weight(p, self._settings) if watched else None
        weight = self._weights[p]
        if weight is not None:
            with without_autocast(p.device):
                weight.observe_(p.grad.to_dense())

    def readings(self, parameters: Iterable[tuple[str, Tensor]]) -> Iterator[Reading]:
        for name, p in parameters:
            weight = self._weights.get(p)
            if weight is not None:
                yield from weight.readings(name)

    def state(self, parameters: Iterable[tuple[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
        found = ((name, self._weights.get(p)) for name, p in parameters)
        return {name: weight.state() for name, weight in found if weight is not None}

    def load(self, parameters: Iterable[tuple[str, Tensor]], state: Mapping[str, dict[str, Tensor]]) -> None:
        for name, p in parameters:
            if name in state:
                weight = _Weight(p, self._settings)
                weight.load_(name, state[name])
                self._weights[p] = weight


class States:
    """Covariances read from the state of one of our optimizers."""

    def __init__(self, optimizer: Engine, include: Include | None) -> None:
        self._optimizer, self._include = optimizer, include

    def observe(self, name: str, p: Tensor) -> None:
        """Nothing to do: the optimizer's step has done it."""

    def state(self, parameters: Iterable[tuple[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
        """Empty: the optimizer's state contains everything."""
        return {}

    def load(self, parameters: Iterable[tuple[str, Tensor]], state: Mapping[str, dict[str, Tensor]]) -> None:
        pass

    def readings(self, parameters: Iterable[tuple[str, Tensor]]) -> Iterator[Reading]:
        known: dict[Tensor, list[KnownCovariance]] = {}
        for each in self._optimizer.covariances():
            known.setdefault(each.parameter, []).append(each)
        for name, p in parameters:
            if self._include is not None and not self._include(name, p):
                continue
            for each in known.get(p, ()):
                lam, rho, bound = each.sketch.eigenvalues, each.sketch.escaped_mass, each.sketch.error_bound
                below = bound if each.exact else torch.zeros_like(bound)  # rounding errors have both signs
                dim, trace = each.sketch.dim, each.trace
                covariance = Covariance(dim, lam, rho, below, bound, trace, each.columns)
                yield Reading(name, each.axis, covariance, each.skipped, each.whitened)


class _Weight:
    """L and R of the blocks of one weight, and their common trace."""

    def __init__(self, p: Tensor, settings: Settings) -> None:
        self.settings = settings
        self.layout = layout(tuple(p.shape), merge_dims=None, block_size=settings.block_size)
        count, device = self.layout.count, p.device
        self.work = torch.float64 if p.dtype == torch.float64 else torch.float32
        self.trace = torch.zeros(count, dtype=torch.float64, device=device)
        self.skipped = torch.zeros((), dtype=torch.int64, device=device)
        self.seen = 0
        self.factors: list[Tensor | Sketch] = [
            torch.zeros(count, dim, dim, dtype=torch.float64, device=device)
            if dim <= max(settings.exact_up_to, settings.rank)
            else core.empty(dim, settings.rank, batch=(count,), dtype=self.work, device=device)
            for dim in self.layout.block
        ]

    def observe_(self, gradient: Tensor) -> None:
        """Add a gradient. If it is not finite, only count it. This code reads no value from the device."""
        G = self.layout.split(gradient.unsqueeze(0).to(self.work))
        good = torch.linalg.vector_norm(G, torch.inf) < _TOO_LARGE  # false for NaN
        G = torch.where(good, G, 0.0)
        decay = 1 - (1 - self.settings.beta2) * good.double()
        norm = torch.linalg.vector_norm(G, dim=(-2, -1), dtype=torch.float64)
        self.trace = decay * self.trace + norm.square()
        for i, factor in enumerate(self.factors):
            A = unfold(G, i)
            if isinstance(factor, Tensor):
                A = A.double()
                factor.mul_(decay).baddbmm_(A, A.mT)
            else:
                self.factors[i] = self._fold(factor, A, good)
        self.skipped += ~good
        self.seen += 1

    def _fold(self, sketch: Sketch, A: Tensor, good: Tensor) -> Sketch:
        probes = gaussian(_PROBES, sketch.dim, seed=self.seen, like=sketch.basis)
        new = core.update(sketch, A, beta2=self.settings.beta2, solver="subspace", probes=probes)
        if certain(good):
            return new
        old = sketch.tensors
        kept: dict[str, Any] = {name: torch.where(good, x, old[name]) for name, x in new.tensors.items()}
        return Sketch(**kept)

    def readings(self, name: str) -> Iterator[Reading]:
        for axis, factor in zip(AXES, self.factors, strict=True):
            if isinstance(factor, Tensor):
                lam = torch.linalg.eigvalsh(factor).flip(-1).clamp(min=0)
                zero = torch.zeros_like(self.trace)
                known = Covariance(lam.shape[-1], lam, zero, zero, zero, lam.sum(-1))
            else:
                lam, rho, bound = factor.eigenvalues, factor.escaped_mass, factor.error_bound
                known = Covariance(factor.dim, lam, rho, torch.zeros_like(bound), bound, self.trace)
            yield Reading(name, axis, known, self.skipped)

    def state(self) -> dict[str, Tensor]:
        """The state as a flat dict of tensors, not copied."""
        counts = {"trace": self.trace, "skipped": self.skipped, "seen": torch.tensor(self.seen)}
        for axis, factor in zip(AXES, self.factors, strict=True):
            fields = {"covariance": factor} if isinstance(factor, Tensor) else factor.tensors
            counts |= {f"{axis}_{field}": value for field, value in fields.items()}
        return counts

    def load_(self, name: str, state: Mapping[str, Tensor]) -> None:
        """Replace the covariances by saved ones."""
        shapes, theirs = ({key: x.shape for key, x in each.items()} for each in (self.state(), state))
        if shapes != theirs:
            raise ValueError(
                f"the saved covariances of {name!r} are {_described(theirs)}, not {_described(shapes)}:"
                " give the monitor the same exact_up_to, rank and block_size as when they were saved"
            )
        for key, value in self.state().items():
            value.copy_(state[key])
        self.seen = int(state["seen"])


def _described(shapes: Mapping[str, torch.Size]) -> str:
    return ", ".join(f"{key} {'x'.join(map(str, shape))}" for key, shape in shapes.items() if len(shape) > 1)


def _is_matrix(p: Tensor) -> bool:
    return p.numel() > 0 and not p.is_complex() and len(merge(tuple(p.shape), None)) == 2

"""What the state of a parameter says about the covariances of its gradients, axis by axis."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from sketchy.core.sketch import Sketch
from sketchy.optim.plan import Plan
from sketchy.optim.slots import State, fits


@dataclass(frozen=True)
class KnownCovariance:
    """The covariances of one axis of one parameter, one for each block, as far as the state knows them."""

    parameter: Tensor
    axis: str  # left, right, only, axis0, ...
    sketch: Sketch  # (blocks, ...), as it is stored
    exact: bool  # whether the full covariance is kept
    whitened: bool  # whether it is the covariance of gradients that the other axis has whitened
    trace: Tensor | None  # (blocks,): of the covariance, up to rounding; None if the state does not know it
    skipped: Tensor  # (): gradients that were not finite
    columns: int | None = None  # ρ was subtracted from at least so many directions; None: from all

    def escaped_share(self) -> Tensor:
        """The share of ρ I in tr(B Bᵀ + ρ I), (blocks,)."""
        escaped = self.sketch.dim * self.sketch.escaped_mass
        return escaped / (self.sketch.eigenvalues.sum(-1) + escaped).clamp(min=1e-300)

    def certified_error(self) -> Tensor:
        """An upper bound on ‖C - B Bᵀ‖ / ‖B Bᵀ + ρ I‖, (blocks,)."""
        largest = self.sketch.eigenvalues[..., 0] + self.sketch.escaped_mass
        return self.sketch.error_bound / largest.clamp(min=1e-300)


def known_covariances(
    p: Tensor, plan: Plan, state: State, options: Mapping[str, Any]
) -> Iterator[KnownCovariance]:
    """The covariances of a parameter, axis by axis."""
    slots = plan.statistics.slots
    if not fits({name: state.get(name) for name in slots}, slots):  # the next step would refuse this state
        return
    energy, whitened = plan.gradient_energy(state, options), plan.statistics.whitened
    for axis in plan.statistics.live:
        sketch = axis.stored(state)
        trace = sketch.eigenvalues.sum(-1) if energy is None and axis.exact else energy
        columns = None if options.get("budget") is None else 2  # it may have grown
        yield KnownCovariance(p, axis.name, sketch, axis.exact, whitened, trace, state["skipped"], columns)

"""A parameter's state, a flat dict of tensors: made, stacked for a step, written back, loaded.

Keys have no dots (distributed checkpoints split at them) and values are tensors only. All of it exists
after a parameter's first step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from sketchy.core.sketch import Sketch, empty, exchange_error
from sketchy.optim.plan import Axis, Plan

State = dict[str, Any]
Group = dict[str, Any]  # one of param_groups
_FIELDS = tuple(field.name for field in fields(Sketch))


def create(p: Tensor, plan: Plan) -> State:
    """The state of a parameter that has seen no gradient."""
    state: State = {
        name: torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu" if tensor.on_host else p.device)
        for name, tensor in plan.state.items()
    }
    for axis in plan.axes:
        if axis is not None:
            basis = empty(axis.dim, axis.rank, dtype=plan.work, device=p.device).basis
            state[f"{axis.name}_basis"].copy_(basis)  # the same in each block
    return state


def fits(state: State, plan: Plan) -> bool:
    """Whether a state is one of this plan."""
    return state.keys() == plan.state.keys() and all(
        state[name].shape == tensor.shape for name, tensor in plan.state.items()
    )


class Stack:
    """Parameters of one group with one plan, going through a step together; ``due``: sketches see it."""

    def __init__(
        self, params: Sequence[Tensor], states: Sequence[State], plan: Plan, group: Group, due: bool
    ) -> None:
        self.params, self.states, self.plan, self.group, self.due = params, states, plan, group, due

    def gather(self) -> dict[str, Tensor]:
        """The stacked state: (K, ...), or (K * blocks, ...) where a tensor has one entry a block.

        What is as large as the weight is not in it, nor what lies on the host.
        """
        return {
            name: self.stacked(name)
            for name, tensor in self.plan.state.items()
            if not tensor.whole and not tensor.on_host
        }

    def stacked(self, name: str) -> Tensor:
        """One tensor of the state; of a single parameter in its own memory."""
        return stacked(self.own(name)).flatten(0, 1 if self.plan.state[name].per_block else 0)

    def put_back(self, name: str, value: Tensor) -> None:
        """Write what `stacked` gave, after a change in place; that of a single parameter is there already."""
        if len(self.params) > 1:
            self.scatter({name: value})

    def own(self, name: str) -> list[Tensor]:
        """One tensor of each parameter's state, where it lies."""
        return [state[name] for state in self.states]

    def count_turn(self, good: Tensor | None) -> None:
        """Count a gradient for ``update_every``. A bad one counts only where the host can't know it."""
        turns, known = self.own("turn"), good is not None and good.device.type == "cpu"
        torch._foreach_add_(turns, list(good.float().unbind()) if known and good is not None else 1.0)

    def scatter(self, values: Mapping[str, Tensor]) -> None:
        """Write stacked values into the parameters' own tensors."""
        targets: list[Tensor] = []
        sources: list[Tensor] = []
        for name, value in values.items():
            own = self.own(name)
            targets += own
            sources += value.reshape(len(own), *own[0].shape).unbind()
        torch._foreach_copy_(targets, sources)

    def gradients(self) -> Tensor:
        """(K, *shape), in the dtype of the arithmetic."""
        grads = [p.grad for p in self.params if p.grad is not None]
        G = stacked(grads).to(self.plan.work)
        return -G if self.group["maximize"] else G


def stacked(tensors: Sequence[Tensor]) -> Tensor:
    """(K, ...); a view of a single one."""
    return tensors[0].unsqueeze(0) if len(tensors) == 1 else torch.stack(list(tensors))


def sketch_of(values: Mapping[str, Tensor], axis: Axis, work: torch.dtype) -> Sketch:
    """One axis' sketch among stacked values, its basis in the dtype of the arithmetic."""
    basis, *rest = (values[f"{axis.name}_{field}"] for field in _FIELDS)
    return Sketch(_restored(basis, work), *rest)


def values_of(sketch: Sketch, axis: Axis, plan: Plan) -> dict[str, Tensor]:
    """A sketch as entries of a state; what rounding its basis changes is part of its certified error."""
    stored = plan.state[f"{axis.name}_basis"].dtype
    if stored != plan.work:
        basis = sketch.basis.to(stored)
        error = exchange_error(sketch, _restored(basis, plan.work))
        sketch = replace(sketch, basis=basis, error_bound=sketch.error_bound + error)
    return {f"{axis.name}_{field}": getattr(sketch, field) for field in _FIELDS}


def _restored(basis: Tensor, work: torch.dtype) -> Tensor:
    """A stored basis in the dtype of the arithmetic.

    Rounding costs orthonormality, not the span: Newton-Schulz steps restore it, from 1e-2 to 1e-4 to 1e-8
    and, for float64, to 1e-16.
    """
    U = basis.to(work)
    for _ in range(0 if basis.dtype == work else 3 if work == torch.float64 else 2):
        U = U @ (1.5 * torch.eye(U.shape[-1], dtype=work, device=U.device) - 0.5 * U.mT @ U)
    return U

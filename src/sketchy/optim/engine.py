"""The step that all optimizers share: gradients → stacks → sketches → direction → graft → weights.

A subclass gives its ``kind`` and, where it differs, ``_learn``. Nothing here reads a tensor's value where
that would wait for a device, nothing outlives a step but ``param_groups`` and ``state``, and each parameter's
step depends on its own gradient alone.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Unpack, overload

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.optim import Optimizer

from sketchy.core import dense, graft
from sketchy.core.axes import as_matrix, unfold
from sketchy.core.linalg import energies, row_energy, within
from sketchy.core.moments import like
from sketchy.core.preconditioner import inverse_root, precondition_
from sketchy.core.sketch import Sketch, update
from sketchy.optim import options as table
from sketchy.optim import state as states
from sketchy.optim.descend import descend
from sketchy.optim.elementwise import adam, look_ahead
from sketchy.optim.loading import check_loaded, restore
from sketchy.optim.plan import Plan, plan
from sketchy.optim.report import Report, report
from sketchy.optim.routing import name_in, names_of, route
from sketchy.optim.stacks import scratch_bound, stacks
from sketchy.optim.state import Stack

# From here on a gradient is as bad as Inf: sums of such, or their squares in float64, would be.
_TOO_LARGE = {torch.float32: 1e28, torch.float64: 1e140}

# A compiled step runs as it is. Compiled piece by piece (decompositions choose their way by values, and break
# the graph) it took 1.8 times the CPU time, and torch 2.13 fails where axes are merged once shapes vary.
# `torch.compiler.disable` would import the compiler here, and double the time of this import.
_uncompiled = _disable_dynamo

Group = dict[str, Any]
Values = dict[str, Tensor]
Energy = tuple[Tensor, Tensor | None]  # of the rows of a stack of blocks, and of their columns if needed


@dataclass(frozen=True)
class Seen:
    """What a stack of S blocks has to go by in one step."""

    G: Tensor  # gradients, (S, *block)
    norm: Tensor  # their norms, (S,), float64
    energy: Energy
    step: Tensor  # how many there have been, (S,)
    due: bool  # whether sketches see this one


# x (S, *block), what momentum says the gradients are → a direction, in x's memory where that can be, and the
# factor (S,) that it lacks
Preconditioner = Callable[[Tensor], tuple[Tensor, Tensor]]


class Engine(Optimizer):
    """Base of the optimizers: one code path, differing by ``kind`` (see `optim.plan.plan`)."""

    kind: ClassVar[str]
    without: ClassVar[frozenset[str]] = frozenset()  # options that mean nothing to a subclass
    changed: ClassVar[dict[str, Any]] = {}  # defaults that a subclass has otherwise

    def __init_subclass__(cls) -> None:
        """Show every option with its default in ``help`` and in editors."""
        kinds = inspect.Parameter
        shown = [kinds("params", kinds.POSITIONAL_OR_KEYWORD)]
        for i, (name, value) in enumerate(cls._options().items()):
            shown.append(
                kinds(name, kinds.KEYWORD_ONLY if i > 1 else kinds.POSITIONAL_OR_KEYWORD, default=value)
            )
        cls.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]

    @classmethod
    def _options(cls) -> dict[str, Any]:
        """The options of a class and their defaults, lr and betas first."""
        known = {name: option.default for name, option in table.OPTIONS.items() if name not in cls.without}
        return known | cls.changed

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor | None = None,
        betas: tuple[float, float] | None = None,
        **options: Unpack[table.Options],
    ) -> None:
        known = self._options()
        self._refuse_unknown(options)
        given = {name: value for name, value in (("lr", lr), ("betas", betas)) if value is not None}
        super().__init__(params, table.check(known | given | options, ""))

    def _refuse_unknown(self, options: Mapping[str, Any], where: str = "") -> None:
        for name in options:
            if name in self.without:
                raise ValueError(f"{name}={options[name]!r}{where}: {type(self).__name__} has no such option")
            if name not in table.OPTIONS and not where:
                raise TypeError(
                    f"{type(self).__name__} has no option {name!r}; it has {', '.join(self._options())}"
                )

    def add_param_group(self, param_group: Group) -> None:
        """Add a group; its options are checked, and nothing is added when one is wrong."""
        index = len(self.param_groups)
        super().add_param_group(param_group)
        try:
            self._refuse_unknown(param_group, where=f" in parameter group {index}")
            param_group.update(table.check(param_group, f" in parameter group {index}"))
            for i, p in enumerate(param_group["params"]):
                if p.is_complex():
                    raise TypeError(
                        f"{name_in(param_group, i)} is complex; {type(self).__name__} takes real weights"
                        " (torch.view_as_real gives a real view)"
                    )
        except (TypeError, ValueError):
            self.param_groups.pop()
            raise

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], Any]) -> Any: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step. ``closure`` re-evaluates the loss, which is returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check_gradients()
        for group, stack, due in self._stacks():
            with torch.autocast(stack.params[0].device.type, enabled=False):
                self._step_stack(group, stack, due)
        return loss

    def report(self) -> Report:
        """A printable table of the parameters: path, ranks, bytes, escaped mass, certified error, skips."""
        names = names_of(self.param_groups)
        rows = [
            (names.get(p, f"{g}.{i}"), p, self._plan(group, p, names.get(p)), self.state.get(p, {}))
            for g, group in enumerate(self.param_groups)
            for i, p in enumerate(group["params"])
        ]
        return report(rows, scratch_bound(self.param_groups, self._plan))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; it is checked whole first, and nothing changes when it does not fit.

        Each tensor keeps its own dtype, where torch would cast it to the parameter's.
        """
        final: dict[str, Any] = {}

        def check(_: Optimizer, loaded: dict[str, Any]) -> None:
            check_loaded(self, loaded, self._plan)
            final.update(loaded)

        def keep_dtypes(_: Optimizer) -> None:
            restore(self, final, self._plan)

        hooks = (
            self.register_load_state_dict_pre_hook(check),  # after those of the user
            self.register_load_state_dict_post_hook(keep_dtypes, prepend=True),  # before theirs
        )
        try:
            super().load_state_dict(state_dict)
        finally:
            for hook in hooks:
                hook.remove()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.defaults.pop("differentiable", None)  # torch adds it; here it is no option
        for group in self.param_groups:  # a checkpoint from before an option existed
            for name, value in self.defaults.items():
                group.setdefault(name, value)

    # ---- one parameter

    def _plan(self, group: Group, p: Tensor, name: str | None) -> Plan:
        path = route(tuple(p.shape), name, self.kind, group)
        return plan(tuple(p.shape), p.dtype, path, self.kind, group)

    def _check_gradients(self) -> None:
        """Refuse what no path takes, before anything changes."""
        for group in self.param_groups:
            for i, p in enumerate(group["params"]):
                if p.grad is not None and p.grad.layout != torch.strided:
                    raise RuntimeError(
                        f"{name_in(group, i)} has a sparse gradient; {type(self).__name__} needs dense"
                        " ones (for embeddings, torch.optim.SparseAdam works beside it)"
                    )

    @_uncompiled
    def _stacks(self) -> list[tuple[Group, Stack, bool]]:
        return stacks(self.param_groups, self.state, self._plan)

    # ---- one stack

    @_uncompiled
    def _step_stack(self, group: Group, stack: Stack, due: bool) -> None:
        descend(stack.params, *self._fold(group, stack, due), group)

    def _fold(self, group: Group, stack: Stack, due: bool) -> tuple[Tensor, Tensor, Tensor | None]:
        """Fold a stack's gradients into its state. What this holds meanwhile is bounded by `plan.scratch`.

        Returns the directions, the factors that they lack, and which gradients were good; None: all.
        """
        plan, G = stack.plan, stack.gradients(group["maximize"])
        energy = _energy(plan.layout.split(G), group["graft"] if plan.path == "sketch" else None)
        norm = energy[0].sum(-1).sqrt()  # of blocks
        good = _good(norm, len(G), _TOO_LARGE[G.dtype])
        if good is not None:  # a bad gradient is zero here, and what it would change is put back below
            G, norm = _select(good, G), _select(good, norm)
            energy = _select(good, energy[0]), None if energy[1] is None else _select(good, energy[1])

        before = stack.gather()
        values = before | {"step": before["step"] + 1}
        if plan.path == "adam":
            direction, factor = adam(group, stack, G, values["step"], good)
        else:
            seen = Seen(plan.layout.split(G), norm, energy, plan.layout.each(values["step"]), due)
            # first all that needs the gradient, then all that needs momentum: each while it is in cache
            precondition = self._learn(group, plan, values, seen)
            lender = self._lender(group, plan, values, seen)
            length = lender.length(seen.G) if lender.normalized else None
            step = seen.step
            del seen
            x, ahead = look_ahead(group, stack, G, values["step"], good)
            x, ahead = plan.layout.split(x), plan.layout.each(ahead)
            direction, factor = _move(group, x, ahead, step, lender, length, precondition)
            if plan.layout.count > 1:
                direction = direction.mul_(like(factor, direction))
                factor = _ones(values["step"])
            direction = plan.layout.join(direction)
            stack.count_turn(good)
        changed = {name: value for name, value in values.items() if value is not before[name]}
        if good is not None:
            changed = {name: _select(good, value, before[name]) for name, value in changed.items()}
            changed["skipped"] = before["skipped"] + ~good
            direction.masked_fill_(like(~good, direction) > 0, 0.0)
        stack.scatter(changed)
        return direction, factor, good

    def _lender(self, group: Group, plan: Plan, values: Values, seen: Seen) -> graft.Graft:
        """The rule that lends a step its length, with the gradient folded in."""
        rule, beta2 = group["graft"], group["betas"][1]
        own = {name: values[name] for name in graft.accumulators(rule, plan.layout.block)}
        values.update(graft.observe(rule, own, seen.G, seen.energy, beta2))
        return graft.Graft(rule, values, seen.step, beta2=beta2, eps=group["eps"])

    def _learn(self, group: Group, plan: Plan, values: Values, seen: Seen) -> Preconditioner:
        """Alg. 3, lines 5 and 6: sketch the covariance along each axis, and take its inverse root."""
        sketches = self._sketches(group, plan, values, seen)
        roots = [None if s is None else inverse_root(s, plan.exponent, group["eps"]) for s in sketches]
        return lambda x: precondition_(x, roots)

    def _sketches(self, group: Group, plan: Plan, values: Values, seen: Seen) -> list[Sketch | None]:
        """The sketch of each axis, with the gradient folded in when it is due."""
        sketches: list[Sketch | None] = []
        for i, axis in enumerate(plan.axes):
            if axis is None:
                sketches.append(None)
                continue
            sketch = states.sketch_of(values, axis, plan.work)
            if seen.due:
                A, beta2 = unfold(seen.G, i), group["betas"][1]
                if axis.dense:
                    sketch = dense.update(sketch, A, beta2=beta2, norm=seen.norm)
                else:
                    sketch = update(sketch, A, beta2=beta2, solver=group["solver"], norm=seen.norm)
                values.update(states.values_of(sketch, axis, plan))
            sketches.append(sketch)
        return sketches


def _move(
    group: Group,
    x: Tensor,
    ahead: Tensor,
    step: Tensor,
    lender: graft.Graft,
    length: Tensor | None,
    precondition: Preconditioner,
) -> tuple[Tensor, Tensor]:
    """Directions for x, which lacks a factor ``ahead``, and the factors (S,) that they lack.

    ``length``: what a normalised rule lends. Normalised momentum, of length one, would step as far as ever
    when the gradient has gone.
    """
    lent = lender.step(x * like(ahead, x)) if group["start_step"] > 1 else None
    if lender.lends:
        wanted = ahead * lender.length(x) if length is None else length
        if lent is not None and lender.normalized:
            lent = lent * like(graft.ratio(wanted, lent), lent)
    direction, factor = precondition(x)
    factor = ahead * factor
    if lender.rule is not None:
        scale = group["graft_scale"]
        factor = graft.ratio(wanted * scale, direction) if lender.lends else factor * scale
    if lent is not None:
        late = like(step, direction) >= group["start_step"]
        direction, factor = torch.where(late, like(factor, x) * direction, lent), _ones(step)
    return direction, factor


def _ones(step: Tensor) -> Tensor:
    return torch.ones_like(step, dtype=torch.float64)


def _good(norm: Tensor, weights: int, limit: float) -> Tensor | None:
    """Which weights have a gradient to go by, from the norms of their blocks; None: all are known to."""
    whole = norm if len(norm) == weights else norm.reshape(weights, -1).square().sum(-1).sqrt()
    return None if within(whole, -1.0, limit) else whole < limit  # no NaN is


def _energy(blocks: Tensor, rule: str | None) -> Energy:
    """What finding bad gradients and a graft's rule need."""
    rows = as_matrix(blocks)
    return energies(rows) if rule == "factored" else (row_energy(rows), None)


def _select(good: Tensor, new: Tensor, old: Tensor | float = 0.0) -> Tensor:
    """``new`` for good gradients, ``old`` for bad ones; a stack may hold several blocks a parameter."""
    mask = good.repeat_interleave(len(new) // len(good)).reshape(-1, *[1] * (new.dim() - 1))
    return torch.where(mask, new.to(old.dtype) if isinstance(old, Tensor) else new, old)

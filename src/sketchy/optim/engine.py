"""The step that all optimizers share: gradients → stacks → sketches → direction → graft → weights.

A subclass gives its ``kind`` and, where it differs, ``_learn``. Nothing here reads a tensor's value where
that would wait for a device, nothing outlives a step but ``param_groups`` and ``state``, and each parameter's
step depends on its own gradient alone.
"""

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from typing import Any, ClassVar, NoReturn, Unpack, overload

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.optim import Optimizer

from sketchy.core.preconditioner import InverseRoot, inverse_roots, precondition_
from sketchy.core.sketch import Sketch
from sketchy.optim import options as table
from sketchy.optim.descend import descend
from sketchy.optim.loading import check_loaded, restore
from sketchy.optim.plan import Plan, plan
from sketchy.optim.report import Report, report
from sketchy.optim.routing import name_in, names_of, route
from sketchy.optim.stacks import scratch_bound, stacks, waves
from sketchy.optim.state import Group, Stack
from sketchy.optim.turn import Preconditioner, Turn, sketch_together

# A compiled step runs as it is. Compiled piece by piece (decompositions choose their way by values, and break
# the graph) it took 1.8 times the CPU time, and torch 2.13 fails where axes are merged once shapes vary.
# `torch.compiler.disable` would import the compiler here, and double the time of this import.
_uncompiled = _disable_dynamo


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
            if name in table.OPTIONS:
                continue
            # others keep their own things in groups (initial_lr, lr_scale): there, only a slip is refused
            meant = get_close_matches(name, self._options(), n=1, cutoff=0.85)
            if where and meant:
                raise ValueError(f"{name}={options[name]!r}{where}: no such option; did you mean {meant[0]}?")
            if not where:
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
                    self._refuse_complex(index, i)
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
        for wave in self._waves():
            with torch.autocast(wave[0].params[0].device.type, enabled=False):
                self._step_together(wave)
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
        telling = frozenset[str]().union(*(cls.without for cls in Engine.__subclasses__()))

        def check(_: Optimizer, loaded: dict[str, Any]) -> None:
            check_loaded(self, loaded, self._plan, telling)
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
        for g, group in enumerate(self.param_groups):
            for i, p in enumerate(group["params"]):
                if p.grad is None:
                    continue
                if p.is_complex():  # it was put in after the group was added
                    self._refuse_complex(g, i)
                if p.grad.layout != torch.strided:
                    raise RuntimeError(
                        f"{name_in(self.param_groups, g, i)} has a sparse gradient; {type(self).__name__}"
                        " needs dense ones (for embeddings, torch.optim.SparseAdam works beside it)"
                    )

    def _refuse_complex(self, g: int, i: int) -> NoReturn:
        raise TypeError(
            f"{name_in(self.param_groups, g, i)} is complex; {type(self).__name__} takes real weights"
            " (torch.view_as_real gives a real view)"
        )

    @_uncompiled
    def _waves(self) -> list[list[Stack]]:
        return waves(stacks(self.param_groups, self.state, self._plan))

    # ---- stacks

    @_uncompiled
    def _step_together(self, wave: Sequence[Stack]) -> None:
        """First all that needs gradients, then all that needs momentum, a stack after the other."""
        turns = [Turn(stack) for stack in wave]
        sketched = [turn for turn in turns if turn.sketched]
        sketch_together(sketched)
        preconditioners = iter(self._learn(sketched))
        for turn in turns:
            direction, factor = turn.directions(next(preconditioners) if turn.sketched else None)
            turn.keep()
            descend(turn.stack.params, direction, factor, turn.good, turn.group)

    def _learn(self, turns: Sequence[Turn]) -> Iterable[Preconditioner]:
        """What is to be done to momentum, given the new sketches: Alg. 3, line 6, their inverse roots."""
        roots: list[list[InverseRoot | None]] = []
        alike: dict[Any, list[tuple[int, int, Sketch]]] = defaultdict(list)
        for t, turn in enumerate(turns):
            roots.append([None] * len(turn.plan.axes))
            for i, (axis, sketch) in enumerate(zip(turn.plan.axes, turn.sketches, strict=True)):
                if axis is not None and sketch is not None:
                    stale = not turn.stack.due and not axis.dense  # whole factors know weak from new
                    damping = turn.group["eps"], stale, turn.plan.rounding
                    key = (sketch.rank, sketch.basis.device, turn.plan.exponent, *damping)
                    alike[key].append((t, i, sketch))
        for (_, _, exponent, eps, stale, rounding), some in alike.items():
            together = [sketch for *_, sketch in some]
            new = inverse_roots(together, exponent, eps, stale=stale, rounding=rounding)
            for (t, i, _), root in zip(some, new, strict=True):
                roots[t][i] = root
        return [partial(precondition_, roots=each) for each in roots]

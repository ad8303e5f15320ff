"""The base class of the optimizers: options, parameter groups, checkpoints and the report, as in torch.

A subclass sets its ``design`` (`optim.plan.Design`), the options that it does not have, and the defaults that
it changes. After a step, only ``param_groups`` and ``state`` remain. No code here waits for a device to read
a value, and the step of a parameter depends on its own gradient only (a budget does both, at a few moments).
"""

import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NoReturn, Unpack, overload

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch.optim import Optimizer

from sketchy.core.tasks import gather, run, without_autocast
from sketchy.optim import options as table
from sketchy.optim.budget import Budget, Reallocation, budgets, due_now, reallocate_
from sketchy.optim.compiled import Compiled, settings_of
from sketchy.optim.covariances import KnownCovariance, known_covariances
from sketchy.optim.loading import NAME, check_loaded, chosen, old_defaults, old_defaults_kept, restore_
from sketchy.optim.plan import AxisRanks, Design, Plan, plan
from sketchy.optim.report import Report, report
from sketchy.optim.routing import name_in, names_of, warn_of_unnamed
from sketchy.optim.schedule import fetch, scratch_bound, stacks_, waves
from sketchy.optim.sharding import agreed, check_backends, sharding
from sketchy.optim.slots import State, is_sharded
from sketchy.optim.split import check_mesh, exchange_
from sketchy.optim.stack import Group
from sketchy.optim.step import step

# Inside a compiled training step, our step is not compiled with it: decompositions choose their method by
# values, which breaks the graph into pieces. With ``compile`` we make graphs of our own (`compiled.py`).
# `torch.compiler.disable` would import the compiler here, which doubles the time of this import.
_uncompiled = _disable_dynamo
_DEFAULT: Any = object()  # not given; None is a value, which is refused


class Engine(Optimizer):
    """Base class of the optimizers. They share one code path, and differ in their designs."""

    design: ClassVar[Design]
    without: ClassVar[frozenset[str]] = frozenset()  # options that a subclass does not have
    changed: ClassVar[dict[str, Any]] = {}  # defaults that differ from those in `options.OPTIONS`
    split: Any = None  # a mesh (`optim.split`); not an option of groups, so that state dicts do not have it
    compiled: Compiled | None = None  # the graphs of its steps, with ``compile``
    _first: Mapping[Tensor, AxisRanks] = MappingProxyType({})  # under a budget, until the first step
    saved_as: ClassVar[str]  # the name in checkpoints; a subclass of one of our optimizers inherits it

    def __init_subclass__(cls) -> None:
        """Name the checkpoints, and show every option with its default in ``help`` and in editors."""
        if "design" in vars(cls) and "saved_as" not in vars(cls):
            cls.saved_as = cls.__name__
        kinds = inspect.Parameter
        shown = [kinds("params", kinds.POSITIONAL_OR_KEYWORD)]
        for i, (name, value) in enumerate(cls._options().items()):
            shown.append(
                kinds(name, kinds.KEYWORD_ONLY if i > 1 else kinds.POSITIONAL_OR_KEYWORD, default=value)
            )
        shown.append(kinds("split", kinds.KEYWORD_ONLY, default=None))
        shown.append(kinds("compile", kinds.KEYWORD_ONLY, default=False))
        cls.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]

    @classmethod
    def _options(cls) -> dict[str, Any]:
        """The options of a class and their defaults, lr and betas first."""
        known = {name: option.default for name, option in table.OPTIONS.items() if name not in cls.without}
        return known | cls.changed

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = _DEFAULT,
        betas: tuple[float, float] = _DEFAULT,
        *,
        split: Any = None,
        compile: bool | Mapping[str, Any] = False,
        **options: Unpack[table.Options],
    ) -> None:
        check_mesh(split)
        if split is not None:
            self.split = split
        if (settings := settings_of(compile)) is not None:
            self.compiled = Compiled(settings)
        known = self._options()
        self._refuse_unknown(options)
        given = {name: value for name, value in (("lr", lr), ("betas", betas)) if value is not _DEFAULT}
        super().__init__(params, table.check(known | given | options, ""))
        self._start()
        if not self.design.flat:  # it sketches all weights
            warn_of_unnamed(self.param_groups, self.design.path)

    def _refuse_unknown(self, options: Mapping[str, Any], where: str = "") -> None:
        kind, known = type(self).__name__, tuple(self._options())
        for name in options.keys() - set(known):
            if name in table.OfTorch.__annotations__:
                continue
            if name in self.without:
                why = table.NOT_HERE.get(name, "")
                raise ValueError(f"{name}={options[name]!r}{where}: {kind} has no such option{why}")
            if not where:
                guess = table.meant(name, known) or f"; it has {', '.join(known)}"
                raise TypeError(f"{kind} has no option {name!r}{guess}")
            # other libraries add keys of their own to groups (initial_lr, lr_scale): only typos are refused
            if guess := table.meant(name, known, 0.85):
                raise ValueError(f"{name}={options[name]!r}{where}: no such option{guess}")

    def add_param_group(self, param_group: Group) -> None:
        """Add a parameter group. If one of its options is wrong, raise an error and add nothing."""
        index = len(self.param_groups)
        super().add_param_group(param_group)
        try:
            self._refuse_unknown(param_group, where=f" in parameter group {index}")
            param_group.update(table.check(param_group, f" in parameter group {index}"))
            param_group[NAME] = self.saved_as
            for i, p in enumerate(param_group["params"]):
                if p.is_complex():
                    self._refuse_complex(index, i)
            if self.state or self._first:  # otherwise `__init__` does it when all groups are there
                self._start()
        except (TypeError, ValueError):
            self.param_groups.pop()
            raise

    def _budgets(self) -> list[Budget]:
        return budgets(self.param_groups, self.state, self.design, self._plan)

    @property
    def _has_budget(self) -> bool:
        return any(group.get("budget") is not None for group in self.param_groups)

    def _under_budgets(self) -> Iterator[Tensor]:
        """The weights under budgets that are stepped now."""
        for group in self.param_groups:
            if group.get("budget") is not None:
                yield from (p for p in group["params"] if p.grad is not None)

    def _start(self) -> None:
        """Choose the first ranks of weights under a budget. If others must make room, they do it now."""
        if self._has_budget:
            self._first = {}  # nobody else's ranks are known while these are chosen
            self._first = {p: ranks for budget in self._budgets() for p, ranks in budget.start().items()}
            self._reallocate(lambda budget: budget.used > budget.allowed)
            self._forget()

    def _forget(self) -> None:
        """Keep first ranks only until all these weights have a state."""
        if "_first" in vars(self) and all(self.state.get(p) for p in self._first):
            del self._first

    @torch.no_grad()
    def _reallocate(self, wanted: Callable[[Budget], bool]) -> list[Reallocation]:
        """Give the weights of the budgets that are ``wanted`` the ranks that lose least."""
        return [reallocate_(b, self._plan, self.split) for b in self._budgets() if wanted(b)]

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], Any]) -> Any: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take one step. ``closure``, if given, re-evaluates the loss and returns it; so does ``step``."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check_gradients()
        self._descend()
        if self._has_budget and (due := due_now(self.param_groups, self.state)):
            self._reallocate(lambda budget: budget.text in due)
        return loss

    def report(self) -> Report:
        """A printable table of the parameters that are trained; similar ones share a line.

        Its columns are: path, ranks, bytes, escaped mass, certified error, skipped gradients. If momentum is
        stored in few bits, there is also its relative rounding error; under a budget, the share of directions
        that the sketches lose, by which ranks are chosen. Notes explain the columns, and compare
        the bytes with AdamW's. For sharded weights, notes say how much of the state lies on this rank, and
        which gradients a step gathers. See also `Report.summary` (one line) and `Report.to_dict`.
        """
        names = names_of(self.param_groups)
        rows = []
        for g, group in enumerate(self.param_groups):
            for i, p in enumerate(group["params"]):
                if not (p.requires_grad or self.state.get(p)):  # frozen
                    continue
                plan = self._plan(group, p, names.get(p))
                shards = sharding(p, plan, group, self.split)
                rows.append((names.get(p, f"{g}.{i}"), p, plan, self.state.get(p, {}), group, shards))
        scratch = scratch_bound(self.param_groups, self._plan, self.split)
        return report(rows, scratch, type(self).__name__, self._budgets())

    def covariances(self) -> Iterator[KnownCovariance]:
        """The gradient covariances in the state, one for each preconditioned axis of each parameter."""
        names = names_of(self.param_groups)
        for group in self.param_groups:
            for p in group["params"]:
                if self.state.get(p):
                    yield from known_covariances(p, self._plan(group, p, names.get(p)), self.state[p], group)

    @classmethod
    def path_of(cls, shape: tuple[int, ...], name: str | None = None, **options: Any) -> str:
        """The path of a weight with this shape, name and options: ``sketch`` or ``adam``."""
        return cls.design.path(tuple(shape), name, cls._options() | options)

    @classmethod
    def plan_of(
        cls, shape: tuple[int, ...], dtype: torch.dtype, name: str | None = None, **options: Any
    ) -> Plan:
        """The plan of a weight: how a step treats it, and what state is kept for it."""
        return plan(tuple(shape), dtype, name, cls.design, cls._options() | options)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict. If it does not fit, raise ValueError and change nothing.

        Each tensor of the state keeps its own dtype. (Torch would cast it to the parameter's.) Saved options
        replace those of this optimizer, except for ``momentum_dtype``, ``adam_dtype`` and ``budget`` if they
        are not None here: then the loaded momenta are converted, and ranks are chosen anew, with a warning.
        """
        final: dict[str, Any] = {}
        own = chosen(self)

        def check(_: Optimizer, loaded: dict[str, Any]) -> None:
            agreed(
                self.param_groups, self.split, lambda: check_loaded(self, loaded, self._plan, self.saved_as)
            )
            final.update(loaded)

        def keep_dtypes(_: Optimizer) -> None:
            restore_(self, final, own, self._plan, self.split)

        hooks = (
            self.register_load_state_dict_pre_hook(check),  # runs after the user's hooks
            self.register_load_state_dict_post_hook(keep_dtypes, prepend=True),  # runs before theirs
        )
        try:
            super().load_state_dict(state_dict)
        finally:
            for hook in hooks:
                hook.remove()
        if kept := old_defaults_kept(self, final):
            warnings.warn(kept, stacklevel=2)
        self._start()
        saved = {group.get("budget") for group in final["param_groups"]}
        for found in self._reallocate(lambda budget: budget.text not in saved):
            warnings.warn(f"this checkpoint is of another budget: {found.summary()}", stacklevel=2)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.defaults.pop("differentiable", None)  # torch adds it, but it is not an option here
        for group in self.param_groups:  # older checkpoints lack the newer options
            for name, value in {**self.defaults, **old_defaults(self), NAME: self.saved_as}.items():
                group.setdefault(name, value)

    @_uncompiled
    def _descend(self) -> None:
        """Step all parameters, wave after wave. The stacks of a wave step together (`core.tasks`)."""
        self._check_options()
        if any(not self.state.get(p) and p not in self._first for p in self._under_budgets()):
            self._start()  # they were frozen, or this is a copy
        found = waves(stacks_(self.param_groups, self.state, self._plan, self.split))
        fetch(found[0] if found else [])
        for i, wave in enumerate(found):
            fetch(found[i + 1] if i + 1 < len(found) else [])
            with without_autocast(wave[0].params[0].device):
                if self.compiled is None or not self.compiled.run(wave):
                    run(gather(map(step, wave)))
            for stack in wave:
                stack.count_turns()
        self._exchange()
        self._forget()

    def _exchange(self) -> None:
        """Complete the weights of which only a part was stepped here."""
        names = names_of(self.param_groups) if self.split is not None else {}
        divided = []
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                if is_sharded(p):  # only its local part has noticed the change
                    torch.autograd.graph.increment_version(p)
                elif self.split is not None and p.numel():
                    plan = self._plan(group, p, names.get(p))
                    divided += [p] if sharding(p, plan, group, self.split) else []
        if divided:
            exchange_(divided, self.split)

    def __getstate__(self) -> dict[str, Any]:
        kept: dict[str, Any] = super().__getstate__()
        own = {"split": self.split, "compiled": self.compiled}
        return kept | {name: value for name, value in own.items() if value is not None}

    def _check_options(self) -> None:
        """Refuse a wrong option that was put into a group by hand, before anything changes.

        Defaults were checked already. The value of a tensor is not checked: Python would have to wait for it.
        """
        for g, group in enumerate(self.param_groups):
            where = f" in parameter group {g}"
            self._refuse_unknown(group, where)
            own = {name: group[name] for name in table.REFUSED if name in group}
            for name, default in self.defaults.items():
                if name not in group:
                    raise ValueError(f"{name} is missing{where}: put it back, such as {name}={default!r}")
                value = group[name]
                scalar = isinstance(value, Tensor) and value.numel() == 1 and name in table.TENSORS
                if not scalar and (type(value) is not type(default) or value != default):
                    own[name] = value
            if own:
                table.check(own, where)

    def _plan(self, group: Group, p: Tensor, name: str | None, state: State | None = None) -> Plan:
        """The plan of a parameter. Under a budget, its ranks are those of its state (or of ``state``)."""
        shape, dtype = tuple(p.shape), p.dtype
        found = plan(shape, dtype, name, self.design, group)
        if group.get("budget") is None or not found.axes:
            return found
        held = self.state.get(p) if state is None else state
        ranks = found.ranks_in(held) if held else self._first.get(p, found.ranks)
        if ranks == found.ranks:
            return found
        return plan(shape, dtype, name, self.design, {**group, "rank": ranks})

    def _check_gradients(self) -> None:
        """Refuse complex weights, sparse gradients and unreachable devices, before anything changes."""
        for g, group in enumerate(self.param_groups):
            for i, p in enumerate(group["params"]):
                if p.grad is None:
                    continue
                if p.is_complex():  # it was put into the group later
                    self._refuse_complex(g, i)
                if is_sharded(p):
                    check_backends(p, name_in(self.param_groups, g, i))
                if p.grad.layout != torch.strided:
                    raise RuntimeError(
                        f"{name_in(self.param_groups, g, i)} has a sparse gradient; {type(self).__name__}"
                        " supports dense gradients only (use torch.optim.SparseAdam for this parameter)"
                    )

    def _refuse_complex(self, g: int, i: int) -> NoReturn:
        raise TypeError(
            f"{name_in(self.param_groups, g, i)} is complex; {type(self).__name__} supports real weights only"
            " (torch.view_as_real gives a real view)"
        )

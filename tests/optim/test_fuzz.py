"""A fuzzer: random options, weights and gradients; saving, copying, changes and mistakes at any time.

Two runs see the same gradients. Everything happens to the first one. The second one is never saved, loaded or
given a mistake. Both must stay equal to the bit. `make fuzz` does this for hours (see `tests/fuzz.py`).
"""

import copy
import io
import math
import os
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from torch import Tensor, nn

from optim import fuzz_cases as cases
from optim.optimizers import BF16, F16, F64, assert_same, options_of
from sketchy.core.axes import unfold
from sketchy.optim.options import on_path
from sketchy.optim.parts.sketches import decay
from sketchy.optim.plan import Plan
from sketchy.optim.slots import Meaning

pytestmark = pytest.mark.skipif(
    os.environ.get("SKETCHY_DEVICE") == "standin", reason="some gradients are sparse, and it is slow"
)

# How far a stored basis may be from orthonormal, in eps √d. One that is rounded to bfloat16 is off by eps.
ASKEW = 16.0
LONG = 64  # covariances of longer axes are not compared


class Run:
    """An optimizer and its parameters, numbered in the order in which they were made."""

    def __init__(self, kind: Any, named: bool) -> None:
        self.kind, self.named = kind, named
        self.params: list[nn.Parameter] = []
        self.groups: list[tuple[list[cases.Weight], dict[str, Any]]] = []  # as they were added
        self.optimizer: Any = None

    def add(self, weights: list[cases.Weight], options: dict[str, Any]) -> None:
        """Add a group of weights."""
        self.groups.append((weights, options))
        made = [weight.make(i) for i, weight in enumerate(weights, start=len(self.params))]
        listed: list[Any] = made
        if self.named:
            names = [f"{i}.{weight.name}.weight" for i, weight in enumerate(weights, start=len(self.params))]
            listed = list(zip(names, made, strict=True))
        self.params += made
        if self.optimizer is None:
            self.optimizer = self.kind(listed, **options)
        else:
            self.optimizer.add_param_group({"params": listed, **options})

    def group(self, p: Tensor) -> dict[str, Any]:
        return next(g for g in self.optimizer.param_groups if any(p is q for q in g["params"]))

    def plan(self, p: Tensor) -> Plan:
        group = self.group(p)
        index = next(i for i, q in enumerate(group["params"]) if q is p)
        return self.optimizer._plan(group, p, group["param_names"][index] if self.named else None)

    def tensors(self, i: int) -> dict[str, Tensor]:
        p = self.params[i]
        return {"weight": p.detach().clone()} | {
            key: value.clone() for key, value in self.optimizer.state.get(p, {}).items()
        }

    def snapshot(self) -> dict[str, Tensor]:
        return {f"{i}.{k}": t for i in range(len(self.params)) for k, t in self.tensors(i).items()}

    def restarted(self, way: str) -> "Run":
        """The run in a new process."""
        if way in ("deepcopy", "pickle"):
            return copy.deepcopy(self) if way == "deepcopy" else pickle.loads(pickle.dumps(self))
        saved = self.optimizer.state_dict()
        if way == "torch.save":
            file = io.BytesIO()
            torch.save(saved, file)
            file.seek(0)
            saved = torch.load(file, weights_only=True)
        other = Run(self.kind, self.named)
        for weights, options in self.groups:
            other.add(weights, options)
        for p, q in zip(self.params, other.params, strict=True):
            q.detach().copy_(p)
        other.optimizer.load_state_dict(saved)
        return other


def _put(name: str, value: Any) -> Callable[[Run], None]:
    """A wrong option, put into a group by hand, until the next step."""

    def act(run: Run) -> None:
        group = run.optimizer.param_groups[-1]
        before = dict(group)
        group[name] = value
        try:
            run.optimizer.step()
        finally:
            group.clear()
            group.update(before)

    return act


def _sparse(run: Run) -> None:
    p = next(p for p in run.params if p.dim() == 2)
    p.grad = torch.ones_like(p).to_sparse()
    run.optimizer.step()


def _damaged(damage: Callable[[dict[str, Any]], Any]) -> Callable[[Run], None]:
    def act(run: Run) -> None:
        saved = copy.deepcopy(run.optimizer.state_dict())
        damage(saved)
        run.optimizer.load_state_dict(saved)

    return act


def _first_state(saved: dict[str, Any]) -> dict[str, Tensor]:
    return next(state for state in saved["state"].values() if state)


def _adding(**group: Any) -> Callable[[Run], None]:
    return lambda run: run.optimizer.add_param_group({"params": _new(run, torch.zeros(3, 2)), **group})


def _new(run: Run, x: Tensor) -> list[Any]:
    p = nn.Parameter(x)
    return [("new", p)] if run.named else [p]


MISTAKES: dict[str, Callable[[Run], None]] = {
    "sparse gradient": _sparse,
    "no such option": lambda run: run.kind(run.params, learning_rate=1.0) and None,
    "group with a wrong option": _adding(eps=-1.0),
    "group with a misspelt option": _adding(weight_deca=0.1),
    "group with an old parameter": lambda run: run.optimizer.add_param_group(
        {"params": [("again", run.params[0])] if run.named else [run.params[0]]}
    ),
    "complex parameter": lambda run: run.optimizer.add_param_group(
        {"params": _new(run, torch.zeros(2, 2, dtype=torch.complex64))}
    ),
    "another optimizer": _damaged(lambda saved: saved["param_groups"][0].update(sketchy_optimizer="Adam")),
    "missing group": _damaged(lambda saved: saved["param_groups"].pop()),
    "wrong saved option": _damaged(lambda saved: saved["param_groups"][-1].update(betas=(2.0, 0.9))),
    "missing slot": _damaged(lambda saved: _first_state(saved).pop("step")),
    "unknown slot": _damaged(lambda saved: _first_state(saved).update(more=torch.zeros(3))),
    "NaN in a slot": _damaged(lambda saved: _first_state(saved).update(skipped=torch.tensor(torch.nan))),
    "slot of another shape": _damaged(lambda saved: _first_state(saved).update(step=torch.zeros(2))),
    "graft of no name": _put("graft", "adam"),
    "solver of no name": _put("solver", "svd"),
    "rank in words": _put("rank", "three"),
    "negative eps": _put("eps", -1.0),
    "three betas": _put("betas", (0.9, 0.9, 0.9)),
}
_OF_STATES = ("missing slot", "unknown slot", "NaN in a slot", "slot of another shape")
_OF_SKETCHES = ("solver of no name", "rank in words")
# Options that can change between steps. The limits of steps hold while betas and the kind of momentum stay.
HARMLESS = ("lr", "weight_decay", "eps", "update_every", "start_step", "graft_scale", "nesterov", "maximize",
            "solver", "stack_size", "adam_lr_scale", "polar", "sketch_beta2")  # fmt: skip
LIMITING = ("betas", "adam_betas", "moving_average_momentum")
PATHS = ("sketch", "adam")
WAYS = ("torch.save", "state_dict", "deepcopy", "pickle")  # to restart


def has_momentum(group: dict[str, Any], path: str) -> bool:
    return on_path(group, path)["betas"][0] > 0


class Training(RuleBasedStateMachine):
    """Rules are what users do. After each, what must hold is checked."""

    @initialize(data=st.data(), kind=st.sampled_from(cases.KINDS), named=st.booleans())
    def construct(self, data: st.DataObject, kind: Any, named: bool) -> None:
        self.kind = kind
        self.tried, self.steady = Run(kind, named), Run(kind, named)
        self.weights: list[cases.Weight] = []
        self.largest: list[float] = []  # root mean square of the largest good gradient of each weight
        self.restless: set[int] = set()  # weights whose betas have changed
        self.covariances: dict[tuple[int, str], Tensor] = {}  # (blocks, d, d), of good gradients, by axis
        self.unknown: set[int] = set()  # weights whose covariances are not known
        self.time = 0
        self._add(data.draw(cases.weights(), "weights"), data.draw(cases.options(kind), "options"))

    def _add(self, weights: list[cases.Weight], options: dict[str, Any]) -> None:
        for run in (self.tried, self.steady):
            run.add(weights, options)
        self.weights += weights
        self.largest += [0.0] * len(weights)

    # ---- what users do

    @rule(data=st.data(), scale=st.sampled_from(cases.SCALES), seed=st.integers(0, 99))
    def step(self, data: st.DataObject, scale: float, seed: int) -> None:
        kinds = data.draw(
            st.lists(st.sampled_from(cases.STREAMS), min_size=len(self.weights), max_size=len(self.weights))
        )
        self._step(kinds, scale, seed)

    @rule(
        kind=st.sampled_from(cases.STREAMS[:6]),
        scale=st.sampled_from(cases.SCALES),
        times=st.integers(1, 4),
        way=st.sampled_from(WAYS),
    )
    def steps_of_one_kind(self, kind: str, scale: float, times: int, way: str) -> None:
        """With a restart: rules alone would seldom come to one between steps."""
        self.restart(way)
        for _ in range(times):
            self._step([kind] * len(self.weights), scale, self.time)

    @rule(times=st.sampled_from([3, 20]))
    def silence(self, times: int) -> None:
        for _ in range(times):
            self._step(["zeros"] * len(self.weights), 1.0, 0)

    @rule(way=st.sampled_from(WAYS))
    def restart(self, way: str) -> None:
        self.tried = self.tried.restarted(way)
        assert_same(self.tried.snapshot(), self.steady.snapshot())
        assert options_of(self.tried.optimizer) == options_of(self.steady.optimizer)

    @rule(data=st.data())
    def change_options(self, data: st.DataObject) -> None:
        names = [n for n in HARMLESS + LIMITING if n not in self.kind.without]
        name = data.draw(st.sampled_from(names))
        value = data.draw(st.sampled_from(cases.VALUES[name]))
        index = data.draw(st.integers(0, len(self.tried.optimizer.param_groups) - 1))
        group = self.tried.optimizer.param_groups[index]
        if any(has_momentum(group, path) != has_momentum(group | {name: value}, path) for path in PATHS):
            return  # this would need another state
        for run in (self.tried, self.steady):
            run.optimizer.param_groups[index][name] = value
        if name in LIMITING:
            group = self.steady.optimizer.param_groups[index]
            self.restless |= {
                i for i, p in enumerate(self.steady.params) if any(p is q for q in group["params"])
            }

    @precondition(lambda self: len(self.weights) < 5)
    @rule(data=st.data())
    def add_group(self, data: st.DataObject) -> None:
        self._add(data.draw(cases.weights(), "weights"), data.draw(cases.options(self.kind), "options"))

    @rule(name=st.sampled_from(list(MISTAKES)))
    def mistake(self, name: str) -> None:
        """It raises an error and changes nothing."""
        run = self.tried
        if name in _OF_STATES and not any(run.optimizer.state.values()):
            return
        if name in _OF_SKETCHES and "rank" in self.kind.without:
            return
        if name == "sparse gradient" and not any(p.dim() == 2 for p in run.params):
            return
        for i, p in enumerate(run.params):
            p.grad = cases.gradient("gaussian", self.weights[i], 1.0, 0, i)
        before, options = run.snapshot(), options_of(run.optimizer)
        with pytest.raises((ValueError, TypeError, RuntimeError)):
            MISTAKES[name](run)
        assert_same(run.snapshot(), before)
        assert options_of(run.optimizer) == options

    # ---- what must hold

    def _step(self, kinds: list[str], scale: float, seed: int) -> None:
        self.time += 1
        if wild := self._is_wild():  # extreme gradients would move weights out of their range
            scale = 1.0
        gradients = [
            cases.gradient(kind, weight, scale, seed, i)
            for i, (kind, weight) in enumerate(zip(kinds, self.weights, strict=True))
        ]
        before = [self.tried.tensors(i) for i in range(len(self.weights))]
        for run in (self.tried, self.steady):
            for p, g in zip(run.params, gradients, strict=True):
                p.grad = None if g is None else g.clone()
            run.optimizer.step()
        for i, g in enumerate(gradients):
            if g is None or not g.numel():
                assert_same({k: v for k, v in self.tried.tensors(i).items() if k in before[i]}, before[i])
            elif kinds[i] in cases.BAD:
                self._check_skipped(i, before[i])
            else:
                self.largest[i] = max(self.largest[i], float(g.double().square().mean().sqrt()))
                self._check_step(i, before[i]["weight"])
                self._check_certificates(i, g)
            in_range = not wild or self.weights[i].dtype != F16  # steps of 1e5 leave the range of float16
            assert not in_range or self.tried.params[i].isfinite().all(), self.weights[i]
            self._check_state(i)
        assert_same(self.tried.snapshot(), self.steady.snapshot())

    def _is_wild(self) -> bool:
        """Whether the gradients of a weight decide how long its steps are."""
        for p in self.tried.params:
            path, group = self.tried.plan(p).path, self.tried.group(p)
            if cases.has_own_length(self.kind, path, group) or (path == "sketch" and group["graft"] == "sgd"):
                return True
        return False

    def _check_skipped(self, i: int, before: dict[str, Tensor]) -> None:
        """A bad gradient changes nothing but a counter."""
        after, p = self.tried.tensors(i), self.tried.params[i]
        if "skipped" not in before:
            before = before | self.tried.plan(p).create(p.device)
        assert float(after.pop("skipped")) == float(before.pop("skipped")) + 1
        assert_same(after, before)

    def _check_step(self, i: int, before: Tensor) -> None:
        p = self.tried.params[i]
        plan, state = self.tried.plan(p), self.tried.optimizer.state[p]
        group = on_path(self.tried.group(p), plan.path)
        lr, count = float(group["lr"]), int(state["step"])
        after, x = p.detach().double(), before.double()
        step = after - (1 - lr * group["weight_decay"]) * x
        info = torch.finfo(p.dtype)
        # eps * tiny: the spacing of subnormal numbers, to which weight decay takes float16 in twenty steps
        rounding = info.eps * (4 * (x.abs().max() + step.abs().max()) + info.tiny)
        bound = cases.longest_step(self.kind, plan.path, group, count, self.largest[i])
        if i not in self.restless and bound < math.inf:
            length = float(step.square().mean().sqrt())
            assert length <= bound * lr + rounding, f"{self.weights[i]}: {length}, not {bound} * {lr}"

    def _check_state(self, i: int) -> None:
        p = self.tried.params[i]
        for name, slot in self.tried.plan(p).slots.items() if self.tried.optimizer.state.get(p) else ():
            value = self.tried.optimizer.state[p][name]
            assert value.dtype == slot.codec.dtype and tuple(value.shape) == slot.stored, name
            assert value.isfinite().all(), (name, self.weights[i])
            assert slot.meaning.signed or not value.numel() or value.min() >= 0, (name, self.weights[i])
            if slot.meaning is Meaning.BASIS:
                U = value.double()
                error = (U.mT @ U - torch.eye(U.shape[-1], dtype=F64)).abs().max()
                eps = torch.finfo(value.dtype).eps
                most = 2 * eps if value.dtype == BF16 else ASKEW * eps * U.shape[-2] ** 0.5
                assert error <= most, f"{name} of {self.weights[i]} is askew by {error}"
            if slot.meaning is Meaning.SPECTRUM and slot.shape:
                assert (value.diff(dim=-1) <= 0).all(), (name, self.weights[i])

    def _check_certificates(self, i: int, g: Tensor) -> None:
        """‖C - B Bᵀ‖ is at most the certified error, for C of all good gradients so far."""
        p = self.tried.params[i]
        plan, group = self.tried.plan(p), self.tried.group(p)
        if group["update_every"] > 1 or group.get("roots_every", 1) > 1:
            self.unknown.add(i)  # the sketches do not know every gradient
        if plan.statistics.whitened or i in self.unknown:
            return
        for axis in plan.statistics.live:
            if axis.dim > LONG:
                continue
            sketch = axis.stored(self.tried.optimizer.state[p])
            A = unfold(plan.layout.split(g.double().unsqueeze(0)), axis.index)
            old = self.covariances.get((i, axis.name), 0.0)
            C = self.covariances[i, axis.name] = decay(group) * old + A @ A.mT
            U, _, V = torch.linalg.svd(sketch.basis.double(), full_matrices=False)
            U = U @ V  # the nearest orthonormal basis, as a step restores it
            size = C.abs().amax((-2, -1)).clamp(min=1e-300)
            D = (C - (U * sketch.eigenvalues.unsqueeze(-2)) @ U.mT) / size.reshape(-1, 1, 1)
            error = torch.linalg.eigvalsh(D).abs().amax(-1) * size
            bound = sketch.error_bound + 1e-13 * size
            assert (error <= bound).all(), f"{axis.name} of {self.weights[i]}: {error} > {bound}"


TestTraining = Training.TestCase
LONG_RUN = bool(os.environ.get("SKETCHY_FUZZ"))  # of `make fuzz`
TestTraining.settings = settings(stateful_step_count=20 if LONG_RUN else 8, derandomize=not LONG_RUN)

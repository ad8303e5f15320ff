"""The table of optimizers x state dicts that must not be loaded: damaged, foreign, of other shapes."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from optim.optimizers import CLASSES, Case, advance, assert_same, options_of, snapshot, stepped, weights
from sketchy import Shampoo, SketchyShampoo, SketchySOAP

every_class = pytest.mark.parametrize("case", CLASSES, ids=str)

State = dict[str, Any]


def _drop(key: str) -> Callable[[State], None]:
    def damage(saved: State) -> None:
        del saved["state"][0][key]

    return damage


def _put(key: str, value: Any) -> Callable[[State], None]:
    def damage(saved: State) -> None:
        saved["state"][0][key] = value

    return damage


def _spoil(saved: State) -> None:
    key = next(k for k in reversed(saved["state"][1]) if saved["state"][1][k].dim() > 0)
    saved["state"][1][key].view(-1)[-1] = torch.nan


def _regroup(saved: State) -> None:
    group = saved["param_groups"][0]
    saved["param_groups"] = [
        {**group, "params": group["params"][:2]},
        {**group, "params": group["params"][2:]},
    ]


DAMAGES: dict[str, tuple[Callable[[State], Any], str]] = {
    "no state": (lambda s: s.pop("state"), "no 'state'"),
    "no groups": (lambda s: s.pop("param_groups"), "no 'param_groups'"),
    "groups without parameters": (lambda s: s["param_groups"][0].pop("params"), "params"),
    "a group more": (lambda s: s["param_groups"].append(dict(s["param_groups"][0])), "groups"),
    "a group less": (lambda s: s["param_groups"].clear(), "groups"),
    "other groups": (_regroup, "groups"),
    "a parameter less": (lambda s: s["param_groups"][0]["params"].pop(), "parameters"),
    "a missing counter": (_drop("step"), "lacks step"),
    "an unknown tensor": (_put("exp_avg", torch.zeros(6, 5)), "has exp_avg"),
    "a word for a tensor": (_put("skipped", "0"), "skipped of type str"),
    "a wrong shape": (_put("step", torch.zeros(3)), r"step of shape \(3,\)"),
    "a wrong dtype": (_put("step", torch.zeros((), dtype=torch.int32)), "step in torch.int32"),
    "a NaN": (_spoil, "NaN"),
    "a negative counter": (_put("step", torch.tensor(-1.0)), "step with entries below zero"),
    "a fraction of a step": (_put("step", torch.tensor(1.5)), "step that is not a whole number"),
    "endless steps": (_put("step", torch.tensor(torch.inf)), "step with NaN or Inf"),
    "more steps than float64 can count": (
        _put("skipped", torch.tensor(2**53 + 1)),
        r"skipped with entries above 9e\+15",
    ),
    "a sparse tensor": (_put("step", torch.tensor(1.0).to_sparse()), "step in .*sparse"),
    "a state of nobody": (lambda s: s["state"].update({99: s["state"][0]}), "a state for 99"),
    "no dict of states": (lambda s: s.update(state=None), "'state' of the state dict is a NoneType"),
    "a list of states": (lambda s: s.update(state=[1]), "'state' of the state dict is a list"),
    "None for groups": (
        lambda s: s.update(param_groups=None),
        "'param_groups' of the state dict is a NoneType",
    ),
    "a list for a group": (lambda s: s["param_groups"].__setitem__(0, []), "group 0 .*is a list"),
    "None for parameters": (lambda s: s["param_groups"][0].update(params=None), "lacks a list of params"),
    "a rate below zero": (
        lambda s: s["param_groups"][0].update(lr=torch.tensor(-1.0)),
        "lr=-1.0 in parameter group 0",
    ),
    "not a dict": (lambda s: s["state"].update({0: [torch.zeros(3)]}), "list"),
    "a bad option": (lambda s: s["param_groups"][0].update(lr=-1.0), "lr=-1.0 in parameter group 0"),
    "bad betas": (lambda s: s["param_groups"][0].update(betas=(0.9, 1.5)), "beta2=1.5 in parameter group 0"),
    "no rate": (lambda s: s["param_groups"][0].pop("lr"), "lacks.*lr"),
}


@every_class
@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_state_dict_is_refused_and_changes_nothing(case: Case, name: str) -> None:
    optimizer, params = stepped(case)
    saved = copy.deepcopy(optimizer.state_dict())
    damage, message = DAMAGES[name]
    damage(saved)
    _assert_refused(optimizer, saved, message)
    advance(optimizer, params, [3])
    whole, _ = stepped(case, 4)
    assert_same(snapshot(optimizer), snapshot(whole))


def _assert_refused(optimizer: Any, saved: State, message: str) -> None:
    before, options = snapshot(optimizer), options_of(optimizer)
    with pytest.raises(ValueError, match=message):
        optimizer.load_state_dict(saved)
    assert_same(snapshot(optimizer), before)
    assert options_of(optimizer) == options


@every_class
def test_a_foreign_state_dict_is_refused_and_changes_nothing(case: Case) -> None:
    optimizer, _ = stepped(case)
    for steps in (0, 2):
        params = weights()
        adamw = torch.optim.AdamW(params, lr=0.3)
        advance(adamw, params, range(steps))
        _assert_refused(optimizer, adamw.state_dict(), "another optimizer")
    for other in CLASSES:
        if other.cls is not case.cls:
            for steps in (0, 2):
                foreign, _ = stepped(other, steps)
                _assert_refused(optimizer, foreign.state_dict(), "another optimizer")
    if "rank" in case.options:
        wider, _ = stepped(case, rank=4)
        saved = wider.state_dict()
        saved["param_groups"][0]["rank"] = 3
        _assert_refused(optimizer, saved, "another optimizer or with other options")


def test_the_same_optimizer_at_another_rank_is_loaded_with_its_rank() -> None:
    for cls in (SketchyShampoo, SketchySOAP):
        wide, narrow = ((params := weights()), cls(params, rank=4)), cls(weights(), rank=3)
        advance(wide[1], wide[0], range(2))
        narrow.load_state_dict(wide[1].state_dict())
        assert narrow.param_groups[0]["rank"] == 4
        assert_same(
            {k: v for k, v in snapshot(narrow).items() if k.count(".") == 2},
            {k: v for k, v in snapshot(wide[1]).items() if k.count(".") == 2},
        )


def test_a_state_for_weights_of_another_shape_is_refused() -> None:
    mine, other = nn.Parameter(torch.ones(6, 5)), nn.Parameter(torch.ones(5, 6))
    optimizer, foreign = Shampoo([mine]), Shampoo([other])
    advance(foreign, [other], [0])
    _assert_refused(optimizer, foreign.state_dict(), "shape")


@every_class
def test_keys_that_have_become_words_and_parameters_listed_twice_are_refused(case: Case) -> None:
    optimizer, _ = stepped(case)
    words = optimizer.state_dict()
    words["state"] = {str(key): state for key, state in words["state"].items()}
    _assert_refused(optimizer, words, "a state for '0'")
    twice = copy.deepcopy(optimizer.state_dict())
    twice["param_groups"][0]["params"][1] = 0
    _assert_refused(optimizer, twice, "lists a parameter twice")


@every_class
def test_states_that_no_step_leaves_behind_are_refused(case: Case) -> None:
    """Negative moments and non-orthonormal bases would spoil the weights some steps later."""
    optimizer, _ = stepped(case)
    saved = optimizer.state_dict()
    unsigned = {"eigenvalues": "below zero", "escaped_mass": "below zero", "moment": "below zero"}
    tried = set()
    for index, state in saved["state"].items():
        for key, value in state.items():
            message = next((m for end, m in unsigned.items() if key.endswith(end)), None)
            if key.endswith("_basis"):
                bad, message = torch.zeros_like(value), "not orthonormal"
            elif message:
                bad = value.clone()
                bad.view(-1)[0] = -1e-3
            else:
                continue
            tried.add(message)
            damaged = copy.deepcopy(saved)
            damaged["state"][index][key] = bad
            _assert_refused(optimizer, damaged, message)
    assert tried == {"below zero", "not orthonormal"}


@every_class
def test_eigenvalues_that_ascend_are_refused(case: Case) -> None:
    """A step takes the first one for the largest."""
    optimizer, _ = stepped(case)
    for index, state in optimizer.state_dict()["state"].items():
        for key in state:
            if key.endswith("_eigenvalues") and state[key].shape[-1] > 1:
                damaged = copy.deepcopy(optimizer.state_dict())
                damaged["state"][index][key] = state[key].flip(-1) + torch.arange(state[key].shape[-1])
                _assert_refused(optimizer, damaged, "not in descending order")

"""The table of optimizers x what happens to state: made, copied, saved, loaded, refused."""

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from optim.optimizers import (
    BF16,
    CASES,
    CLASSES,
    F32,
    F64,
    WEIGHTS,
    Case,
    advance,
    assert_same,
    gradient,
    options_of,
    snapshot,
    stepped,
    weights,
)

every_case = pytest.mark.parametrize("case", CASES, ids=str)
every_class = pytest.mark.parametrize("case", CLASSES, ids=str)

State = dict[str, Any]


def through_torch(state: State) -> State:
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@every_case
@pytest.mark.parametrize("rate", [0.0, torch.tensor(0.0)], ids=["number", "tensor"])
def test_a_first_step_of_zeros_creates_everything_and_moves_nothing(case: Case, rate: Any) -> None:
    params = weights()
    optimizer = case.make(params, lr=rate, weight_decay=0.5)
    for p in params:
        p.grad = torch.zeros_like(p)
    optimizer.step(closure=None)
    assert all(torch.equal(p, q) for p, q in zip(params, weights(), strict=True))
    made = snapshot(optimizer)
    assert all(tensor.isfinite().all() for tensor in made.values())

    advance(optimizer, params, range(4))
    later = snapshot(optimizer)
    assert {k: (v.shape, v.dtype) for k, v in later.items()} == {
        k: (v.shape, v.dtype) for k, v in made.items()
    }
    own, _ = stepped(case)
    assert snapshot(own).keys() == made.keys()


@every_case
def test_state_is_flat_plain_tensors_under_names_without_dots(case: Case) -> None:
    optimizer, params = stepped(case)
    for p in params:
        for key, value in optimizer.state[p].items():
            assert type(key) is str and "." not in key
            assert type(value) is type(torch.empty(0)) and not value.requires_grad
            assert value.untyped_storage().nbytes() == value.nbytes, f"{key} holds a larger buffer"
        assert float(optimizer.state[p]["step"]) == (3 if p.numel() else 0)
    allowed = (int, float, str, bool, type(None), tuple)
    for group in optimizer.state_dict()["param_groups"]:
        assert all(type(v) in allowed for k, v in group.items() if k not in ("params", "param_names"))


@every_case
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_save_load_continue_equals_never_having_stopped(case: Case, dtype: torch.dtype) -> None:
    whole, _ = stepped(case, 7, dtype)
    first, params = stepped(case, 4, dtype)
    saved = through_torch(first.state_dict())
    copies = [nn.Parameter(p.detach().clone()) for p in params]
    resumed = case.make(copies, lr=0.5)  # the saved options count
    resumed.load_state_dict(saved)
    assert_same(snapshot(resumed), snapshot(first))
    advance(first, params, range(4, 7))  # what happens to one must not reach the other
    advance(resumed, copies, range(4, 7))
    assert_same(snapshot(resumed), snapshot(whole))
    assert options_of(resumed) == options_of(whole)


@every_class
@pytest.mark.parametrize(
    "options",
    [
        {"momentum_dtype": BF16, "sketch_dtype": BF16},
        {"update_every": 3},
        {"sketch_dtype": F64, "nesterov": False},
    ],
    ids=["bfloat16", "every third", "float64"],
)
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_it_continues_with_other_dtypes_and_between_refreshes_too(
    case: Case, options: dict[str, Any], dtype: torch.dtype
) -> None:
    whole, _ = stepped(case, 8, dtype, **options)
    first, params = stepped(case, 4, dtype, **options)
    resumed = case.make(params)
    resumed.load_state_dict(through_torch(first.state_dict()))
    advance(resumed, params, range(4, 8))
    assert_same(snapshot(resumed), snapshot(whole))


@every_case
def test_dtypes_survive_loading_into_a_model_of_another_dtype(case: Case) -> None:
    single, _ = stepped(case, 3, F32)
    half = case.make(weights(BF16))
    half.load_state_dict(single.state_dict())
    before, after = snapshot(single), snapshot(half)
    for name, tensor in after.items():
        if name.count(".") == 2:
            assert torch.equal(tensor, before[name]) and tensor.dtype == before[name].dtype, name
    assert any(tensor.dtype == F64 for tensor in after.values())
    advance(half, half.param_groups[0]["params"], [3])
    assert all(tensor.isfinite().all() for tensor in snapshot(half).values())


@every_class
def test_loading_ones_own_state_changes_nothing(case: Case) -> None:
    """Accelerate's prepare does this."""
    optimizer, params = stepped(case)
    before, options = snapshot(optimizer), options_of(optimizer)
    optimizer.load_state_dict(optimizer.state_dict())
    assert_same(snapshot(optimizer), before)
    assert options_of(optimizer) == options
    advance(optimizer, params, [3])
    whole, _ = stepped(case, 4)
    assert_same(snapshot(optimizer), snapshot(whole))


@every_class
def test_the_optimizer_itself_can_be_pickled_and_copied(case: Case) -> None:
    for steps in (0, 2):
        optimizer, _ = stepped(case, steps)
        twin = pickle.loads(pickle.dumps(optimizer))
        third = copy.deepcopy(twin)
        for each in (optimizer, twin, third):
            assert type(each) is case.cls
            advance(each, each.param_groups[0]["params"], range(steps, 5))
        assert_same(snapshot(twin), snapshot(optimizer))
        assert_same(snapshot(third), snapshot(optimizer))
        assert str(twin.report()) == str(optimizer.report())


@every_class
def test_state_dict_hooks_run_and_may_add_keys_of_their_own(case: Case) -> None:
    optimizer, _ = stepped(case)
    calls: list[str] = []

    def before_saving(o: Any) -> None:
        calls.append("before saving")
        o.state["extra"] = {"note": 1}

    def after_saving(_: Any, saved: State) -> None:
        calls.append("after saving")
        saved["more"] = 2

    def before_loading(_: Any, loaded: State) -> None:
        calls.append("before loading")
        assert loaded.pop("more") == 2

    def after_loading(o: Any) -> None:
        calls.append("after loading")
        seen.update(snapshot(o))  # dtypes are right already

    seen: dict[str, torch.Tensor] = {}
    optimizer.register_state_dict_pre_hook(before_saving)
    optimizer.register_state_dict_post_hook(after_saving)
    saved = optimizer.state_dict()
    assert saved["state"]["extra"] == {"note": 1} and saved["more"] == 2
    other = case.make(weights(BF16))
    other.register_load_state_dict_pre_hook(before_loading)
    other.register_load_state_dict_post_hook(after_loading)
    other.load_state_dict(saved)
    assert calls == ["before saving", "after saving", "before loading", "after loading"]
    assert other.state["extra"] == {"note": 1}
    assert_same(seen, snapshot(other))
    assert {k: v.dtype for k, v in seen.items() if k.count(".") == 2} == {
        k: v.dtype for k, v in snapshot(optimizer).items() if k.count(".") == 2
    }
    advance(other, other.param_groups[0]["params"], [3])
    advance(optimizer, optimizer.param_groups[0]["params"], [3])
    assert len(optimizer.report()) == len(WEIGHTS)


@every_class
def test_names_of_parameters_survive_and_may_be_missing_on_one_side(case: Case) -> None:
    params = weights()
    named = case.make(zip(WEIGHTS, params, strict=True), path="sketch")
    advance(named, params, range(2))
    saved = through_torch(named.state_dict())
    assert saved["param_groups"][0]["param_names"] == list(WEIGHTS)
    for other in (case.make(weights(), path="sketch"), case.make(zip(WEIGHTS, weights(), strict=True))):
        other.load_state_dict(saved)
        assert [row.name for row in other.report()] == list(WEIGHTS)
    unnamed, _ = stepped(case, 2, path="sketch")
    named.load_state_dict(unnamed.state_dict())
    assert named.param_groups[0]["param_names"] == list(WEIGHTS)


@every_class
def test_the_report_shows_a_state_of_another_graft(case: Case) -> None:
    """The next step refuses it, and says why; a table is no place to fail."""
    optimizer, _ = stepped(case, graft="sgd")
    before = [row.escaped_share for row in optimizer.report()]
    optimizer.param_groups[0]["graft"] = "rows"
    assert [row.escaped_share for row in optimizer.report()] == before
    assert all(known.parameter in optimizer.state for known in optimizer.covariances())


CHANGES: list[dict[str, Any]] = [
    {"betas": (0.0, 0.9)},
    {"graft": "rmsprop"},
    {"block_size": 2},
    {"path": "adam"},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
@every_class
def test_options_that_shape_the_state_may_not_change_under_it(case: Case, change: dict[str, Any]) -> None:
    """The error comes before anything changes, and training can continue as the message says."""
    options = {"betas": (0.9, 0.999)} if "betas" in change else {}
    optimizer, params = stepped(case, **options)
    before = snapshot(optimizer)
    optimizer.param_groups[0].update(change)
    with pytest.raises(
        ValueError, match="parameter 0 of group 0 has a state for another shape or other options"
    ):
        optimizer.step()
    assert_same(snapshot(optimizer), before)
    optimizer.state.clear()
    advance(optimizer, params, range(2))
    assert all(p.isfinite().all() for p in params)


@every_class
def test_a_refused_step_leaves_no_new_state_behind(case: Case) -> None:
    """The first parameter has no state yet, the second one has a state that does not fit."""
    params = weights()
    optimizer = case.make(params)
    first, params[0].grad = params[0], None
    for i, p in enumerate(params[1:], start=1):
        p.grad = gradient(p, i, 0)
    optimizer.step()
    first.grad = gradient(first, 0, 1)
    del optimizer.state[params[1]]["step"]
    with pytest.raises(ValueError, match="parameter 1 of group 0 has a state for another shape"):
        optimizer.step()
    assert not optimizer.state.get(first)


@every_class
def test_a_checkpoint_from_before_an_option_existed_loads(case: Case) -> None:
    optimizer, _ = stepped(case)
    saved = copy.deepcopy(optimizer.state_dict())
    for name in ("maximize", "path", "nesterov"):
        del saved["param_groups"][0][name]
    other = case.make(weights())
    other.load_state_dict(saved)
    assert options_of(other) == options_of(optimizer)

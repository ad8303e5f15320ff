"""Options: each is checked, by name, value and group; those that torch and frameworks add are tolerated."""

import inspect
from typing import Any

import pytest
import torch
from torch import nn

from optim.optimizers import BF16, CLASSES, F32, Case, advance, assert_same, options_of, snapshot, weights
from sketchy import Shampoo, SketchyAdagrad, SketchyShampoo, SketchySOAP
from sketchy.optim import OPTIONS, PAPER

every_class = pytest.mark.parametrize("case", CLASSES, ids=str)

BAD: list[tuple[str, Any, str]] = [
    ("lr", -0.1, "lr=-0.1"),
    ("lr", float("nan"), "lr=nan"),
    ("lr", float("inf"), "lr=inf"),
    ("lr", "0.1", "lr='0.1'"),
    ("lr", torch.tensor(-1.0), "lr=-1.0"),
    ("lr", torch.tensor(float("nan")), "lr=nan"),
    ("lr", torch.ones(2), "Tensor lr must be 1-element"),  # in torch's words
    ("lr", None, "lr=None"),
    ("betas", 0.9, "betas=0.9"),
    ("betas", (0.9,), r"betas=\(0.9,\)"),
    ("betas", (1.0, 0.9), "beta1=1.0"),
    ("betas", (-0.1, 0.9), "beta1=-0.1"),
    ("betas", (0.9, 1.1), "beta2=1.1"),
    ("betas", (0.9, None), "beta2=None"),
    ("rank", 1, "rank=1"),
    ("rank", 2.5, "rank=2.5"),
    ("rank", "64", "rank='64'"),
    ("rank", True, "rank=True"),
    ("rank", (8, 1), "rank=1"),
    ("rank", (8, None), r"rank=\(8, None\)"),
    ("budget", "8 apples", "budget='8 apples'"),
    ("budget", 0.0, "budget=0.0"),
    ("budget", True, "budget=True"),
    ("budget_every", 0, "budget_every=0"),
    ("min_rank", 1, "min_rank=1"),
    ("max_rank", 1, "max_rank=1"),
    ("eps", -1e-8, "eps=-1e-08"),
    ("eps", float("nan"), "eps=nan"),
    ("weight_decay", -1, "weight_decay=-1"),
    ("update_every", 0, "update_every=0"),
    ("roots_every", 0, "roots_every=0"),
    ("start_step", 0, "start_step=0"),
    ("graft", "adam", "graft='adam'"),
    ("solver", "magic", "solver='magic'"),
    ("block_size", 0, "block_size=0"),
    ("stack_size", 0, "stack_size=0"),
    ("stacked", 1, "stacked=1"),
    ("graft_scale", -1.0, "graft_scale=-1.0"),
    ("merge_dims", 0, "merge_dims=0"),
    ("one_sided", 1, "one_sided=1"),
    ("row_norm", 1.0, "row_norm=1.0"),
    ("row_norm", True, "row_norm=True"),
    ("whiten", 1, "whiten=1"),
    ("sketch_beta2", 1.5, "sketch_beta2=1.5"),
    ("polar", -1, "polar=-1"),
    ("polar", 2.5, "polar=2.5"),
    ("adam_lr_scale", -1.0, "adam_lr_scale=-1.0"),
    ("adam_betas", 0.9, "adam_betas=0.9"),
    ("adam_betas", (1.0, 0.9), "adam_beta1=1.0"),
    ("exponent", 0.0, "exponent=0.0"),
    ("exponent", 1.5, "exponent=1.5"),
    ("nesterov", "yes", "nesterov='yes'"),
    ("moving_average_momentum", None, "moving_average_momentum=None"),
    ("momentum_dtype", torch.int16, "momentum_dtype=torch.int16"),
    ("momentum_dtype", "half", "momentum_dtype=half"),
    ("adam_dtype", torch.bfloat16, "adam_dtype=torch.bfloat16"),
    ("sketch_dtype", torch.float16, "sketch_dtype=torch.float16"),
    ("precondition_1d", 0, "precondition_1d=0"),
    ("maximize", 1, "maximize=1"),
    ("path", "sgd", "path='sgd'"),
]


def test_the_table_of_bad_values_has_every_option() -> None:
    assert {name for name, _, _ in BAD} == set(OPTIONS)


@every_class
@pytest.mark.parametrize(("name", "value", "message"), BAD, ids=[m for *_, m in BAD])
def test_a_bad_option_is_refused_by_name_value_and_group(
    case: Case, name: str, value: Any, message: str
) -> None:
    p, q = nn.Parameter(torch.zeros(3, 2)), nn.Parameter(torch.zeros(3, 2))
    if name in case.cls.without:
        with pytest.raises(ValueError, match=f"{name}=.*{case.cls.__name__} has no such option"):
            case.cls([p], **{name: OPTIONS[name].default})
        with pytest.raises(ValueError, match=f"{name}=.* in parameter group 1: .* has no such option"):
            case.cls([{"params": [p]}, {"params": [q], name: OPTIONS[name].default}])
        return
    with pytest.raises(ValueError, match=f"^{message}: (must|its shape) "):
        case.cls([p], **{name: value})
    with pytest.raises(ValueError, match=f"^{message} in parameter group 1: (must|its shape) "):
        case.cls([{"params": [p]}, {"params": [q], name: value}])

    optimizer = case.make([p])
    before = options_of(optimizer)
    with pytest.raises(ValueError, match="in parameter group 1"):
        optimizer.add_param_group({"params": [q], name: value})
    assert options_of(optimizer) == before


@every_class
def test_a_bad_value_put_into_a_group_by_hand_is_refused_by_the_next_step_and_changes_nothing(
    case: Case,
) -> None:
    params = weights()
    optimizer = case.make(params)
    advance(optimizer, params, range(2))
    before = snapshot(optimizer)
    for name, value, message in BAD:
        # reading tensors could take time
        if name in case.cls.without or (isinstance(value, torch.Tensor) and value.numel() == 1):
            continue
        kept, optimizer.param_groups[0][name] = optimizer.param_groups[0][name], value
        with pytest.raises(ValueError, match=f"{message}.* in parameter group 0: "):
            optimizer.step()
        optimizer.param_groups[0][name] = kept
        assert_same(snapshot(optimizer), before)


@every_class
def test_an_unknown_option_is_refused_with_the_list_of_known_ones(case: Case) -> None:
    with pytest.raises(TypeError, match=f"{case.cls.__name__} has no option 'k'; it has lr, betas"):
        case.cls([nn.Parameter(torch.zeros(2))], k=3)
    with pytest.raises(TypeError, match=r"no option 'weight_deacy'; did you mean weight_decay\?$"):
        case.cls([nn.Parameter(torch.zeros(2))], weight_deacy=3)


@every_class
@pytest.mark.parametrize(
    ("params", "error"),
    [
        (nn.Parameter(torch.zeros(2)), TypeError),
        ([], ValueError),
        ([torch.zeros(2, requires_grad=True) * 2], ValueError),
        ([{"params": {nn.Parameter(torch.zeros(2))}}], TypeError),
        ([("weight", nn.Parameter(torch.zeros(2))), nn.Parameter(torch.zeros(2))], ValueError),
        ([{"params": [1.0]}], TypeError),
    ],
    ids=["a bare tensor", "nothing", "not a leaf", "a set", "names for some", "no tensor"],
)
def test_wrong_parameters_are_refused_as_by_torch(case: Case, params: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        torch.optim.AdamW(params)
    with pytest.raises(error):
        case.make(params)


@every_class
def test_a_parameter_in_two_groups_is_refused_and_one_listed_twice_warns(case: Case) -> None:
    p = nn.Parameter(torch.zeros(2))
    with pytest.raises(ValueError, match="more than one parameter group"):
        case.make([{"params": [p]}, {"params": [p]}])
    with pytest.warns(UserWarning, match="duplicate parameters"):
        case.make([p, p])


@every_class
def test_flags_of_torch_in_groups_change_nothing(case: Case) -> None:
    params, twins = weights(), weights()
    flags = {"foreach": True, "fused": True, "capturable": True, "differentiable": False, "amsgrad": False}
    flagged, plain = case.make([{"params": params, **flags}]), case.make(twins)
    advance(flagged, params, range(3))
    flagged.zero_grad()
    advance(plain, twins, range(3))
    assert_same(snapshot(flagged), snapshot(plain))
    other = case.make(weights())
    other.load_state_dict(flagged.state_dict())
    assert_same(
        {k: v for k, v in snapshot(other).items() if k.count(".") > 1},
        {k: v for k, v in snapshot(flagged).items() if k.count(".") > 1},
    )


@every_class
def test_every_option_is_shown_with_its_default_and_kept_as_a_plain_value(case: Case) -> None:
    shown = inspect.signature(case.cls).parameters
    optimizer = case.cls(weights())
    # a mesh, and graphs: no options of groups
    assert list(shown) == ["params", *optimizer.defaults, "split", "compile"]
    assert {name: shown[name].default for name in optimizer.defaults} == optimizer.defaults
    assert set(optimizer.defaults) == set(OPTIONS) - case.cls.without
    positional = case.cls(weights(), 0.25, (0.5, 0.75))
    assert positional.defaults["lr"] == 0.25 and positional.defaults["betas"] == (0.5, 0.75)


def test_dtypes_are_given_as_dtypes_or_by_name_and_kept_by_name() -> None:
    for given in (torch.bfloat16, "bfloat16", "torch.bfloat16"):
        params = weights()
        optimizer = SketchyShampoo(params, rank=3, momentum_dtype=given, sketch_dtype=given)
        assert optimizer.defaults["momentum_dtype"] == optimizer.defaults["sketch_dtype"] == "bfloat16"
        advance(optimizer, params, range(2))
        state = optimizer.state[params[0]]
        assert state["momentum"].dtype == state["left_basis"].dtype == BF16
        assert optimizer.state[params[4]]["root_moment"].dtype == F32


@pytest.mark.parametrize("cls", [SketchyShampoo, SketchySOAP])
def test_state_in_bfloat16_changes_steps_by_its_rounding(cls: type[torch.optim.Optimizer]) -> None:
    ends = []
    for dtype in (None, BF16):
        params = weights()
        optimizer = cls(params, rank=3, lr=0.01, momentum_dtype=dtype, sketch_dtype=dtype)
        advance(optimizer, params, range(5))
        ends.append([p.detach() for p in params])
    for i, start in enumerate(weights()):
        moved, error = (ends[0][i] - start).norm(), (ends[0][i] - ends[1][i]).norm()
        assert error <= 0.1 * moved


def test_a_dtype_put_into_a_group_by_hand_counts() -> None:
    p = torch.nn.Parameter(torch.ones(5, 4))
    optimizer = SketchySOAP([p])
    optimizer.param_groups[0]["momentum_dtype"] = torch.bfloat16
    p.grad = torch.ones(5, 4)
    optimizer.step()
    assert optimizer.state[p]["momentum"].dtype == torch.bfloat16


def test_the_papers_settings_are_valid_and_differ_from_the_defaults() -> None:
    params = weights()
    optimizer = SketchyShampoo(params, lr=0.1, **PAPER)
    advance(optimizer, params, range(3))
    said = {  # Sec. 5 and App. C
        "block_size": 1024,
        "rank": 256,
        "start_step": 101,
        "update_every": 10,
        "graft": "rmsprop_normalized",
        "moving_average_momentum": True,
    }
    assert said.items() <= optimizer.defaults.items()
    with pytest.raises(ValueError, match="no such option"):
        Shampoo(params, **PAPER)


def test_defaults_are_those_of_the_docs() -> None:
    for cls, betas in ((SketchyShampoo, (0.9, 0.95)), (SketchySOAP, (0.9, 0.95)), (Shampoo, (0.9, 0.999))):
        assert cls(weights()).defaults["lr"] == 1e-3 and cls(weights()).defaults["betas"] == betas
    adagrad = SketchyAdagrad(weights()).defaults
    assert adagrad["betas"] == (0.0, 1.0) and adagrad["graft"] is None and adagrad["weight_decay"] == 0


def test_a_slip_in_a_group_is_refused_and_what_others_keep_there_is_not() -> None:
    for slip, meant in (("weight_deacy", "weight_decay"), ("beta", "betas"), ("update_evry", "update_every")):
        with pytest.raises(ValueError, match=rf"{slip}=0.3 in parameter group 0: .* did you mean {meant}\?"):
            SketchyShampoo([{"params": weights(), slip: 0.3}])
    others = {
        "initial_lr": 0.1,
        "max_lr": 1.0,
        "lr_scale": 0.5,
        "swa_lr": 0.1,
        "name": "body",
        "foreach": None,
    }
    optimizer = SketchyShampoo([{"params": weights(), **others}])
    assert others.items() <= optimizer.param_groups[0].items()

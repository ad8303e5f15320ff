"""State in few bits: bad gradients, copies and checkpoints leave or restore every bit."""

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

from optim.few_bits import DTYPES, FORMS, SHAPES, VARIANTS, classes, forms, held, made, variants
from optim.optimizers import BF16, F32, advance, assert_same, gradient, snapshot
from sketchy import SketchySOAP
from sketchy.optim import SMALL


@forms
@variants
@pytest.mark.parametrize("masked", [False, True])
def test_a_bad_gradient_leaves_every_bit_as_it_is(
    form: str, variant: str, masked: bool, request: pytest.FixtureRequest
) -> None:
    if masked:  # as on an accelerator
        request.getfixturevalue("blind")
    optimizer, params = made(SketchySOAP, 3, **FORMS[form], **VARIANTS[variant])
    before = snapshot(optimizer)
    for i, p in enumerate(params):
        p.grad = gradient(p, i, 9)
        if i != 1:  # this one is in a stack with a bad one
            p.grad.view(-1)[-1] = torch.nan if i % 2 else torch.inf
    optimizer.step()
    after = snapshot(optimizer)
    for name in before:
        one = name.split(".")[1] == "1"
        if name.endswith(("skipped", "turn")):
            continue
        same = torch.equal(before[name], after[name])
        assert same or one, name
        if name.endswith(("1.momentum", "1.step")):
            assert not same


@pytest.mark.parametrize(("variant", "dtype"), DTYPES)
@forms
@classes
def test_a_saved_run_continues_to_the_bit(cls: Any, form: str, variant: str, dtype: torch.dtype) -> None:
    options = {**FORMS[form], **VARIANTS[variant]}
    whole, _ = made(cls, 7, dtype, **options)
    first, params = made(cls, 4, dtype, **options)
    buffer = io.BytesIO()
    torch.save(first.state_dict(), buffer)
    buffer.seek(0)
    saved = torch.load(buffer, weights_only=True)
    twins = [copy.deepcopy(first), pickle.loads(pickle.dumps(first))]
    for chosen in (options, {}):  # None: as in the checkpoint
        named = [(name, nn.Parameter(p.detach().clone())) for name, p in zip(SHAPES, params, strict=True)]
        twins.append(cls(named, **chosen))
        twins[-1].load_state_dict(saved)
    for twin in twins:
        assert_same(snapshot(twin), snapshot(first))
        advance(twin, twin.param_groups[0]["params"], range(4, 7))
        assert_same(snapshot(twin), snapshot(whole))


@forms
def test_distributed_checkpoints_have_plain_tensors(form: str) -> None:
    def build(steps: int) -> tuple[nn.Module, Any]:
        layers = {"embed": nn.Embedding(70, 65), "layer": nn.Linear(40, 24), "more": nn.Linear(40, 24)}
        net = nn.ModuleDict(layers)
        for p in net.parameters():
            nn.init.ones_(p)
        optimizer = SketchySOAP(net.named_parameters(), rank=4, **FORMS[form])
        advance(optimizer, list(net.parameters()), range(steps))
        return net, optimizer

    (source, optimizer), (target, fresh) = build(3), build(0)
    set_optimizer_state_dict(target, fresh, get_optimizer_state_dict(source, optimizer))
    target.load_state_dict(source.state_dict())
    assert_same(snapshot(fresh), snapshot(optimizer))
    for net, each in ((source, optimizer), (target, fresh)):
        advance(each, list(net.parameters()), range(3, 5))
    assert_same(snapshot(fresh), snapshot(optimizer))


@classes
@pytest.mark.parametrize("form", [*FORMS, "bfloat16"])
def test_a_chosen_dtype_converts_a_float32_checkpoint_and_back(cls: Any, form: str) -> None:
    chosen = FORMS.get(form, {"momentum_dtype": BF16})
    plain, _ = made(cls, 4)
    saved = copy.deepcopy(plain.state_dict())
    short, _ = made(cls, **chosen)
    short.load_state_dict(saved)
    fitting, _ = made(cls, 4, **chosen)
    assert {k: (v.shape, v.dtype) for k, v in snapshot(short).items()} == {
        k: (v.shape, v.dtype) for k, v in snapshot(fitting).items()
    }
    assert short.report().bytes == held(short) < held(plain)
    long, _ = made(cls, **dict.fromkeys(chosen, "float32"))
    long.load_state_dict(short.state_dict())
    now, then = snapshot(long), snapshot(plain)
    assert now.keys() == then.keys()
    tolerance = {"int8": 0.02, "bfloat16": 0.01}.get(form, 0.2)
    for name, tensor in then.items():
        if name.endswith("momentum"):
            assert now[name].dtype == F32 and (now[name] - tensor).norm() <= tolerance * tensor.norm()
        elif name.endswith("root_moment"):
            assert (now[name] - tensor).norm() <= 0.02 * tensor.norm()
        elif name.count(".") == 2:
            assert torch.equal(now[name], tensor), name
    again, _ = made(cls, **chosen)  # what was rounded is not rounded again
    again.load_state_dict(long.state_dict())
    if form in ("int8", "bfloat16"):
        assert_same(snapshot(again), snapshot(short))
    for optimizer in (short, long):
        advance(optimizer, optimizer.param_groups[0]["params"], [4])
        assert all(tensor.isfinite().all() for tensor in snapshot(optimizer).values())


def test_weights_without_entries_are_loaded_into_other_dtypes_too() -> None:
    shapes = ((5, 5), (0, 5))
    saved, other = (
        SketchySOAP([torch.nn.Parameter(torch.zeros(shape)) for shape in shapes], **options)
        for options in ({}, {"momentum_dtype": torch.bfloat16})
    )
    for p in saved.param_groups[0]["params"]:
        p.grad = torch.ones_like(p)
    saved.step()
    other.load_state_dict(saved.state_dict())
    assert other.state[other.param_groups[0]["params"][0]]["momentum"].dtype == torch.bfloat16


def test_a_checkpoint_without_the_option_is_one_of_float32() -> None:
    plain, _ = made(SketchySOAP, 3)
    saved = copy.deepcopy(plain.state_dict())
    del saved["param_groups"][0]["adam_dtype"]
    short, params = made(SketchySOAP, **SMALL)
    short.load_state_dict(saved)
    assert short.param_groups[0]["adam_dtype"] == "int8"
    assert short.state[params[4]]["root_moment"].dtype == torch.uint8


DAMAGES = {
    "momentum": [
        (lambda x: x.float(), "momentum in torch.float32"),
        (lambda x: x[:-1], "momentum of shape"),
        (lambda x: None, "momentum of type NoneType"),
    ],
    "momentum_scale": [
        (lambda x: x * torch.nan, "momentum_scale with NaN or Inf"),
        (lambda x: -x, "momentum_scale with entries below zero"),
        (lambda x: x[..., :0], "momentum_scale of shape"),
        (lambda x: x.to(torch.int8), "momentum_scale in torch.int8"),
    ],
    "momentum_coordinates": [(lambda x: x * torch.inf, "momentum_coordinates with NaN or Inf")],
    "root_moment": [(lambda x: x.to(torch.int8), "root_moment in torch.int8")],
    "root_moment_scale": [(lambda x: -x, "root_moment_scale with entries below zero")],
}


@pytest.mark.parametrize("key", DAMAGES)
def test_damaged_codes_and_scales_are_refused(key: str) -> None:
    optimizer, _ = made(SketchySOAP, 3, **SMALL)
    before, index = snapshot(optimizer), 4 if key.startswith("root") else 0
    for damage, message in DAMAGES[key]:
        saved = copy.deepcopy(optimizer.state_dict())
        saved["state"][index][key] = damage(saved["state"][index][key])
        with pytest.raises(ValueError, match=f"has {message}.*Nothing was loaded"):
            optimizer.load_state_dict(saved)
        assert_same(snapshot(optimizer), before)
    saved = copy.deepcopy(optimizer.state_dict())
    saved["state"][4]["momentum"][0, 0] = -128
    with pytest.raises(ValueError, match="momentum with the code -128"):
        optimizer.load_state_dict(saved)


def test_a_step_in_few_bits_needs_no_value_of_a_device() -> None:
    for form in FORMS.values():
        for variant in ({}, {"block_size": 18}):
            params = [nn.Parameter(torch.empty(shape, device="meta")) for shape in SHAPES.values()]
            optimizer = SketchySOAP(list(zip(SHAPES, params, strict=True)), rank=4, **form, **variant)
            for _ in range(2):
                for p in params:
                    p.grad = torch.empty_like(p)
                optimizer.step()
            assert all(state["momentum"].is_meta for state in optimizer.state.values())

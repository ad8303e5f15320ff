"""`create_optimizer`: the parameter groups that people write by hand."""

from typing import Any

import pytest
import torch
from torch import nn

import sketchy
from sketchy import Shampoo, SketchyAdagrad, SketchyShampoo, SketchySOAP, create_optimizer


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(11, 6)
        self.up, self.norm = nn.Linear(6, 8), nn.LayerNorm(8)
        self.lm_head = nn.Linear(8, 11, bias=False)


class Adapted(nn.Module):
    """A frozen layer with an adapter, named as peft does."""

    def __init__(self) -> None:
        super().__init__()
        self.base = Model().requires_grad_(False)
        self.lora_A, self.lora_B = (
            nn.ModuleDict({"default": nn.Linear(*s, bias=False)}) for s in ((6, 2), (2, 8))
        )
        self.lora_embedding_A = nn.ParameterDict({"default": nn.Parameter(torch.zeros(2, 11))})


def groups_of(optimizer: torch.optim.Optimizer) -> dict[str, tuple[str, float]]:
    """Path and weight decay of each parameter."""
    return {
        name: (group["path"], group["weight_decay"])
        for group in optimizer.param_groups
        for name in group["param_names"]
    }


@pytest.mark.parametrize("cls", [SketchySOAP, SketchyShampoo, Shampoo])
def test_matrices_embeddings_heads_and_vectors_get_their_path_and_decay(cls: Any) -> None:
    expected = {
        "up.weight": ("sketch", 0.1),
        "wte.weight": ("adam", 0.1),
        "lm_head.weight": ("adam", 0.1),
        "up.bias": ("adam", 0.0),
        "norm.weight": ("adam", 0.0),
        "norm.bias": ("adam", 0.0),
    }
    for asked in (cls, cls.__name__):
        optimizer = create_optimizer(Model(), asked, lr=0.2, weight_decay=0.1)
        assert type(optimizer) is cls and groups_of(optimizer) == expected
        assert {group["lr"] for group in optimizer.param_groups} == {0.2}


def test_more_weights_are_spared_by_parts_of_their_names_or_by_a_function() -> None:
    plain = {"up.bias", "norm.weight", "norm.bias"}
    for no_decay, more in (
        ("wte", {"wte.weight"}),
        (("wte", "head"), {"wte.weight", "lm_head.weight"}),
        (lambda name, p: p.shape == (8, 6), {"up.weight"}),
        ((), set()),
    ):
        found = groups_of(create_optimizer(Model(), weight_decay=0.1, no_decay=no_decay))
        assert {name for name, (_, decay) in found.items() if decay == 0} == plain | more
    assert all(
        decay == 0.1
        for _, decay in groups_of(create_optimizer(Model(), weight_decay=0.1, no_decay=None)).values()
    )


def test_frozen_weights_are_left_out_and_adapters_are_trained() -> None:
    model = Adapted()
    optimizer = create_optimizer(model, lr=0.1, weight_decay=0.1)
    assert groups_of(optimizer) == {
        "lora_A.default.weight": ("sketch", 0.1),
        "lora_B.default.weight": ("sketch", 0.1),
        "lora_embedding_A.default": ("adam", 0.1),
    }
    frozen = {name: p.clone() for name, p in model.base.named_parameters()}
    model.lora_B["default"](model.lora_A["default"](torch.ones(3, 6))).square().sum().backward()
    before = model.lora_A["default"].weight.clone()
    optimizer.step()
    assert not torch.equal(model.lora_A["default"].weight, before)
    assert all(torch.equal(p, frozen[name]) for name, p in model.base.named_parameters())


def test_an_optimizer_for_vectors_keeps_them_on_its_path() -> None:
    assert {path for path, _ in groups_of(create_optimizer(Model(), SketchyAdagrad)).values()} == {"auto"}
    found = groups_of(create_optimizer(Model(), "SketchyShampoo", precondition_1d=True))
    assert found["up.bias"] == ("sketch", 0.0) and found["wte.weight"][0] == "adam"


def test_mistakes_are_refused_with_what_to_do() -> None:
    with pytest.raises(
        ValueError, match=r"optimizer='SketchySoap': no such optimizer; did you mean SketchySOAP\?"
    ):
        create_optimizer(Model(), "SketchySoap")
    with pytest.raises(ValueError, match=r"optimizer='x': no such optimizer; there are .*Shampoo, "):
        create_optimizer(Model(), "x")
    with pytest.raises(ValueError, match="no_decay='wtee': no parameter has this in its name"):
        create_optimizer(Model(), no_decay=("wte", "wtee"))
    with pytest.raises(ValueError, match="Model has nothing to train: requires_grad is False everywhere"):
        create_optimizer(Model().requires_grad_(False))
    with pytest.raises(TypeError, match=r"no option 'weight_dcay'; did you mean weight_decay\?"):
        create_optimizer(Model(), weight_dcay=0.1)


def test_it_says_no_more_than_the_hand_written_groups() -> None:
    """The same steps, bit for bit."""
    torch.manual_seed(0)
    made, written = Model(), Model()
    written.load_state_dict(made.state_dict())
    groups = sketchy.param_groups(written)
    vectors = [(n, p) for n, p in groups[1]["params"] if p.dim() == 1]
    groups[1]["params"] = [(n, p) for n, p in groups[1]["params"] if p.dim() > 1]
    groups.append({"params": vectors, "path": "adam", "weight_decay": 0.0})
    optimizers = create_optimizer(made, lr=0.1), SketchySOAP(groups, lr=0.1)
    for model, optimizer in zip((made, written), optimizers, strict=True):
        for _ in range(3):
            optimizer.zero_grad()
            hidden = model.norm(model.up(model.wte(torch.arange(11))))
            model.lm_head(hidden).logsumexp(-1).square().sum().backward()
            optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(made.parameters(), written.parameters(), strict=True))


def test_a_users_class_does_not_hide_ours() -> None:
    hiding = type("SketchySOAP", (sketchy.SketchySOAP,), {})
    assert type(create_optimizer(Model(), "SketchySOAP")) is sketchy.SketchySOAP
    assert type(create_optimizer(Model(), hiding)) is hiding

"""Options, graft rules and optimizers are added in one place, as CONTRIBUTING.md promises."""

import copy
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from benchmarks import pages
from optim import test_every_optimizer, test_state
from optim.optimizers import CASES, F32, F64, Case, advance, assert_same, gradient, snapshot, stepped, weights
from sketchy import SketchyShampoo, SketchySOAP
from sketchy.analysis.memory import planned
from sketchy.analysis.state import Weight as Stored
from sketchy.core.sketch import Sketch
from sketchy.core.tasks import Task
from sketchy.optim import OPTIONS
from sketchy.optim import plan as plans
from sketchy.optim.engine import Engine
from sketchy.optim.options import Option
from sketchy.optim.parts import basis_moments, entry_moments, grafts, momentum, row_norms, sketches
from sketchy.optim.parts.contracts import WeightSpec
from sketchy.optim.parts.grafts import RULES, Rule
from sketchy.optim.parts.inverse_roots import InverseRoots
from sketchy.optim.parts.sketches import Sketches
from sketchy.optim.plan import Design
from sketchy.optim.slots import FLOAT64, Codec, Meaning, Slots
from sketchy.optim.stack import Gradient, Stack


def counted(name: str, value: Any) -> int:
    if value not in (1, 2, 3):
        raise ValueError(f"{name}={value!r}: must be 1, 2 or 3")
    return int(value)


def test_an_option_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPTIONS, "toy", Option(1, counted, "how many toys there are", shapes_plan=True))

    class Later(Engine):
        design: ClassVar[Design] = Design(InverseRoots)
        changed: ClassVar[dict[str, Any]] = {"toy": 2}

    assert inspect.signature(Later).parameters["toy"].default == 2  # help
    assert "| `toy` | `1` | how many toys there are |" in pages.TABLES["options"]()  # docs
    params = weights()
    optimizer = SketchySOAP([{"params": params[:1]}, {"params": params[1:], "toy": 3}])
    assert [group["toy"] for group in optimizer.param_groups] == [1, 3]
    with pytest.raises(ValueError, match=r"toy=4 in parameter group 2: must be 1, 2 or 3"):
        optimizer.add_param_group({"params": weights()[:1], "toy": 4})
    with pytest.raises(ValueError, match=r"toyy=1 .*did you mean toy"):
        optimizer.add_param_group({"params": weights()[:1], "toyy": 1})
    plans = [SketchySOAP.plan_of((6, 5), F32, toy=toy) for toy in (1, 3, 1)]
    assert plans[0] is plans[2] and plans[0] is not plans[1]
    other = SketchySOAP([{"params": weights()[:1]}, {"params": weights()[1:]}])
    other.load_state_dict(optimizer.state_dict())
    assert other.param_groups[1]["toy"] == 3


class Constant(Rule):
    """A step of length one, counted."""

    @classmethod
    def of(cls, weight: WeightSpec) -> "Constant":
        return cls({"toys": weight.block_slot(Meaning.MOMENT, FLOAT64, (3,), (None,))})

    def update(self, stack: Stack, G: Gradient) -> Task[Tensor]:
        yield from ()
        stack["toys"] = stack["toys"] + 1
        return torch.ones(len(G.norm), dtype=torch.float64)

    def step(self, stack: Stack, x: Tensor, length: Tensor | None) -> Task[Tensor]:
        yield from ()
        return x / x.norm()

    def length(self, stack: Stack, x: Tensor, ahead: Tensor) -> Task[Tensor]:
        raise AssertionError("update has said it")


def test_a_graft_rule_is_one_class_and_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="graft='constant'"):
        SketchySOAP(weights(), graft="constant")
    monkeypatch.setitem(RULES, "constant", Constant)
    assert "| `constant` | A step of length one, counted. |" in pages.TABLES["grafts"]()  # docs
    with pytest.raises(ValueError, match="'constant'"):  # the message lists it
        SketchySOAP(weights(), graft="nothing like it")
    for cls in (SketchyShampoo, SketchySOAP):
        p = torch.nn.Parameter(torch.zeros(6, 5))
        optimizer = cls([p], lr=0.1, rank=3, graft="constant", graft_scale=2.0, weight_decay=0.0)
        for _ in range(3):
            before = p.detach().clone()
            p.grad = torch.randn(6, 5)
            optimizer.step()
            assert float((p.detach() - before).norm()) == pytest.approx(0.2, rel=1e-5)
        assert torch.equal(optimizer.state[p]["toys"], torch.full((1, 3), 3.0, dtype=torch.float64))
        plain = cls.plan_of((6, 5), F32, graft=None, rank=3)
        (row,) = optimizer.report()
        assert row.bytes == plain.bytes + 24
        held, ungrafted = (planned(cls, rank=3, graft=rule)(Stored((6, 5))) for rule in ("constant", None))
        assert held.other == ungrafted.other + 24 and held.second_moment == ungrafted.second_moment
        case = Case("toy", cls, {"rank": 3, "graft": "constant"})
        test_state.test_save_load_continue_equals_never_having_stopped(case, F32)
        test_state.test_state_is_flat_plain_tensors_under_names_without_dots(case)


@dataclass(frozen=True)
class Signs:
    """Lion's step: the signs of the momentum, without a second moment."""

    least_axes: ClassVar[int] = 0
    waits: ClassVar[bool] = True
    adams_length: ClassVar[bool] = False
    slots: Slots

    @classmethod
    def of(cls, weight: WeightSpec, statistics: Sketches) -> "Signs":
        return cls({})

    def update(
        self, stack: Stack, G: Gradient, old: Sequence[Sketch | None], new: Sequence[Sketch | None]
    ) -> Task[None]:
        yield from ()

    def apply_(self, stack: Stack, x: Tensor, scale: Tensor, learned: None) -> Task[tuple[Tensor, Tensor]]:
        yield from ()
        return x.sign_(), torch.ones_like(scale)


def test_an_optimizer_is_one_file() -> None:
    class Toy(Engine):
        """A toy."""

        design: ClassVar[Design] = Design(Signs)
        changed: ClassVar[dict[str, Any]] = {"graft": None, "rank": 4}
        without: ClassVar[frozenset[str]] = frozenset({"exponent"})

    assert inspect.signature(Toy).parameters["rank"].default == 4  # help
    assert "exponent" not in inspect.signature(Toy).parameters
    with pytest.raises(ValueError, match="exponent=1: Toy has no such option"):
        Toy(weights(), exponent=1)
    p = torch.nn.Parameter(torch.zeros(6, 5))
    optimizer = Toy([p], lr=0.1, weight_decay=0.0)
    p.grad = torch.randn(6, 5)
    optimizer.step()
    assert torch.equal(p.detach(), -0.1 * p.grad.sign())
    assert [(row.path, row.ranks) for row in optimizer.report()] == [("sketch", (4, 4))]
    assert [known.axis for known in optimizer.covariances()] == ["left", "right"]
    case = Case("Toy", Toy)
    test_every_optimizer.test_a_step_moves_every_weight_and_leaves_gradients_alone(case)
    test_every_optimizer.test_two_runs_agree_bit_for_bit_whatever_the_global_seed(case)
    for test in (
        test_state.test_save_load_continue_equals_never_having_stopped,
        test_state.test_it_continues_with_other_dtypes_and_between_refreshes_too,
    ):
        arguments = (case, F32) if test.__code__.co_argcount == 2 else (case, {"update_every": 3}, F32)
        test(*arguments)
    assert planned(Toy)(Stored((6, 5))).momentum == 120


def test_a_checkpoint_says_whose_it_is_and_subclasses_share_it() -> None:
    """Before, an unrelated subclass with another set of options changed what could be loaded."""

    class Unrelated(Engine):
        design: ClassVar[Design] = Design(InverseRoots)
        without: ClassVar[frozenset[str]] = frozenset({"nesterov", "maximize", "eps"})

    class Mine(SketchySOAP):
        pass

    optimizer, params = stepped(Case("SketchySOAP", SketchySOAP, {"rank": 3}))
    saved = copy.deepcopy(optimizer.state_dict())
    assert {group["sketchy_optimizer"] for group in saved["param_groups"]} == {"SketchySOAP"}
    for cls in (Unrelated, SketchyShampoo):
        with pytest.raises(ValueError, match=r"was saved by SketchySOAP.*Nothing was loaded"):
            cls(weights()).load_state_dict(saved)
    copies = [torch.nn.Parameter(p.detach().clone()) for p in params]
    mine = Mine(copies)
    mine.load_state_dict(saved)
    advance(optimizer, params, [3])
    advance(mine, copies, [3])
    assert_same(snapshot(mine), snapshot(optimizer))
    regrouped = SketchyShampoo(optimizer.param_groups)  # a group is that of the optimizer it is in
    assert regrouped.state_dict()["param_groups"][0]["sketchy_optimizer"] == "SketchyShampoo"


def test_a_checkpoint_is_named_after_the_class_that_has_the_design() -> None:
    class Base(Engine):
        """Of several optimizers."""

    class First(Base):
        design: ClassVar[Design] = Design(InverseRoots)

    class Second(Base):
        design: ClassVar[Design] = Design(Signs)

    class Renamed(Engine):
        design: ClassVar[Design] = Design(InverseRoots)
        saved_as: ClassVar[str] = "First"

    optimizer, params = stepped(Case("First", First))
    with pytest.raises(ValueError, match="was saved by First"):
        Second(params).load_state_dict(optimizer.state_dict())
    Renamed(params).load_state_dict(optimizer.state_dict())


# without padding, and without codes, which have no codec
PLAIN = [case for case in CASES if not any(word in case.name for word in ("blocks", "small", "int8"))]


class Halved(Codec):
    """Stores half of a value, which loses nothing."""

    plain: ClassVar[bool] = False  # type: ignore[misc,assignment]

    def encode(self, value: Tensor) -> Tensor:
        return super().encode(value / 2)

    def decode(self, stored: Tensor) -> Tensor:
        return 2 * super().decode(stored)


@pytest.mark.parametrize("case", PLAIN, ids=str)
def test_a_way_to_store_state_is_one_codec(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every part reads and writes its slots through their codecs; bad gradients keep them to the bit."""

    def train() -> tuple[list[Tensor], Any]:
        params = weights(F64)
        optimizer = case.make(params)
        for step in range(5):
            for i, p in enumerate(params):
                bad = step == 3 and i == 1
                p.grad = torch.full_like(p, torch.nan) if bad else gradient(p, i, step)
            optimizer.step()
        return [p.detach() for p in params], optimizer

    expected, plain = train()
    plans._plan.cache_clear()
    for module in (momentum, entry_moments, grafts):
        monkeypatch.setattr(module, "Codec", Halved)
    for module in (grafts, basis_moments, row_norms, sketches):
        monkeypatch.setattr(module, "FLOAT64", Halved(F64, F64))
    found, coded = train()
    plans._plan.cache_clear()
    for p, q in zip(found, expected, strict=True):
        assert torch.equal(p, q)
    halves = {"momentum", "root_moment", "row_moment", "second_moment", "left_eigenvalues", "graft_root"}
    for name, tensor in snapshot(plain).items():
        factor = 2 if name.split(".")[-1] in halves else 1
        if factor == 2:
            assert torch.equal(factor * snapshot(coded)[name], tensor), name


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_slot_says_which_axis_each_of_its_dimensions_follows(case: Case) -> None:
    optimizer, params = stepped(case)
    for p in params:
        plan = type(optimizer).plan_of(tuple(p.shape), p.dtype, **case.options)
        for name, slot in plan.slots.items():
            assert len(slot.follows) == len(slot.shape), name
            sides = plan.layout.shape if slot.blocks is None else plan.layout.block
            for size, axis in zip(slot.shape, slot.follows, strict=True):
                assert axis is None or size == sides[axis], name

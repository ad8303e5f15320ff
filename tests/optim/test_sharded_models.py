"""Models under FSDP2, HSDP and tensor parallelism: the numbers of one process, and checkpoints that move."""

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sketchy
from ranks import on_ranks

pytestmark = pytest.mark.cpu_only("its ranks are threads or processes")

F64, BF16 = torch.float64, torch.bfloat16
CASES: list[tuple[str, dict[str, Any]]] = [
    ("SketchyShampoo", {"rank": 3}),
    ("SketchySOAP", {"rank": 3, "momentum_dtype": "int8"}),
    ("Shampoo", {}),
    ("SketchyAdagrad", {"rank": 3}),
]


class Net(nn.Module):
    """Odd sizes, an embedding, a norm, a tied pair of weights, and a layer that is not always used."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.up = nn.Linear(6, 13)
        self.norm = nn.LayerNorm(13)
        self.down = nn.Linear(13, 6)
        self.unused = nn.Linear(6, 5, bias=False)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor, step: int) -> Tensor:
        x = self.embed(ids)
        x = x + self.down(self.norm(self.up(x).tanh()))
        loss = nn.functional.cross_entropy(self.head(x).flatten(0, 1), ids.flatten())
        return loss + self.unused(x).square().mean() if step % 2 == 0 else loss


def net(dtype: torch.dtype = F64) -> Net:
    torch.manual_seed(0)
    return Net().to(dtype)


def descend(model: nn.Module, optimizer: Any, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        ids = torch.randint(11, (4, 5), generator=torch.Generator().manual_seed(step))
        model(ids, step).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def made(name: str, options: dict[str, Any], model: nn.Module) -> Any:
    return getattr(sketchy, name)(model.named_parameters(), lr=0.01, **options)


def shard(model: Net, shape: tuple[int, ...]) -> None:
    """FSDP2 for one number of ranks, HSDP for two."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    names = ("shard",) if len(shape) == 1 else ("replicate", "shard")
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    for layer in (model.up, model.down):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)


def weights(model: nn.Module) -> list[Tensor]:
    return [
        p.full_tensor() if hasattr(p, "full_tensor") else p for p in map(torch.detach, model.parameters())
    ]


def parts(optimizer: Any) -> list[Tensor]:
    """All tensors of the state, as far as they lie here."""
    values = [value for state in optimizer.state.values() for value in state.values()]
    return [value.to_local() if hasattr(value, "to_local") else value for value in values]


def assert_same(model: nn.Module, other: nn.Module, tolerance: float, case: Any) -> None:
    for p, q in zip(weights(model), weights(other), strict=True):
        assert float((p - q).abs().max()) <= tolerance, (case, float((p - q).abs().max()))


def check_models(shape: tuple[int, ...]) -> None:
    for name, options in CASES:
        one = net()
        descend(one, made(name, options, one), range(8))
        many = net()
        shard(many, shape)
        descend(many, made(name, options, many), range(8))
        assert_same(one, many, 1e-10, (name, options))


def block() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 7)).to(F64)


def parallelize(model: nn.Module, layout: str) -> None:
    """Columns of the first layer and rows of the second one (TP), FSDP2, or FSDP2 over TP."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    names = tuple(name for name in ("FSDP2", "TP") if name in layout)
    mesh = init_device_mesh("cpu", (2,) * len(names), mesh_dim_names=names)
    if "TP" in names:
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        parallelize_module(model, mesh["TP"], plan)  # type: ignore[arg-type]
    if "FSDP2" in names:
        fully_shard(model, mesh=mesh["FSDP2"])


def descend_block(model: nn.Module, optimizer: Any, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        x = torch.randn(7, 6, generator=torch.Generator().manual_seed(step), dtype=F64)
        model(x).square().mean().backward()
        optimizer.step()


def check_tensor_parallel() -> None:
    for name, options in CASES[:2]:
        one, many = block(), block()
        parallelize(many, "FSDP2 over TP")
        for model in (one, many):
            descend_block(model, made(name, options, model), range(6))
        assert_same(one, many, 1e-10, (name, options))


# ---- checkpoints

ROUTE: list[tuple[int, ...]] = [(2,), (4,), (2, 2), (1,), (2,)]
FORMS: dict[str, dict[str, bool]] = {
    "sharded": {},
    "flat": {"flatten_optimizer_state_dict": True},
    "full": {"full_state_dict": True, "cpu_offload": True},
}
MOVED: list[tuple[str, dict[str, Any], torch.dtype]] = [
    *((name, options, F64) for name, options in CASES),
    ("SketchySOAP", {"rank": 3, "momentum_dtype": BF16, "sketch_dtype": BF16}, F64),
    ("SketchySOAP", {"rank": 3}, BF16),
]


def go_on(folder: str, leg: int, name: str, options: dict[str, Any], dtype: torch.dtype, form: str) -> None:
    """Train two steps on one number of ranks, from the checkpoint of the leg before."""
    from torch.distributed.checkpoint import state_dict as states

    model = net(dtype)
    shard(model, ROUTE[leg])
    optimizer = made(name, options, model)
    choice = states.StateDictOptions(**FORMS[form])
    if leg:
        load(f"{folder}/{leg}", model, optimizer, choice)
        saved = torch.load(f"{folder}/{leg}.bits", weights_only=True)
        for found, before in zip(full(model, optimizer), saved, strict=True):
            torch.testing.assert_close(found, before, rtol=0, atol=0)
    descend(model, optimizer, range(1 + 2 * leg, 3 + 2 * leg))  # the unused layer has no gradient at first
    save(f"{folder}/{leg + 1}", model, optimizer, choice)
    bits = full(model, optimizer)
    if torch.distributed.get_rank() == 0:
        torch.save(bits, f"{folder}/{leg + 1}.bits")
    if leg == len(ROUTE) - 1 and dtype == F64:  # in bfloat16, one weight rounded otherwise changes all
        one = net()
        descend(one, made(name, options, one), range(1, 3 + 2 * leg))
        assert_same(one, model, 1e-9, (name, options))


def full(model: nn.Module, optimizer: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """All weights and the state of the optimizer."""
    from torch.distributed.checkpoint import state_dict as states

    own, state = states.get_state_dict(
        model, optimizer, options=states.StateDictOptions(full_state_dict=True, cpu_offload=False)
    )
    return own, state["state"]  # type: ignore[return-value]


def save(path: str, model: nn.Module, optimizer: Any, choice: Any) -> None:
    from torch.distributed import checkpoint, get_rank
    from torch.distributed.checkpoint import state_dict as states

    own, state = states.get_state_dict(model, optimizer, options=choice)
    if not choice.full_state_dict:
        checkpoint.save({"model": own, "optimizer": state}, checkpoint_id=path)
    elif get_rank() == 0:
        torch.save((own, state), path)


def load(path: str, model: nn.Module, optimizer: Any, choice: Any) -> None:
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint import state_dict as states

    if choice.full_state_dict:
        own, state = torch.load(path, weights_only=True)
    else:
        own, state = states.get_state_dict(model, optimizer, options=choice)
        saved = {"model": own, "optimizer": state}
        checkpoint.load(saved, checkpoint_id=path)
        own, state = saved["model"], saved["optimizer"]
    states.set_state_dict(model, optimizer, model_state_dict=own, optim_state_dict=state, options=choice)


def go_on_elsewhere(folder: str, leg: int, layout: str, name: str, options: dict[str, Any]) -> None:
    """Train two steps in one layout, from the checkpoint of the layout before: as if never stopped."""
    from torch.distributed.checkpoint import state_dict as states

    model, one, choice = block(), block(), states.StateDictOptions()
    parallelize(model, layout)
    optimizer = made(name, options, model)
    if leg:
        load(f"{folder}/{leg}", model, optimizer, choice)
    descend_block(model, optimizer, range(2 * leg, 2 * leg + 2))
    save(f"{folder}/{leg + 1}", model, optimizer, choice)
    descend_block(one, made(name, options, one), range(2 * leg + 2))
    assert_same(one, model, 1e-9, (name, layout))


def check_full_state(folder: str, name: str, options: dict[str, Any]) -> None:
    """Save a full state dict for one process; load one of one process, by a plain call."""
    from torch.distributed.checkpoint import state_dict as states

    many, one = net(), net()
    shard(many, (2,))
    ours, theirs = made(name, options, many), made(name, options, one)
    for model, optimizer in ((many, ours), (one, theirs)):
        descend(model, optimizer, range(3))
    own, state = states.get_state_dict(many, ours, options=states.StateDictOptions(full_state_dict=True))
    if torch.distributed.get_rank() == 0:
        torch.save((own, state), f"{folder}/{name}.pt")
    ours.load_state_dict(theirs.state_dict())
    descend(many, ours, range(3, 5))
    descend(one, theirs, range(3, 5))
    assert_same(one, many, 1e-10, (name, options))


def check_that_one_process_goes_on(folder: str, name: str, options: dict[str, Any]) -> None:
    from torch.distributed.checkpoint import state_dict as states

    own, state = torch.load(f"{folder}/{name}.pt", weights_only=True)
    again, one = net(), net()
    optimizer = made(name, options, again)
    states.set_state_dict(again, optimizer, model_state_dict=own, optim_state_dict=state)
    descend(again, optimizer, range(3, 5))
    descend(one, made(name, options, one), range(5))
    assert_same(one, again, 1e-10, (name, options))


def check_damaged_checkpoint() -> None:
    """It is damaged on one rank only: all ranks refuse it with the same sentence, and go on as before."""
    from torch import distributed

    model = net()
    shard(model, (2,))
    optimizer = made("SketchySOAP", {"rank": 3}, model)
    descend(model, optimizer, range(2))
    before = [p.clone() for p in (*weights(model), *parts(optimizer))]
    saved = copy.deepcopy(optimizer.state_dict())
    if distributed.get_rank() == 1:
        saved["state"][1]["left_eigenvalues"][0] = torch.nan
    with pytest.raises(ValueError, match="NaN or Inf") as error:
        optimizer.load_state_dict(saved)
    found: list[Any] = [None, None]
    distributed.all_gather_object(found, str(error.value))
    assert found[0] == found[1]
    for p, q in zip(before, (*weights(model), *parts(optimizer)), strict=True):
        assert torch.equal(p, q)
    descend(model, optimizer, range(2, 3))


def all_checks_on_two(folder: str) -> None:
    check_models((2,))
    for name, options in CASES[:2]:
        check_full_state(folder, name, options)
    check_damaged_checkpoint()


def all_checks_on_four() -> None:
    check_models((4,))
    check_models((2, 2))
    check_tensor_parallel()


def test_models_on_two_ranks(tmp_path: Path) -> None:
    on_ranks(2, all_checks_on_two, str(tmp_path))
    for name, options in CASES[:2]:
        check_that_one_process_goes_on(str(tmp_path), name, options)


@pytest.mark.slow
def test_models_on_four_ranks() -> None:
    on_ranks(4, all_checks_on_four)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("name", "options", "dtype"), MOVED)
def test_checkpoints_move_between_numbers_of_ranks(
    name: str, options: dict[str, Any], dtype: torch.dtype, form: str, tmp_path: Path
) -> None:
    for leg, shape in enumerate(ROUTE):
        on_ranks(math.prod(shape), go_on, str(tmp_path), leg, name, options, dtype, form)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), CASES[:2])
def test_checkpoints_move_to_and_from_tensor_parallelism(
    name: str, options: dict[str, Any], tmp_path: Path
) -> None:
    route = {"FSDP2 over TP": 4, "FSDP2": 2, "TP": 2}
    for leg, layout in enumerate([*route, "FSDP2 over TP"]):
        on_ranks(route[layout], go_on_elsewhere, str(tmp_path), leg, layout, name, options)

"""Replicas that divide state and work by rows (``split``): the numbers of one process, half of its state."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sketchy
from optim.test_sharded_models import assert_same, descend, net
from ranks import on_ranks

pytestmark = pytest.mark.cpu_only("its ranks are threads or processes")

CASES: list[tuple[str, dict[str, Any]]] = [
    ("SketchyShampoo", {"rank": 3}),
    ("SketchySOAP", {"rank": 3, "momentum_dtype": "int8"}),
    ("SketchyShampoo", {"rank": 3, "block_size": 5}),  # blocks are not divided
]


def made(name: str, options: dict[str, Any], model: nn.Module) -> Any:
    return getattr(sketchy, name)(model.named_parameters(), lr=0.01, **options)


def mesh_of_all() -> Any:
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (distributed.get_world_size(),))


def bytes_here(optimizer: Any) -> int:
    values = [value for state in optimizer.state.values() for value in state.values()]
    parts = [value.to_local() if hasattr(value, "to_local") else value for value in values]
    return sum(part.numel() * part.element_size() for part in parts)


def check_replicas() -> None:
    from torch.nn.parallel import DistributedDataParallel

    mesh = mesh_of_all()
    for name, options in CASES:
        one, many = net(), net()
        alone = made(name, options, one)
        descend(one, alone, range(6))
        divided = made(name, {**options, "split": mesh}, many)
        model = DistributedDataParallel(many, find_unused_parameters=True)
        descend(model, divided, range(6))
        assert_same(one, many, 1e-10, (name, options))


def check_bytes() -> None:
    """Each rank holds its share of momentum, bases and moments; small tensors are whole."""
    mesh, held = mesh_of_all(), {}
    for split in (None, mesh):
        for block_size in (None, 64):
            model = nn.Linear(128, 96, bias=False)
            optimizer = sketchy.SketchySOAP(model.parameters(), rank=8, split=split, block_size=block_size)
            model.weight.grad = torch.ones_like(model.weight)
            optimizer.step()
            held[split, block_size] = bytes_here(optimizer)
    assert held[mesh, None] < 1.1 * held[None, None] / mesh.size(), held
    assert held[mesh, 64] == held[None, 64], "blocks are not divided"


def check_checkpoints() -> None:
    """A state dict goes from replicas to one process and back, and deep copies go on, to the same numbers."""
    from torch.distributed.checkpoint import state_dict as states

    mesh = mesh_of_all()
    for name, options in CASES[:2]:
        one, many = net(), net()
        alone, divided = made(name, options, one), made(name, {**options, "split": mesh}, many)
        descend(one, alone, range(3))
        divided.load_state_dict(alone.state_dict())
        many.load_state_dict(one.state_dict())
        twin, other = copy.deepcopy((many, divided))
        for model, optimizer in ((one, alone), (many, divided), (twin, other)):
            descend(model, optimizer, range(3, 6))
        assert_same(one, many, 1e-10, (name, "from one process"))
        assert_same(many, twin, 0.0, (name, "a deep copy"))
        full = states.StateDictOptions(full_state_dict=True)
        saved = states.get_optimizer_state_dict(many, divided, options=full)
        again = net()
        again.load_state_dict(many.state_dict())
        last = made(name, options, again)
        if torch.distributed.get_rank() == 0:
            states.set_optimizer_state_dict(again, last, saved)
            descend(again, last, range(6, 8))
        descend(many, divided, range(6, 8))
        if torch.distributed.get_rank() == 0:
            assert_same(many, again, 1e-10, (name, "to one process"))


def check_bad_gradients() -> None:
    """A NaN in one row skips its weight on all ranks."""
    many = nn.Linear(5, 7)
    optimizer = sketchy.SketchySOAP(many.named_parameters(), rank=2, split=mesh_of_all())
    before = [p.detach().clone() for p in many.parameters()]
    many.weight.grad, many.bias.grad = torch.ones(7, 5), torch.ones(7)
    many.weight.grad[-1, -1] = torch.nan
    optimizer.step()
    assert torch.equal(many.weight, before[0]) and not torch.equal(many.bias, before[1])
    assert int(optimizer.state[many.weight]["skipped"]) == 1


def all_checks() -> None:
    check_replicas()
    check_bytes()
    check_checkpoints()
    check_bad_gradients()


def test_replicas_divide_state_and_work_by_rows() -> None:
    on_ranks(2, all_checks)


@pytest.mark.slow
def test_four_replicas() -> None:
    on_ranks(4, all_checks)


@pytest.mark.parametrize(
    ("mesh", "message"),
    [("world", "split='world': must be a DeviceMesh"), (2, "split=2: must be a DeviceMesh")],
)
def test_split_takes_a_mesh(mesh: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        sketchy.SketchySOAP([nn.Parameter(Tensor(3, 3))], split=mesh)

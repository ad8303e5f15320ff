"""What people do around a step under FSDP2 and tensor parallelism: the numbers of one process."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sketchy
from optim.test_sharded_models import F64, Net, assert_same, descend, made, net, shard
from ranks import on_ranks
from sketchy.optim.sharding import check_backends

pytestmark = pytest.mark.cpu_only("its ranks are threads or processes")

CASES: list[tuple[str, dict[str, Any]]] = [("SketchyShampoo", {"rank": 3}), ("SketchySOAP", {"rank": 3})]


def line(name: str = "shard") -> Any:
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (distributed.get_world_size(),), mesh_dim_names=(name,))


def ids_of(step: int) -> Tensor:
    return torch.randint(11, (4, 5), generator=torch.Generator().manual_seed(step))


def check_accumulation() -> None:
    """Gradients of three batches add up; the first two are not reduced, so there is nothing to step."""
    for name, options in CASES:
        one, many = net(), net()
        shard(many, (2,))
        pair = [(model, made(name, options, model)) for model in (one, many)]
        for model, optimizer in pair:
            for step in range(3):
                for part in range(3):
                    if model is many:
                        many.set_requires_gradient_sync(part == 2)  # type: ignore[operator]
                    (model(ids_of(3 * step + part), 0) / 3).backward()
                optimizer.step()
                optimizer.zero_grad()
        assert_same(one, many, 1e-10, (name, options))


def check_mixed_precision() -> None:
    """Weights and gradients are float32, products bfloat16; a bfloat16 model has bfloat16 weights.

    Rounding in bfloat16 is much coarser than any difference in the order of sums, and both take the same.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    for name, options in CASES:
        model = net().float()
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        fully_shard(model, mesh=line(), mp_policy=policy)
        optimizer = made(name, options, model)
        before = float(model(ids_of(0), 1))
        for _ in range(15):
            optimizer.zero_grad()
            model(ids_of(0), 1).backward()
            optimizer.step()
        assert float(model(ids_of(0), 1)) < 0.9 * before
        kinds = {value.dtype for p in model.parameters() for value in optimizer.state[p].values()}
        assert torch.bfloat16 not in kinds
        one, many = net().bfloat16(), net().bfloat16()
        fully_shard(many, mesh=line())
        descend(one, made(name, options, one), range(4))
        descend(many, made(name, options, many), range(4))
        assert_same(one, many, 0.02, (name, options))  # a few roundings of weights of about 1


def check_meta_device() -> None:
    """A model is made without memory, sharded, and then initialised."""
    for name, options in CASES:
        one = net()
        with torch.device("meta"):
            many = Net().to(F64)
        shard(many, (2,))
        many.to_empty(device="cpu")
        with torch.no_grad():
            for p, q in zip(many.parameters(), one.parameters(), strict=True):
                p.copy_(torch.distributed.tensor.distribute_tensor(q.detach(), p.device_mesh, p.placements))
        descend(one, made(name, options, one), range(3))
        descend(many, made(name, options, many), range(3))
        assert_same(one, many, 1e-10, (name, options))


def check_cpu_offload() -> None:
    """Here the mesh is on the CPU, too, so it runs."""
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    one, many = net(), net()
    fully_shard(many, mesh=line(), offload_policy=CPUOffloadPolicy(pin_memory=False))
    for model in (one, many):
        descend(model, made("SketchySOAP", {"rank": 3}, model), range(3))
    assert_same(one, many, 1e-10, "offload")


def check_partial_gradients() -> None:
    """A replicated norm in sequence parallelism: its gradient is a sum over ranks that was not taken yet."""
    from torch.distributed.tensor import Partial, Replicate
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        PrepareModuleInput,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )
    from torch.distributed.tensor.placement_types import Shard

    def block() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 6)).to(F64)

    for name, options in CASES:
        one, many = block(), block()
        plan = {
            "0": SequenceParallel(),
            "1": ColwiseParallel(input_layouts=Shard(1)),
            "3": RowwiseParallel(output_layouts=Replicate()),
        }
        parallelize_module(many, line("model"), plan)  # type: ignore[arg-type]
        prepare = PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Replicate(),))
        parallelize_module(many, line("model"), prepare)
        pair = [(model, made(name, options, model)) for model in (one, many)]
        for step in range(4):
            x = torch.randn(3, 8, 6, generator=torch.Generator().manual_seed(step), dtype=F64)
            for model, optimizer in pair:
                optimizer.zero_grad()
                model(x).square().mean().backward()
                if model is many:
                    found = many[0].weight.grad.placements  # type: ignore[index,union-attr]
                    assert found == (Partial(),), found
                optimizer.step()
        assert_same(one, many, 1e-10, (name, options))


def check_zero_redundancy() -> None:
    """Torch's ZeRO-1: each rank owns whole weights."""
    from torch.distributed.optim import ZeroRedundancyOptimizer
    from torch.nn.parallel import DistributedDataParallel

    for name, options in CASES:
        one, many, kind = net(), net(), getattr(sketchy, name)
        options = {"lr": 0.01, "path": "sketch", **options}  # it drops names, which choose the path
        descend(one, kind(one.parameters(), **options), range(4))
        optimizer = ZeroRedundancyOptimizer(many.parameters(), kind, **options)
        descend(DistributedDataParallel(many, find_unused_parameters=True), optimizer, range(4))
        assert_same(one, many, 1e-10, (name, options))


def all_checks() -> None:
    check_accumulation()
    check_mixed_precision()
    check_meta_device()
    check_cpu_offload()
    check_partial_gradients()
    check_zero_redundancy()


def test_weights_that_no_process_group_reaches_are_refused_with_the_backend_to_ask_for() -> None:
    """Under CPUOffloadPolicy on GPUs, weights are on the CPU, where NCCL has no collectives."""

    def backend(device: torch.device) -> None:
        raise RuntimeError("No backend type associated with device type cpu")

    group = SimpleNamespace(_get_backend=backend)
    mesh = SimpleNamespace(device_type="cuda", ndim=1, get_group=lambda i: group)
    weight = SimpleNamespace(device=torch.device("cpu"), device_mesh=mesh)
    wanted = r'head\.weight is on the device cpu.*init_process_group\("cpu:gloo,cuda:nccl"\)'
    with pytest.raises(RuntimeError, match=wanted):
        check_backends(weight, "head.weight")


@pytest.mark.slow
def test_two_ranks_train_as_one_process_does() -> None:
    on_ranks(2, all_checks)


def stop_in_the_middle() -> None:
    from torch import distributed

    model = net()
    shard(model, (2,))
    optimizer = made("SketchySOAP", {"rank": 3}, model)
    descend(model, optimizer, range(2))
    if distributed.get_rank() == 1:
        os._exit(7)
    descend(model, optimizer, range(2, 4))


@pytest.mark.slow
def test_a_rank_that_dies_ends_the_others_with_an_error() -> None:
    with pytest.raises(Exception, match=r"terminated|Connection"):
        on_ranks(2, stop_in_the_middle)


def die_once(path: Path) -> None:
    if not path.exists():
        path.touch()
        os.abort()


class DiesOnce:
    """Ends the first process that unpickles it, before this calls anything."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return die_once, (self.path,)


def abort(_: object) -> None:
    os.abort()


@pytest.mark.slow
def test_ranks_that_die_at_their_start_begin_once_more_and_later_ones_do_not(tmp_path: Path) -> None:
    """Of the tests themselves (`ranks.py`)."""
    on_ranks(2, print, DiesOnce(tmp_path / "died"))
    assert (tmp_path / "died").exists()
    with pytest.raises(Exception, match="SIGABRT"):
        on_ranks(2, abort, None)

"""What sharded steps send: thin matrices and numbers, in a fixed number of collectives."""

from collections import Counter
from typing import Any

import pytest
import torch
from sharded import assert_replicas_agree, sharded
from torch.utils._python_dispatch import TorchDispatchMode

import ranks
import sketchy
from sketchy.analysis.state import Weight
from sketchy.analysis.traffic import Message, on_ranks
from sketchy.core import linalg, spread
from sketchy.core.tasks import run, without_reading

pytestmark = pytest.mark.cpu_only("its ranks are threads or processes")

M, N, L = 256, 192, 16


class Traffic(TorchDispatchMode):
    """Records the collectives: how many numbers each one carries from here."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[int] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.namespace in ("c10d", "_c10d_functional") and "wait" not in function.__name__:
            tensors = args[0] if isinstance(args[0], list | tuple) else args[:1]
            self.sent.append(sum(x.numel() for x in tensors))
        return function(*args, **(kwargs or {}))


def sent(name: str, layers: int, steps: int = 4, **options: Any) -> tuple[list[int], Any]:
    """The numbers that the last step sends, collective by collective, and the optimizer."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2,))

    def random(seed: int) -> torch.Tensor:
        whole = torch.randn(M, N, generator=torch.Generator().manual_seed(seed))
        return distribute_tensor(whole, mesh, [Shard(0)], src_data_rank=None)

    params = [torch.nn.Parameter(random(i)) for i in range(layers)]
    options = {"rank": L, **options}
    options = {key: value for key, value in options.items() if (key, value) != ("rank", None)}
    optimizer = getattr(sketchy, name)(params, **options)
    for step in range(steps):
        for i, p in enumerate(params):
            p.grad = random(100 * step + i)
        with Traffic() as traffic:
            optimizer.step()
    return traffic.sent, optimizer


def check_traffic() -> None:
    """V, Gᵀ U, Gᵀ G V and Uᵀ X are sent; SketchySOAP also sends Uᵀ G. The rest is l x l, or single numbers.

    Each of the matrices of side l that are factorised or decomposed is computed by one rank and shared.
    """
    factor, spectrum = L * L + 6, L * L + L  # a Cholesky factor and six numbers; eigenvectors and values
    small = 2 * L * L + 4 * factor + 2 * spectrum
    for name, options, thin, more in (
        ("SketchyShampoo", {}, 4, 4),
        ("SketchySOAP", {"whiten": False, "row_norm": None}, 5, L * L + 2 * L + 4),
        ("SketchySOAP", {}, 5, 2 * L * L + 3 * L + 6),
        ("SketchySOAP", {"momentum_dtype": "int4"}, 6, 2 * L * L + 3 * L + 6),
    ):
        one, _ = sent(name, 1, **options)
        assert sum(one) == thin * N * L + small + more, (name, options, one)
        assert max(one) < 2 * N * L + small  # far less than an M x N matrix
        many, _ = sent(name, 5, **options)
        assert len(many) == len(one) and sum(many) == 5 * sum(one), (name, options)
    between, _ = sent("SketchyShampoo", 1, update_every=4, steps=3)
    assert sum(between) <= 3 * N * L + 4  # bases, momentum, single numbers


def check_reports() -> None:
    """They say how many bytes lie here, and which gradients are gathered."""
    for name, options, reason in (
        ("SketchySOAP", {}, None),
        ("SketchySOAP", {"block_size": 64}, "blocks (block_size) cross the parts"),
        ("SketchyShampoo", {"solver": "exact"}, 'solver="exact" takes whole matrices'),
        ("Shampoo", {"rank": None}, "the full covariance of a sharded axis is kept"),
        ("SketchyAdagrad", {}, "a sharded axis is merged with others"),
    ):
        _, optimizer = sent(name, 2, 1, **options)
        report = optimizer.report()
        state = [value for p in optimizer.param_groups[0]["params"] for value in optimizer.state[p].values()]
        parts = [value.to_local() if hasattr(value, "to_local") else value for value in state]
        assert report.bytes_here == sum(x.numel() * x.element_size() for x in parts), name
        assert [row.gathered for row in report] == [reason or ""] * 2
        if reason is None:
            assert f"state on this rank: {report.bytes_here:,} bytes" in str(report)
            assert report.bytes_here < 0.6 * report.bytes and "gathered" not in str(report)
        else:
            assert f"gathered because {reason}: gradients of 0.0, 0.1, {2 * 4 * M * N:,} bytes" in str(report)


def check_perturbed_ranks() -> None:
    """Gram matrices of one rank are one rounding off, and all singular values are alike."""
    from torch import distributed

    gram = linalg.lower_gram
    if distributed.get_rank() == 1:
        linalg.lower_gram = lambda K: gram(K) * (1 + 1e-7 * torch.randn(K.shape[-1]).sign())  # type: ignore[assignment]
    gradient = torch.linalg.qr(torch.randn(M, N, generator=torch.Generator().manual_seed(0)))[0]
    for layout, *place in ranks.layouts(distributed.get_world_size()):
        for name in ("SketchyShampoo", "SketchySOAP"):
            weight = torch.nn.Parameter(sharded(torch.zeros(M, N), tuple(place)))
            optimizer = getattr(sketchy, name)([weight], rank=L)
            for _ in range(20):
                weight.grad = sharded(gradient, tuple(place))
                optimizer.step()
            for side in ("left", "right"):
                basis = optimizer.state[weight][f"{side}_basis"].full_tensor()[0].double()
                assert float((basis.mT @ basis - torch.eye(L)).abs().max()) < 1e-5, (layout, name, side)
            assert_replicas_agree(optimizer, (layout, name))
    linalg.lower_gram = gram


# ---- what is planned is what happens, on the path of an accelerator (where no value is read)

SHAPES = {
    "wide": (100, 192),
    "narrow": (101, 70),
    "same": (100, 192),
    "few rows": (7, 90),
    "few columns": (90, 7),
    "embed": (1000, 20),
    "conv": (40, 3, 5),
    "bias": (77,),
    "one": (1,),
}


class Messages(TorchDispatchMode):
    """Records the collectives as the planner writes them."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.found: list[Message] = []
        self.count = count

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given, kind = {
            "allreduce_": (args[0], "all_reduce"),
            "_allgather_base_": (args[1:2], "all_gather"),
            "all_gather_into_tensor": (args[:1], "all_gather"),
        }.get(function.__name__.split(".")[0], ((), ""))
        if kind:
            size = sum(x.numel() * x.element_size() for x in given)
            self.found.append(Message(kind, size, self.count))
        return function(*args, **(kwargs or {}))


def model(shapes: dict[str, tuple[int, ...]], mesh: Any, axis: int) -> dict[str, torch.nn.Parameter]:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    found = {}
    for i, (name, shape) in enumerate(shapes.items()):
        whole = torch.randn(shape, generator=torch.Generator().manual_seed(i))
        places = [Replicate()] * (mesh.ndim - 1) + [Shard(axis if axis < len(shape) else 0)]
        found[name] = torch.nn.Parameter(distribute_tensor(whole, mesh, places, src_data_rank=None))
    return found


def weights(shapes: dict[str, tuple[int, ...]]) -> list[Weight]:
    return [Weight.named(name, shape) for name, shape in shapes.items()]


def check_plan(
    name: str, axis: int, shapes: dict[str, tuple[int, ...]] = SHAPES, replicas: int = 1, **options: Any
) -> None:
    """All collectives of the second step, on two shards, are those of the plan, to the byte."""
    from torch.distributed.device_mesh import init_device_mesh

    params = model(shapes, init_device_mesh("cpu", (2,) if replicas == 1 else (replicas, 2)), axis)
    optimizer = getattr(sketchy, name)(params.items(), **options)
    for _ in range(2):
        for p in params.values():
            p.grad = p.detach().clone()
        with Messages(2) as messages:
            optimizer.step()
    planned = on_ranks(getattr(sketchy, name), weights(shapes), 2, replicas, axis=axis, **options)
    report = optimizer.report()
    want, have = Counter(planned.messages), Counter(messages.found)
    assert want == have, (name, axis, options, want - have, have - want)
    assert planned.gathered == sum(row.gathered_bytes for row in report)


def check_replicas() -> None:
    with without_reading():
        for name in ("SketchyShampoo", "SketchySOAP"):
            check_plan(name, 0, replicas=2, rank=16)
    check_states(4)


def check_plans(thorough: bool) -> None:
    with without_reading():
        flat = {name: shape for name, shape in SHAPES.items() if name != "conv"}
        for axis, shapes in ((0, SHAPES), (1, flat)):
            for name in ("SketchyShampoo", "SketchySOAP"):
                check_plan(name, axis, shapes, rank=16)
        few = {
            "one": (64, 48),
            "two": (64, 48),
        }  # gathered: in waves of their own, which depend on the device
        check_plan("SketchySOAP", 1, {"conv": SHAPES["conv"]}, rank=4)
        check_plan("SketchySOAP", 1, few, rank=8, momentum_dtype="int8")
        check_plan("SketchySOAP", 0, few, rank=8, momentum_dtype="int4", sketch_dtype="bfloat16")
        check_plan("SketchyShampoo", 0, few, rank=8, block_size=32, graft="rmsprop")
        check_plan("SketchyShampoo", 1, few, rank=8, whiten=True, row_norm=0.9, polar=2)
        check_plan("Shampoo", 0, few)


def check_accelerators() -> None:
    """Their path gives the numbers of one process, and sends no more thin matrices than that of the CPU."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh, shapes = init_device_mesh("cpu", (2,)), {"wide": (100, 192), "narrow": (101, 70)}
    with without_reading():
        for axis in (0, 1):
            for name in ("SketchyShampoo", "SketchySOAP"):
                ours = model(shapes, mesh, axis)
                alone = {key: torch.nn.Parameter(p.full_tensor().detach()) for key, p in ours.items()}
                optimizers = [getattr(sketchy, name)(some.items(), rank=8, lr=0.1) for some in (ours, alone)]
                for step in range(6):
                    generator = torch.Generator().manual_seed(step)
                    for key, p in alone.items():
                        p.grad = torch.randn(p.shape, generator=generator) * torch.arange(1, p.shape[1] + 1)
                        sharded = model({key: shapes[key]}, mesh, axis)[key].detach()
                        ours[key].grad = sharded.copy_(_like(p.grad, sharded))
                    for optimizer in optimizers:
                        optimizer.step()
                for key, p in alone.items():
                    error = (ours[key].full_tensor() - p).abs().max() / p.abs().max()
                    assert error < 2e-4, (name, axis, key, float(error))
    planned = on_ranks(sketchy.SketchyShampoo, [Weight((4096, 4096))], 2, rank=16)
    thin = 4096 * 16 * 4
    assert sum(m.bytes for m in planned.messages) < 3.7 * thin  # V / 2, Gᵀ U, Gᵀ G V, Uᵀ X


def _like(x: torch.Tensor, sharded: Any) -> Any:
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(x, sharded.device_mesh, sharded.placements, src_data_rank=None)


def check_states(world: int) -> None:
    """Each rank holds what is planned: the first rank most, the last one least."""
    from torch import distributed
    from torch.distributed.device_mesh import init_device_mesh

    rank = distributed.get_rank()
    layouts = [(world, 1)] + ([(2, 2)] if world == 4 else [])
    for shards, replicas in layouts:
        mesh = init_device_mesh("cpu", (shards,) if replicas == 1 else (replicas, shards))
        for name, options in (
            ("SketchyShampoo", {"rank": 16}),
            ("SketchySOAP", {"rank": 16, "momentum_dtype": "int4"}),
            ("SketchySOAP", {"rank": 8, "block_size": 64}),
            ("Shampoo", {}),
        ):
            params = model(SHAPES, mesh, 0)
            optimizer = getattr(sketchy, name)(params.items(), **options)
            for p in params.values():
                p.grad = torch.ones_like(p)
            optimizer.step()
            values = [x for p in params.values() for x in optimizer.state[p].values()]
            parts = [x.to_local() if hasattr(x, "to_local") else x for x in values]
            held = sum(x.numel() * x.element_size() for x in parts)
            planned = on_ranks(getattr(sketchy, name), weights(SHAPES), shards, replicas, **options)
            assert planned.least <= held <= planned.most, (name, options)
            assert held == planned.most or rank != 0, (name, options)
            assert held == planned.least or rank != world - 1, (name, options)
            assert planned.least < planned.most


def check_sums() -> None:
    """Sums, maxima and parts of an axis of five entries on two ranks."""
    from torch import distributed
    from torch.distributed import group

    rank = distributed.get_rank()
    here = torch.tensor([[0, 1, 2], [3, 4]][rank])
    ranks = spread.Ranks((group.WORLD,), rank, 2)
    axis = spread.Spread(5, here, int(here[0]), (group.WORLD,), 2, ranks)
    x = torch.arange(10.0).reshape(1, 5, 2)
    mine = spread.part(x, axis)
    assert torch.equal(run(spread.total(mine.sum(-2), axis)), x.sum(-2))
    assert torch.equal(run(spread.largest(mine.amax(-2), axis)), x.amax(-2))
    assert torch.equal(run(spread.whole(mine, axis)), x)
    matrices = torch.eye(3).expand(5, 3, 3) * torch.arange(1.0, 6.0).reshape(5, 1, 1)
    inverses = run(spread.solved((axis,), torch.linalg.inv, matrices))
    assert torch.equal(inverses @ matrices, torch.eye(3).expand(5, 3, 3))


def all_checks() -> None:
    check_sums()
    check_traffic()
    check_reports()
    check_perturbed_ranks()


def check_few_plans() -> None:
    check_accelerators()
    check_plans(thorough=False)


def check_all_plans() -> None:
    check_plans(thorough=True)
    check_states(2)


def test_what_two_ranks_send() -> None:
    ranks.on_ranks(2, all_checks)


def test_on_the_path_of_accelerators_two_ranks_take_the_steps_of_one_and_send_what_is_planned() -> None:
    ranks.on_ranks(2, check_few_plans)


@pytest.mark.slow
def test_two_ranks_send_and_keep_what_is_planned_for_all_options() -> None:
    ranks.on_ranks(2, check_all_plans)


@pytest.mark.slow
def test_four_ranks_send_and_keep_what_is_planned() -> None:
    ranks.on_ranks(4, check_replicas)


@pytest.mark.slow
def test_four_ranks_keep_bases_orthonormal_and_states_equal_though_one_rounds_otherwise() -> None:
    ranks.on_ranks(4, check_perturbed_ranks)

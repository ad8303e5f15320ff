"""What sharded steps send: thin matrices and numbers, in a fixed number of collectives."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import sketchy
from ranks import on_ranks
from sketchy.core import linalg, spread
from sketchy.core.tasks import run

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
        ("SketchySOAP", {}, 5, 2 * L * L + 3 * L + 7),
        ("SketchySOAP", {"momentum_dtype": "int4"}, 6, 2 * L * L + 3 * L + 7),
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
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    gram = linalg.lower_gram
    if distributed.get_rank() == 1:
        linalg.lower_gram = lambda K: gram(K) * (1 + 1e-7 * torch.randn(K.shape[-1]).sign())  # type: ignore[assignment]
    mesh = init_device_mesh("cpu", (2,))
    whole = torch.linalg.qr(torch.randn(M, N, generator=torch.Generator().manual_seed(0)))[0]
    weight = torch.nn.Parameter(distribute_tensor(torch.zeros(M, N), mesh, [Shard(0)], src_data_rank=None))
    optimizer = sketchy.SketchySOAP([weight], rank=L)
    for _ in range(20):
        weight.grad = distribute_tensor(whole, mesh, [Shard(0)], src_data_rank=None)
        optimizer.step()
    for side in ("left", "right"):
        basis = optimizer.state[weight][f"{side}_basis"].full_tensor()[0].double()
        assert float((basis.mT @ basis - torch.eye(L)).abs().max()) < 1e-5, side
    own = {k: v for k, v in optimizer.state[weight].items() if not hasattr(v, "full_tensor")}
    found: list[Any] = [None, None]
    distributed.all_gather_object(found, own)
    assert all(torch.equal(found[0][name], found[1][name]) for name in own)
    linalg.lower_gram = gram


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


def test_what_two_ranks_send() -> None:
    on_ranks(2, all_checks)

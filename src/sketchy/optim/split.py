"""Plain weights, the same on all ranks (as in DDP), that are stepped in parts: the argument ``split``.

Each rank keeps the state of its own rows and steps these. For the time of a step, the rows are the local part
of a sharded weight, so nothing else changes. Then the ranks exchange their rows.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from sketchy.core.spread import all_gather
from sketchy.core.tuned import sizes


def check_mesh(mesh: Any) -> None:
    """Refuse what is not a mesh with one dimension."""
    if mesh is None:
        return
    if not hasattr(mesh, "get_group") or not hasattr(mesh, "ndim"):
        raise TypeError(
            f"split={mesh!r}: must be a DeviceMesh, made by torch.distributed.device_mesh.init_device_mesh"
        )
    if mesh.ndim != 1:
        raise ValueError(
            f"split has {mesh.ndim} dimensions: must be one. Choose it by its name: mesh['replicate']"
        )


def rows_of(p: Tensor, mesh: Any) -> Tensor:
    """The rows of a plain weight that are stepped here, with their gradient: the local part of a DTensor."""
    rows = _rows(p, mesh)
    part = _sharded(p.detach(), rows, mesh)
    part.grad = None if p.grad is None else _sharded(p.grad, rows, mesh)
    return part


def exchange_(weights: Iterable[Tensor], mesh: Any) -> None:
    """Give all rows of plain weights to all ranks. Each has changed its own rows."""
    for some in _buckets(weights):
        own = []
        for p in some:
            mine = p[_rows(p, mesh)].reshape(-1)
            own.append(pad(mine, (0, _most(p, mesh) * math.prod(p.shape[1:]) - len(mine))))
        found, wait = all_gather(torch.cat(own), mesh.size(), mesh.get_group())
        wait()
        for p, rows in zip(some, found.split(list(map(len, own)), dim=1), strict=True):
            p.copy_(rows.reshape(-1, *p.shape[1:])[: len(p)])


def _rows(p: Tensor, mesh: Any) -> slice:
    """The rows of this rank, as DTensors divide them."""
    most, rank = _most(p, mesh), mesh.get_local_rank()
    return slice(rank * most, (rank + 1) * most)


def _most(p: Tensor, mesh: Any) -> int:
    """The largest number of rows of a rank."""
    return -(-len(p) // mesh.size())


def _sharded(x: Tensor, rows: slice, mesh: Any) -> Tensor:
    from torch.distributed.tensor import DTensor, Shard

    return DTensor.from_local(x[rows], mesh, [Shard(0)], run_check=False, shape=x.shape, stride=x.stride())


def _buckets(weights: Iterable[Tensor]) -> Iterator[Sequence[Tensor]]:
    """Weights of one dtype and device, about as many as a wave has: a buffer is as large as all of them."""
    alike: dict[Any, list[Tensor]] = defaultdict(list)
    for p in weights:
        some = alike[p.dtype, p.device]
        some.append(p)
        if sum(q.numel() for q in some) * p.element_size() > sizes.SHARDED_WAVE_BYTES:
            yield alike.pop((p.dtype, p.device))
    yield from alike.values()

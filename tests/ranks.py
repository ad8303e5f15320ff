"""Run a function on several ranks: processes on this machine, connected by gloo."""

import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed, multiprocessing


def on_ranks(world: int, function: Callable[..., None], *arguments: Any) -> None:
    """Call ``function(*arguments)`` on each rank. An error on any rank is raised here."""
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(_work, (world, folder, function, arguments), nprocs=world)  # type: ignore[no-untyped-call]


def _work(rank: int, world: int, folder: str, function: Callable[..., None], arguments: Any) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=(Path(folder) / "store").as_uri(),
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=60),
    )
    function(*arguments)
    distributed.barrier()
    distributed.destroy_process_group()


def layouts(world: int) -> Iterator[tuple[str, Any, list[Any]]]:
    """(name, mesh, placements of a matrix) for 2 or 4 ranks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.placement_types import _StridedShard

    line = init_device_mesh("cpu", (world,))
    yield "rows", line, [Shard(0)]
    yield "columns", line, [Shard(1)]
    if world == 4:
        square = init_device_mesh("cpu", (2, 2))
        yield "HSDP", square, [Replicate(), Shard(0)]
        yield "rows and columns", square, [Shard(0), Shard(1)]
        yield "strided rows", square, [_StridedShard(0, split_factor=2), Shard(0)]

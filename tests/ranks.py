"""Run a function on several ranks: processes on this machine joined by gloo, or threads of one process."""

import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, multiprocessing


def on_ranks(world: int, function: Callable[..., None], *arguments: Any) -> None:
    """Call ``function(*arguments)`` on each rank. An error on any rank is raised here.

    If a process is killed by a signal before it calls the function, all begin once more: while joining a
    group, torch has died with "malloc(): unaligned tcache chunk detected".
    """
    for last in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            try:
                multiprocessing.spawn(_work, (world, folder, function, arguments), nprocs=world)  # type: ignore[no-untyped-call]
            except multiprocessing.ProcessExitedException as error:
                if last or error.signal_name is None or _begun(folder, error.error_index).exists():
                    raise
            else:
                return


def _begun(folder: str, rank: int) -> Path:
    """A file that exists once a rank has called the function."""
    return Path(folder) / f"begun-{rank}"


def _work(rank: int, world: int, folder: str, function: Callable[..., None], arguments: Any) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo",
        init_method=(Path(folder) / "store").as_uri(),
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=60),
    )
    _begun(folder, rank).touch()
    function(*arguments)
    distributed.barrier()
    distributed.destroy_process_group()
    # gloo's threads outlive the group while DDP holds it, and what they let go of while Python ends aborts
    # the process ("terminate called without an active exception", pytorch/pytorch#179291): end without that
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def on_threads(world: int, function: Callable[..., None], *arguments: Any) -> None:
    """`on_ranks` with threads of this process, by torch's own process group for tests.

    It starts at once, and code that was replaced in this process (`mutants.py`) stays so. But threads share
    what torch caches, and no memory of theirs is apart. The test is skipped with torch 2.10.
    """
    if torch.__version__ < "2.11":
        pytest.skip("torch 2.10 crashes if several threads use DTensors: its tracer is not safe for threads")
    from torch.testing._internal.distributed import multi_threaded_pg as threaded

    store, errors = distributed.HashStore(), list[BaseException]()

    def work(rank: int) -> None:
        distributed.init_process_group("threaded", rank=rank, world_size=world, store=store)
        try:
            function(*arguments)
        except BaseException as error:
            errors.append(error)
            threaded.ProcessLocalGroup.exception_handle(error)  # ends the others, which wait
        finally:
            distributed.destroy_process_group()

    isolated = torch._C._distributed_c10d._set_thread_isolation_mode
    isolated(True)
    threaded._install_threaded_pg()
    try:
        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(world)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        threaded.ProcessLocalGroup.reset()
    finally:
        threaded._uninstall_threaded_pg()
        isolated(False)
    if errors:
        raise errors[0]


def cut(size: int, group: Any = None) -> Any:
    """The `Spread` of an axis whose entries lie in order on the ranks of a group; the last may have none."""
    from sketchy.core.spread import Ranks, Spread

    group = distributed.group.WORLD if group is None else group
    rank, count = distributed.get_rank(group), distributed.get_world_size(group)
    own = torch.arange(size)[rank * -(-size // count) :][: -(-size // count)]
    return Spread(size, own, int(own[0]) if len(own) else 0, (group,), count, Ranks((group,), rank, count))


def layouts(world: int, *, strided: bool = True) -> Iterator[tuple[str, Any, list[Any]]]:
    """(name, mesh, placements of a matrix) for 2 or 4 ranks, with or without those in strides."""
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
    if world == 4 and strided:
        yield "strided rows", square, [_StridedShard(0, split_factor=2), Shard(0)]

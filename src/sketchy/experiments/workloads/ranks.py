"""The processes of a run: one, or several that torchrun starts."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, distributed, nn


@dataclass(frozen=True)
class Ranks:
    """This process among all. With one process, everything here does nothing."""

    rank: int = 0
    world: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def first(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    def sums(self, *values: float | Tensor) -> list[float]:
        """The sums of numbers over all ranks."""
        if self.world == 1:
            return [float(value) for value in values]
        total = torch.tensor([float(value) for value in values], dtype=torch.float64, device=self.device)
        distributed.all_reduce(total)
        return total.tolist()

    def gathered(self, mine: Sequence[Any]) -> list[Any]:
        """What all ranks have, if rank r has every world-th item, beginning with item r."""
        if self.world == 1:
            return list(mine)
        parts: list[Any] = [None] * self.world
        distributed.all_gather_object(parts, list(mine))
        longest = max(map(len, parts))
        return [part[i] for i in range(longest) for part in parts if i < len(part)]

    def from_first(self, value: Any) -> Any:
        """What the first rank has."""
        if self.world == 1:
            return value
        box = [value]
        distributed.broadcast_object_list(box)
        return box[0]

    def average_(self, buffers: Iterable[Tensor]) -> None:
        """Replace running statistics by their means over all ranks."""
        if self.world > 1:
            for buffer in buffers:
                if buffer.is_floating_point():
                    distributed.all_reduce(buffer)
                    buffer.div_(self.world)

    def parallel(self, network: nn.Module) -> nn.Module:
        """The network with gradients averaged over all ranks."""
        if self.world == 1:
            return network
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel(network, broadcast_buffers=False)

    def without_sums(self, network: nn.Module, waits: bool) -> AbstractContextManager[None]:
        """Inside, gradients of a ``parallel`` network stay on this rank, if it ``waits`` for more of them."""
        return network.no_sync() if waits and self.world > 1 else nullcontext()  # type: ignore[operator]


@contextmanager
def joined(device: str | None = None) -> Iterator[Ranks]:
    """This process among those of torchrun, or alone. ``device``: None for CUDA if there is one."""
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if "WORLD_SIZE" not in os.environ or distributed.is_initialized():
        grouped = distributed.is_initialized()
        rank, world = (distributed.get_rank(), distributed.get_world_size()) if grouped else (0, 1)
        yield Ranks(rank, world, torch.device(kind))
        return
    chosen = torch.device(kind, int(os.environ["LOCAL_RANK"])) if kind == "cuda" else torch.device(kind)
    if kind == "cuda":
        torch.cuda.set_device(chosen)
    distributed.init_process_group("nccl" if kind == "cuda" else "gloo")
    try:
        yield Ranks(distributed.get_rank(), distributed.get_world_size(), chosen)
    finally:
        distributed.destroy_process_group()

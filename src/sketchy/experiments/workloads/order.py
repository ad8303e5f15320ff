"""Which rows a step takes, and the random numbers of a row: both follow from seed and step alone.

An epoch is a permutation of the rows. A step takes the next ``batch`` of them, cut into micro-batches. The
last rows of an epoch that don't fill a batch are left out. Rank r takes micro-batches r, r + world, ... of
each step: one rank with accumulation computes what many ranks do.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from sketchy.experiments.workloads.workload import Batch, Split

POOL = 100  # batches of which rows are sorted by length


def seeded(*parts: int) -> int:
    """A seed for torch, different for different numbers."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:8], "big") >> 1


def generator(*parts: int) -> torch.Generator:
    return torch.Generator().manual_seed(seeded(*parts))


def epoch_order(split: Split, seed: int, epoch: int, batch: int) -> Tensor:
    """The rows of each step of an epoch, (steps, batch)."""
    draw = generator(seed, epoch)
    steps = len(split) // batch
    rows = torch.randperm(len(split), generator=draw)[: steps * batch]
    if split.lengths is None:
        return rows.view(steps, batch)
    pools = [pool[split.lengths[pool].argsort(stable=True)] for pool in rows.split(POOL * batch)]
    return torch.cat(pools).view(steps, batch)[torch.randperm(steps, generator=draw)]


@dataclass(frozen=True)
class Order:
    """The micro-batches of a rank, from a step on, as lists of (epoch, row): a sampler of batches."""

    split: Split
    seed: int
    batch: int
    micro_batch: int
    first: int  # step
    steps: int
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if len(self.split) < self.batch:
            raise ValueError(f"batch={self.batch}: there are only {len(self.split)} rows to train on")
        parts = self.batch // self.micro_batch
        if parts % self.world:
            raise ValueError(
                f"micro_batch={self.micro_batch}: makes {parts} parts of a batch of {self.batch}, which "
                f"{self.world} ranks can't share equally; set a smaller one with --set micro_batch=..."
            )

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        per_epoch = len(self.split) // self.batch
        known, order = -1, torch.empty(0)
        for step in range(self.first, self.steps):
            epoch, place = divmod(step, per_epoch)
            if epoch != known:
                known, order = epoch, epoch_order(self.split, self.seed, epoch, self.batch)
            for part in order[place].split(self.micro_batch)[self.rank :: self.world]:
                yield [(epoch, row) for row in part.tolist()]


@dataclass(frozen=True)
class Once:
    """All rows once, for a look: micro-batches r, r + world, ... are those of rank r."""

    split: Split
    micro_batch: int
    rank: int = 0
    world: int = 1

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        lengths = self.split.lengths
        rows = torch.arange(len(self.split)) if lengths is None else lengths.argsort(stable=True)
        for part in rows.split(self.micro_batch)[self.rank :: self.world]:
            yield [(NO_EPOCH, row) for row in part.tolist()]


NO_EPOCH = -1  # rows are not augmented


class Keyed(Dataset[Any]):
    """A split by (epoch, row), for torch's DataLoader."""

    def __init__(self, split: Split, seed: int) -> None:
        self.split, self.seed = split, seed

    def __getitems__(self, keys: list[tuple[int, int]]) -> Batch | Exception:
        epoch = keys[0][0]

        def draw(row: int) -> torch.Generator:
            return generator(self.seed, epoch, row, 1)

        try:
            return self.split.batch([row for _, row in keys], None if epoch == NO_EPOCH else draw)
        except (ValueError, OSError) as error:  # a worker would raise another one, with this as its text
            return error


def batches(
    split: Split, keys: Iterable[list[tuple[int, int]]], *, seed: int, workers: int = 0, pin: bool = False
) -> Iterator[Batch]:
    """The batches of these keys, in order. Worker processes read ahead; ``pin`` is for GPUs."""
    loader = DataLoader(
        Keyed(split, seed), batch_sampler=keys, num_workers=workers, collate_fn=_as_it_is, pin_memory=pin
    )
    for batch in loader:
        if isinstance(batch, Exception):
            raise batch
        yield batch


def _as_it_is(batch: Any) -> Any:
    return batch

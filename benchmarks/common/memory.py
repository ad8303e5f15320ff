"""What a process still refers to, counted exactly."""

import gc
import sys
from typing import NamedTuple

import torch
from torch._subclasses.fake_tensor import is_fake


class Live(NamedTuple):
    """Everything that is still referred to."""

    blocks: int  # of Python's allocator: objects up to 512 bytes
    tensors: int
    bytes: int  # of all dense tensors


def live() -> Live:
    """Count what is live, after everything that can be freed was freed."""
    settle()
    blocks = sys.getallocatedblocks()
    tensors = (x for x in gc.get_objects() if issubclass(type(x), torch.Tensor) and not is_fake(x))
    found = [x for x in tensors if x.layout == torch.strided]
    storages = {s.data_ptr(): s.nbytes() for s in (x.untyped_storage() for x in found)}
    return Live(blocks, len(found), sum(storages.values()))


def settle() -> None:
    """Free garbage, and what Python's cache of attributes keeps.

    Torch looks up ``__torch_function__`` by a new string each time. The cache may keep up to 4096 of them, of
    67 bytes each. This looks like a leak of some bytes a step, of any optimizer.
    """
    gc.collect()
    sys._clear_type_cache()

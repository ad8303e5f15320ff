"""Rows of a weight may be on other devices: only sums over rows, as small as the rank, are decomposed."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sketchy import SketchyShampoo, SketchySOAP

RANK = 8
DECOMPOSITIONS = ("qr", "svd", "eig", "cholesky", "lu_factor", "inv")


class Decompositions(TorchDispatchMode):
    """The longest side of what is decomposed."""

    longest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        name = func.overloadpacket.__name__
        if name.removeprefix("_").startswith("linalg_") and any(part in name for part in DECOMPOSITIONS):
            self.longest = max(self.longest, *args[0].shape[-2:])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("cls", [SketchyShampoo, SketchySOAP])
def test_nothing_longer_than_the_rank_is_decomposed(cls: type[torch.optim.Optimizer]) -> None:
    p = torch.nn.Parameter(torch.zeros(96, 80))
    optimizer = cls([p], rank=RANK)
    for step in range(4):
        p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(step))
        with Decompositions() as found:
            optimizer.step()
        if step:  # the first one makes a basis to start from, of random numbers
            assert 0 < found.longest <= RANK


def test_the_exact_solver_does_decompose_whole_sides() -> None:
    p = torch.nn.Parameter(torch.zeros(96, 80))
    optimizer = SketchyShampoo([p], rank=RANK, solver="exact")
    p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(0))
    optimizer.step()
    with Decompositions() as found:
        optimizer.step()
    assert found.longest > RANK

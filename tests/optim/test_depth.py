"""The operations of a step hardly depend on depth; small matrices of different layers form one batch."""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from sketchy import SketchyShampoo, SketchySOAP
from sketchy.core.tuned import sizes

WIDTH = 32


class Operations(TorchDispatchMode):
    """Counts all operations except views."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def operations(cls: type[torch.optim.Optimizer], layers: int) -> int:
    """Of a step on a transformer's matrices and vectors."""
    d = WIDTH
    shapes = [(3 * d, d), (d, d), (4 * d, d), (d, 4 * d), (d,), (d,)]
    params = [nn.Parameter(torch.zeros(shape)) for _ in range(layers) for shape in shapes]
    optimizer = cls([(f"{i}", p) for i, p in enumerate(params)], rank=8)
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator)
        with Operations() as found:
            optimizer.step()
    return found.count


@pytest.mark.parametrize("cls", [SketchyShampoo, SketchySOAP])
def test_twelve_layers_take_hardly_more_operations_than_two(cls: type[torch.optim.Optimizer]) -> None:
    assert operations(cls, 12) <= 1.2 * operations(cls, 2)


@pytest.mark.cpu_only("it counts operations of the CPU")
@pytest.mark.parametrize("cls", [SketchyShampoo, SketchySOAP])
def test_stacks_that_step_side_by_side_save_a_tenth_of_the_operations(
    cls: type[torch.optim.Optimizer], monkeypatch: pytest.MonkeyPatch
) -> None:
    together = operations(cls, 2)
    monkeypatch.setattr(sizes, "WAVE_BYTES", 0)  # each stack alone
    assert together <= 0.9 * operations(cls, 2)

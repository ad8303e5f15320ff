"""Steps on a device that exists in name only, with tensors without values. Prints what they did, as JSON.

A process of its own runs this: the device stays registered until the process ends. Torch checks on it what it
checks on an accelerator: that all tensors of an operation lie on one device, and that no value is read.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

sys.path.insert(0, str(Path(__file__).parents[1]))

NAME = "standin"
STEPS = 3


class Backend(_DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]


class Crossings(TorchDispatchMode):
    """Notes operations on both the device and the host."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(
        self, function: Any, types: Sequence[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        leaves = tree_leaves((args, kwargs, result))
        if len({x.device.type for x in leaves if isinstance(x, torch.Tensor)}) > 1:
            self.found.append(str(function))
        return result


def main() -> None:
    _setup_privateuseone_for_python_backend(NAME, backend_module=Backend())
    from torch._subclasses import FakeTensorMode

    from optim.optimizers import CASES, WEIGHTS

    found = {}
    for case in CASES:
        with FakeTensorMode():
            params = [torch.nn.Parameter(torch.empty(shape, device=NAME)) for shape in WEIGHTS.values()]
            optimizer = case.make(params, update_every=1)  # its counter on the host has no value here, either
            for _ in range(STEPS):
                for p in params:
                    p.grad = torch.empty_like(p)
                with Crossings() as seen:
                    optimizer.step()
            own = [(name, x) for state in optimizer.state.values() for name, x in state.items()]
            elsewhere = sorted({name for name, x in own if x.device.type != NAME})
        found[str(case)] = {"crossings": seen.found, "state elsewhere": elsewhere}
    print(json.dumps(found))


if __name__ == "__main__":
    main()

"""Print the files, functions and records through which one gradient of one matrix goes in a step.

PYTHONPATH=src python tests/optim/path_of_a_gradient.py SketchySOAP
"""

import dataclasses
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import sketchy

ROOT = Path(sketchy.__file__).parent
DRIVER = "core/tasks.py"


class Trace:
    """The calls inside the package: between two of its files, and in total."""

    def __init__(self) -> None:
        self.functions: set[tuple[str, str]] = set()
        self.between: Counter[tuple[tuple[str, str], tuple[str, str]]] = Counter()
        self.records: Counter[str] = Counter()
        self._seen: set[FrameType] = set()  # a generator is called once, and resumed often

    @property
    def files(self) -> list[str]:
        return sorted({file for file, _ in self.functions})

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or frame in self._seen:
            return
        here = _place(frame)
        if here is None:
            made = type(frame.f_locals.get("self"))
            if frame.f_code.co_name == "__init__" and dataclasses.is_dataclass(made):
                self.records[made.__name__] += made.__module__.startswith("sketchy")
            return
        self._seen.add(frame)
        self.functions.add(here)
        back = frame.f_back
        while back is not None and _place(back) is None:
            back = back.f_back
        caller = None if back is None else _place(back)
        if caller is not None and caller[0] != here[0]:
            self.between[caller, here] += 1


def _place(frame: FrameType) -> tuple[str, str] | None:
    """File and function, of the package's own."""
    file = Path(frame.f_code.co_filename)
    return (file.relative_to(ROOT).as_posix(), frame.f_code.co_name) if ROOT in file.parents else None


def traced(name: str) -> Trace:
    """The path of the fourth gradient of a 96 x 80 matrix, with default options except the rank."""
    p = torch.nn.Parameter(torch.zeros(96, 80))
    optimizer = getattr(sketchy, name)([p], rank=16)
    generator = torch.Generator().manual_seed(0)
    for _ in range(4):
        p.grad = torch.randn(p.shape, generator=generator)
        path = Trace()
        sys.setprofile(path)
        try:
            optimizer.step()
        finally:
            sys.setprofile(None)
    return path


if __name__ == "__main__":
    path = traced(sys.argv[1] if len(sys.argv) > 1 else "SketchyShampoo")
    driver = sum(n for pair, n in path.between.items() if DRIVER in (pair[0][0], pair[1][0]))
    print(*path.files, sep="\n")
    print(f"{len(path.files)} files, {len(path.functions)} functions, records made: {dict(+path.records)}")
    print(f"{path.between.total()} calls from file to file, {driver} of them to and from {DRIVER}")

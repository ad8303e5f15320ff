"""A process that times the optimizer steps of one source tree, a round whenever it is asked to.

    PYTHONPATH=TREE/src python -m benchmarks.speed.stepper PROBLEM OPTIMIZER RANK

Writes one JSON line when it is ready and one for each line that it reads. It is the worker of
``benchmarks.speed.before_after``. Trees of different versions run it, so it uses the public API only.
"""

import json
import sys
import time

import sketchy
from benchmarks.limits import keep_freed_memory, only_legal_instructions, pin
from benchmarks.operations import profile
from benchmarks.problems import PROBLEMS, Gradients

FIRST_STEPS = 3  # they allocate and fill the state
REPEATS = 3  # timed steps of a round, after one that is not timed


def main(problem: str, optimizer_name: str, rank: str) -> None:
    pin()
    keep_freed_memory()
    only_legal_instructions()
    named = PROBLEMS[problem].parameters()
    gradients = Gradients(p for _, p in named)
    optimizer = getattr(sketchy, optimizer_name)(named, lr=1e-5, rank=int(rank))

    def step_seconds() -> float:
        gradients.advance()
        began = time.process_time()
        optimizer.step()
        return time.process_time() - began

    for _ in range(FIRST_STEPS):
        step_seconds()
    counted = profile(optimizer.step, gradients.advance)
    _write({"source": sketchy.__file__, "operations": counted.operations, "parts": counted.parts})
    for _ in sys.stdin:
        _, *timed = [step_seconds() for _ in range(1 + REPEATS)]
        _write({"seconds": sum(timed) / REPEATS})


def _write(answer: dict[str, object]) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

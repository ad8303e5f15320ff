"""The process that times the optimizer steps of one source tree for ``benchmarks.speed.before_after``.

Its arguments are the problem, the optimizer, the rank, and other options as JSON. It writes one JSON line
when it is ready. Then it times a round for each line that it reads, and writes the result. Trees of different
versions run it, so it uses the public API only.
"""

import json
import sys
import time

import sketchy
from benchmarks.common.checkouts import of_this_tree
from benchmarks.common.process import keep_freed_memory, only_legal_instructions, pin
from benchmarks.registry.problems import PROBLEMS, Gradients

FIRST_STEPS = 3  # they allocate and fill the state
REPEATS = 3  # timed steps of a round, after one that is not timed


def main() -> None:
    problem, optimizer_name, rank, options = sys.argv[1:]
    pin()
    keep_freed_memory()
    only_legal_instructions()
    named = PROBLEMS[problem].parameters()
    gradients = Gradients(p for _, p in named)
    optimizer = getattr(sketchy, optimizer_name)(named, lr=1e-5, rank=int(rank), **json.loads(options))

    def step_seconds() -> float:
        gradients.advance()
        began = time.process_time()
        optimizer.step()
        return time.process_time() - began

    for _ in range(FIRST_STEPS):
        step_seconds()
    counted = of_this_tree("sketchy.analysis.operations").profile(optimizer.step, gradients.advance)
    _write({"source": sketchy.__file__, "operations": counted.operations, "parts": counted.parts})
    for _ in sys.stdin:
        _, *timed = [step_seconds() for _ in range(1 + REPEATS)]
        _write({"seconds": sum(timed) / REPEATS})


def _write(answer: dict[str, object]) -> None:
    print(json.dumps(answer), flush=True)

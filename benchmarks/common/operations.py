"""Count the torch operations of a call, and the time that Python takes between them."""

import os
from collections.abc import Callable
from dataclasses import dataclass

from torch.profiler import ProfilerActivity, record_function
from torch.profiler import profile as torch_profile

SPAN = "the whole call"


@dataclass(frozen=True)
class Profile:
    """One call under the profiler, which makes small operations slower."""

    operations: int  # called from Python, without those that they call
    parts: int  # operations that call no others: a foreach over twelve weights has twelve
    python_ms: float  # outside of all operations


def profile(run: Callable[[], object], before: Callable[[], object] = lambda: None) -> Profile:
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or it logs each start and stop
    before()
    with torch_profile(activities=[ProfilerActivity.CPU]) as recorded, record_function(SPAN):
        run()
    events = recorded.events() or []
    whole = next(event for event in events if event.name == SPAN)
    operations = [event for event in events if event.name.startswith("aten::")]
    top = [event for event in operations if not _inside(event)]
    parts = sum(not any(c.name.startswith("aten::") for c in event.cpu_children) for event in operations)
    within = sum(event.time_range.elapsed_us() for event in top)
    return Profile(len(top), parts, (whole.time_range.elapsed_us() - within) / 1e3)


def _inside(event: object) -> bool:
    """Whether another operation called this one."""
    parent = getattr(event, "cpu_parent", None)
    while parent is not None:
        if parent.name.startswith("aten::"):
            return True
        parent = parent.cpu_parent
    return False

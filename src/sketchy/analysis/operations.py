"""Count the operations of a call: torch's, those that a device runs, and how often the host waits for it."""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, record_function
from torch.profiler import profile as torch_profile
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

SPAN = "the whole call"
_LAUNCH = re.compile(r"LaunchKernel|LaunchCooperativeKernel|ModuleLaunch|GraphLaunch|EnqueueKernelLaunch")
_PRODUCTS = {"mm", "bmm", "addmm", "addmm_", "baddbmm", "baddbmm_"}
_NO_PASSES = _PRODUCTS | {"empty", "empty_like", "empty_strided", "new_empty", "_unsafe_view"}
_WAIT = re.compile(
    r"Synchronize$|Synchronize_|^(cuda|hip)Memcpy$|^hipMemcpyWithStream$|QueueFinish|EventWait$"
)


@dataclass(frozen=True)
class Profile:
    """One call under the profiler, which makes small operations slower."""

    operations: int  # called from Python, without those that they call
    parts: int  # operations that call no others: a foreach over twelve weights has twelve
    python_ms: float  # outside of all operations


@dataclass(frozen=True)
class DeviceWork:
    """What one call made a device do. All are counts; the last three are by name."""

    kernels: int  # that ran on the device
    launches: Mapping[str, int]  # calls of the runtime that start kernels
    copies: Mapping[str, int]  # that ran on the device, such as "Memcpy DtoH": from the device to the host
    waits: Mapping[str, int]  # calls of the runtime in which the host waits, such as cudaStreamSynchronize


def profile(run: Callable[[], object], before: Callable[[], object] = lambda: None) -> Profile:
    """Count the operations of a call, and the time that Python takes between them."""
    before()
    events = _recorded(run, [ProfilerActivity.CPU])
    whole = next(event for event in events if event.name == SPAN)
    operations = [event for event in events if event.name.startswith("aten::")]
    top = [event for event in operations if not _inside(event)]
    parts = sum(not any(c.name.startswith("aten::") for c in event.cpu_children) for event in operations)
    within = sum(event.time_range.elapsed_us() for event in top)
    return Profile(len(top), parts, (whole.time_range.elapsed_us() - within) / 1e3)


def device_work(run: Callable[[], object], device: torch.device) -> DeviceWork | None:
    """What a call makes a device do; None on the CPU, and on devices that torch's profiler doesn't know."""
    activity = getattr(ProfilerActivity, device.type.upper(), None)
    if device.type == "cpu" or activity is None:
        return None
    return work_of(_recorded(run, [ProfilerActivity.CPU, activity]))


def work_of(events: Sequence[Any]) -> DeviceWork:
    """The work on a device among a profiler's events: those of the host within SPAN, all of the device."""
    host = [event for event in events if str(event.device_type) == "DeviceType.CPU"]
    ours = set(map(id, host))
    named = {event.name for event in host}  # marks of the host are shown on the device, too
    there = [event for event in events if id(event) not in ours and event.name not in named]
    span = next(event.time_range for event in host if event.name == SPAN)
    # the profiler itself waits for the device when it ends
    during = [event for event in host if span.start <= event.time_range.start <= span.end]
    copies = [event.name.partition("(")[0].strip() for event in there if event.name.startswith("Memcpy")]
    return DeviceWork(
        kernels=sum(not event.name.startswith(("Memcpy", "Memset")) for event in there),
        launches=_counted(event.name for event in during if _LAUNCH.search(event.name)),
        copies=_counted(copies),
        waits=_counted(event.name for event in during if _WAIT.search(event.name)),
    )


class Launches(TorchDispatchMode):
    """Counts operations that compute something: no views, and no new memory without values.

    On meta tensors, a step takes the path of an accelerator: these are the operations that it starts there.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = Counter[str]()

    def __torch_dispatch__(
        self, function: Any, types: Sequence[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = function._schema.name.removeprefix("aten::")
        results = [result.alias_info for result in function._schema.returns]
        view = any(alias is not None and not alias.is_write for alias in results) or name == "_unsafe_view"
        if not view and not name.startswith(("empty", "new_empty", "profiler::")):
            self.found[name] += 1
        return function(*args, **(kwargs or {}))


class Passes(TorchDispatchMode):
    """Counts reads and writes of tensors with at least ``size`` numbers, by operation, without products."""

    def __init__(self, size: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.size = size
        self.found = Counter[str]()

    def __torch_dispatch__(
        self, function: Any, types: Sequence[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        schema = function._schema
        name = schema.name.removeprefix("aten::")
        aliases = [returned.alias_info for returned in schema.returns]
        if any(alias is not None and not alias.is_write for alias in aliases) or name in _NO_PASSES:
            return result
        given = [*zip(schema.arguments, args, strict=False)]
        given += [(argument, (kwargs or {}).get(argument.name)) for argument in schema.arguments[len(args) :]]
        for argument, value in given:
            written = argument.alias_info is not None and argument.alias_info.is_write
            # ``out`` is written, what changes in place is read and written
            self.found[name] += self._large(value) * (1 if not written or argument.name == "out" else 2)
        if not any(aliases) and not name.endswith("_"):
            self.found[name] += self._large(result)
        self.found += Counter()  # without zeros
        return result

    def _large(self, values: Any) -> int:
        leaves = tree_leaves(values)
        return sum(isinstance(x, torch.Tensor) and x.numel() >= self.size for x in leaves)


def _recorded(run: Callable[[], object], activities: Iterable[ProfilerActivity]) -> list[Any]:
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or it logs each start and stop
    with torch_profile(activities=[*activities]) as recorded, record_function(SPAN):
        run()
    return list(recorded.events() or [])


def _counted(names: Iterator[str] | Sequence[str]) -> dict[str, int]:
    return dict(Counter(names).most_common())


def _inside(event: object) -> bool:
    """Whether another operation called this one."""
    parent = getattr(event, "cpu_parent", None)
    while parent is not None:
        if parent.name.startswith("aten::"):
            return True
        parent = parent.cpu_parent
    return False

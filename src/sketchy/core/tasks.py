"""Batch the small operations of many stacks: tasks yield requests, and a driver computes the answers.

The math of one stack is written as a generator, a *task*. When it has to decompose a small matrix or to read
a number, it yields a request and gets the answer:

    L, pivots = yield Request(cholesky, (W,))     # W (S, l, l): batched with those of other stacks
    numbers = yield Request(read, (norm,))        # norm (S,): as Python numbers, or None

`gather` combines several tasks into one, and `run` is the driver. Requests for the same function on tensors
of the same shape are concatenated, computed once, and split again. A task that runs alone gets the same
answers. `launch` batches on accelerators only. Sums over several machines are requests, too (`core.spread`):
one collective for all stacks.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

T = TypeVar("T")

_READABLE: frozenset[str] = frozenset({"cpu"})  # devices whose values can be read without waiting
_FUSED = False  # whether operations are recorded for a compiler


@dataclass(frozen=True, eq=False)
class Request:
    """A request to call ``function(*tensors, *numbers, **options)``, in one batch with equal requests.

    Where a result is `Unread`, the answer has its `Numbers`.
    """

    function: Callable[..., Any]  # works on each row by itself: results have the tensors' first dimension
    tensors: tuple[Tensor, ...]  # (S, ...) each; any leading dimensions if the request is the only one
    numbers: tuple[float, ...] = ()  # one for all rows; the function gets (S,) if those of a batch differ
    options: Mapping[str, Any] = field(default_factory=dict)  # different options are not batched
    decomposes: bool = False  # whether the function decomposes matrices, which no compiler fuses

    @property
    def key(self) -> Any:
        """Requests with the same key form one batch."""
        if self.function is read or (_FUSED and not self.decomposes):  # batching would only copy
            return id(self)
        tensors = ((x.shape[1:], x.dtype, x.device) for x in self.tensors)
        return self.function, *self.options.items(), len(self.numbers), *tensors

    joins: ClassVar[bool] = True  # whether `answers` needs the tensors of all requests, joined

    @classmethod
    def answers(cls, requests: Sequence[Any], tensors: Sequence[Tensor]) -> Sequence[Any]:
        """The answers to requests with the same key, computed by one call with their `joined` tensors."""
        return divided(requests, called(requests, tensors))


class Unread(tuple[Tensor, ...]):
    """Tensors (S,) of a result that are to be read."""


Task = Generator[Request | Sequence[Request], Any, T]  # several requests get a list of answers
Numbers = list[tuple[float, ...]] | None


def gather(tasks: Iterable[Task[T]]) -> Task[list[T]]:
    """Combine tasks into one, which yields their requests together and returns their results in order.

    Each task runs until its next request. After their last requests, tasks run one after the other, so only
    one of them holds large intermediate results at a time.
    """
    results: dict[int, T] = {}
    waiting: list[tuple[int, Task[T], Request | Sequence[Request]]] = []

    def advance(i: int, task: Task[T], answer: Any) -> None:
        try:
            waiting.append((i, task, task.send(answer)))
        except StopIteration as stop:
            results[i] = stop.value

    for i, task in enumerate(tasks):
        advance(i, task, None)
    while waiting:
        asked, waiting = waiting, []
        answers = iter((yield [request for *_, some in asked for request in _listed(some)]))
        for i, task, some in asked:
            advance(i, task, next(answers) if isinstance(some, Request) else [next(answers) for _ in some])
    return [results[i] for i in sorted(results)]


def run(task: Task[T]) -> T:
    """Run a task: answer its requests until it returns."""
    answer = None
    try:
        while True:
            some = task.send(answer)
            answers = _answers(_listed(some))
            answer = answers[0] if isinstance(some, Request) else answers
    except StopIteration as stop:
        return stop.value


def _listed(some: Request | Sequence[Request]) -> Sequence[Request]:
    return [some] if isinstance(some, Request) else some


def readable(x: Tensor) -> bool:
    """Whether a value can be read without waiting: on the CPU, outside of a compiled graph."""
    return x.device.type in _READABLE and not torch.compiler.is_compiling()


def batches(x: Tensor) -> bool:
    """Whether small operations should be batched: on accelerators, if no compiler will fuse them."""
    return not readable(x) and not _FUSED


@contextmanager
def fused() -> Iterator[None]:
    """Inside, operations are recorded for a compiler, which fuses chains better than batches of them."""
    global _FUSED
    before, _FUSED = _FUSED, True
    try:
        with without_reading():
            yield
    finally:
        _FUSED = before


@contextmanager
def without_reading() -> Iterator[None]:
    """Inside, no value is read: the path of accelerators is taken on the CPU, too."""
    global _READABLE
    before, _READABLE = _READABLE, frozenset()
    try:
        yield
    finally:
        _READABLE = before


def without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Computes in the dtypes of the tensors. Some backends have no autocast to be switched off."""
    if not torch.amp.is_autocast_available(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def read(*tensors: Tensor) -> Numbers:
    """The values of tensors (S,), row by row; None if reading would wait for a device.

    All code that chooses a method by value uses this function. If it gets None, it must take the method that
    is right for any value.
    """
    if not all(readable(x) for x in tensors):
        return None
    return list(zip(*(x.flatten().tolist() for x in tensors), strict=True))


def within(numbers: Numbers, low: float, high: float) -> bool:
    """Whether all numbers are known and lie between ``low`` and ``high``."""
    return numbers is not None and all(low < x < high for row in numbers for x in row)


def certain(condition: Tensor) -> bool:
    """Whether a condition (S,) is known to hold in every row."""
    numbers = read(condition)
    return numbers is not None and all(x for row in numbers for x in row)


def launch(function: Callable[..., T], *tensors: Tensor, **options: Any) -> Task[T]:
    """The result of a call, for an accelerator in one batch with those of other stacks.

    On the CPU the call is made at once. There a batch would cost more than a call, as it copies tensors, and
    stacks would hold large tensors while they wait for each other.
    """
    if not batches(tensors[0]):
        return function(*tensors, **options)
    answer: T = yield Request(function, tensors, options=options)
    return answer


def _answers(requests: Sequence[Request]) -> list[Any]:
    answers: list[Any] = [None] * len(requests)
    alike: dict[Any, list[int]] = {}
    for i, request in enumerate(requests):
        alike.setdefault(request.key, []).append(i)
    batches = [[requests[i] for i in chosen] for chosen in alike.values()]
    columns = [[*zip(*(r.tensors for r in same), strict=True)] if same[0].joins else [] for same in batches]
    for chosen, same, tensors in zip(alike.values(), batches, joined(columns), strict=True):
        for i, answer in zip(chosen, type(same[0]).answers(same, tensors), strict=True):
            answers[i] = answer
    return answers


def joined(batches: Sequence[Sequence[Sequence[Tensor]]]) -> list[list[Tensor]]:
    """For each batch, its columns of tensors, each column concatenated.

    On an accelerator, all columns of one dtype take a single copy: they become parts of a flat tensor.
    """
    found: dict[int, Tensor] = {}
    alike: dict[Any, list[Sequence[Tensor]]] = {}
    for parts in (parts for some in batches for parts in some):
        if len(parts) == 1:
            found[id(parts)] = parts[0]
        elif readable(parts[0]) or not all(x.is_contiguous() for x in parts):
            found[id(parts)] = torch.cat([*parts])
        else:
            alike.setdefault((parts[0].dtype, parts[0].device), []).append(parts)
    for some in alike.values():
        lengths = [sum(x.numel() for x in parts) for parts in some]
        flat = torch.cat([x.reshape(-1) for parts in some for x in parts])
        for parts, piece in zip(some, flat.split_with_sizes(lengths), strict=True):
            found[id(parts)] = piece.view(sum(map(len, parts)), *parts[0].shape[1:])
    return [[found[id(parts)] for parts in some] for some in batches]


def called(
    requests: Sequence[Request], tensors: Sequence[Tensor], function: Callable[..., Any] | None = None
) -> Any:
    """The result of one call with the `joined` tensors of requests with the same key.

    The call is of ``function``, by default of their own.
    """
    first = requests[0]
    function = first.function if function is None else function
    sizes = [1 if len(requests) == 1 else len(request.tensors[0]) for request in requests]
    columns = zip(*(request.numbers for request in requests), strict=True)
    numbers = [_one_for_each(values, sizes, tensors[0]) for values in columns]
    return function(*tensors, *numbers, **first.options)


def divided(requests: Sequence[Request], result: Any) -> Sequence[Any]:
    """The answers to requests from the result of one call, read where it is `Unread`."""
    result = _read(result)
    return [result] if len(requests) == 1 else split(result, [len(r.tensors[0]) for r in requests])


def _read(result: Any) -> Any:
    """A result, with numbers in the place of `Unread` tensors."""
    if isinstance(result, Unread):
        return read(*result)
    return tuple(map(_read, result)) if type(result) is tuple else result


def _one_for_each(values: Sequence[float], sizes: Sequence[int], x: Tensor) -> float | Tensor:
    """The number, if it is the same for all requests; else a tensor (S,) on the device of x."""
    if len(set(values)) == 1:
        return values[0]
    return kept(_column, x)(tuple(values), tuple(sizes), x.device)


def kept(function: Any, x: Tensor) -> Callable[..., Any]:
    """A function of numbers and a device, with a cache for accelerators; on the CPU, without it.

    While operations are recorded for a compiler, its result becomes a constant of the graph.
    """
    if _FUSED:
        return partial(_unrecorded, function)
    return function if type(x) is Tensor and not readable(x) else function.__wrapped__


def _unrecorded(function: Callable[..., Any], *arguments: Any) -> Any:
    with _disable_current_modes():
        return function(*arguments)


@lru_cache(256)
def _column(values: Sequence[float], sizes: Sequence[int], device: torch.device) -> Tensor:
    pairs = zip(sizes, values, strict=True)
    return torch.cat([torch.full((n,), value, dtype=torch.float64, device=device) for n, value in pairs])


def split(result: Any, sizes: Sequence[int]) -> Sequence[Any]:
    """Split a batched result into one for each request: tensors and lists by rows, tuples part by part."""
    if isinstance(result, Tensor):
        return result.split_with_sizes(list(sizes))
    if isinstance(result, tuple):
        return list(zip(*(split(part, sizes) for part in result), strict=True))
    if result is None:
        return [None] * len(sizes)
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [result[end - size : end] for end, size in zip(ends, sizes, strict=True)]

"""Small work of many stacks in one batch: a task asks, a driver answers.

The math of one stack is written as a generator, a *task*. Where it needs a small matrix decomposed or a
number read, it yields a request and waits for the answer:

    L, pivots = yield from together(cholesky, W)     # W (S, l, l): batched with those of other stacks
    numbers = yield from reading(norm)               # norm (S,): as Python numbers, or None

`gather` lets several tasks wait side by side, and `run` answers: requests for the same function on tensors of
the same shape are concatenated, computed once, and split again. A single task gets the same answers from its
own tensors alone. Whatever an answer has to be over many machines is a property of the driver, not of the
math.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

_READABLE = frozenset({"cpu"})  # devices whose values the host sees without waiting


@dataclass(frozen=True, eq=False)
class Request:
    """Call ``function(*tensors, *numbers, **options)``, in one batch with requests that are alike."""

    function: Callable[..., Any]  # row by row: results have the leading dimension of the tensors
    tensors: tuple[Tensor, ...]  # (S, ...) each; any leading dimensions where the request is alone
    numbers: tuple[float, ...] = ()  # one value for all rows; (S,) where requests differ in it
    options: tuple[tuple[str, Any], ...] = ()  # requests with other options go in another batch

    @property
    def key(self) -> Any:
        """What requests of one batch have in common."""
        if self.function is read:  # it copies nothing to a batch, and needs none
            return id(self)
        tensors = ((x.shape[1:], x.dtype, x.device) for x in self.tensors)
        return self.function, self.options, len(self.numbers), *tensors


Task = Generator[Sequence[Request], Sequence[Any], T]
Numbers = list[tuple[float, ...]] | None


def together(
    function: Callable[..., Any], *tensors: Tensor, numbers: Sequence[float] = (), **options: Any
) -> Task[Any]:
    """Ask for ``function(*tensors, *numbers, **options)``; see `Request`."""
    (answer,) = yield [Request(function, tensors, tuple(numbers), tuple(options.items()))]
    return answer


def reading(*tensors: Tensor) -> Task[Numbers]:
    """Ask for the values of tensors, to choose between two ways by; see `read`."""
    (answer,) = yield [Request(read, tensors)]
    return answer


def gather(tasks: Iterable[Task[T]]) -> Task[list[T]]:
    """Run tasks side by side: their requests are asked for together, and their results come in order.

    A task runs on until its next request. What comes after the last request of each task therefore runs task
    after task, so that only one of them holds large intermediate results.
    """
    results: dict[int, T] = {}
    waiting: list[tuple[int, Task[T], Sequence[Request]]] = []

    def advance(i: int, task: Task[T], answers: Sequence[Any] | None) -> None:
        try:
            waiting.append((i, task, next(task) if answers is None else task.send(answers)))
        except StopIteration as stop:
            results[i] = stop.value

    for i, task in enumerate(tasks):
        advance(i, task, None)
    while waiting:
        asked, waiting = waiting, []
        answers = yield [request for *_, requests in asked for request in requests]
        first = 0
        for i, task, requests in asked:
            advance(i, task, answers[first : first + len(requests)])
            first += len(requests)
    return [results[i] for i in sorted(results)]


def run(task: Task[T]) -> T:
    """Answer every request of a task until it returns."""
    try:
        requests = next(task)
        while True:
            requests = task.send(_answers(requests))
    except StopIteration as stop:
        return stop.value


def readable(x: Tensor) -> bool:
    """Whether reading a value is free: on the CPU, outside of a compiled graph."""
    return x.device.type in _READABLE and not torch.compiler.is_compiling()


def read(*tensors: Tensor) -> Numbers:
    """The values of tensors (S,), row by row; None where reading would wait for a device.

    Every choice between two ways by value goes through here. Without values the caller takes the way that is
    right in either case.
    """
    if not all(readable(x) for x in tensors):
        return None
    return list(zip(*(x.flatten().tolist() for x in tensors), strict=True))


def within(numbers: Numbers, low: float, high: float) -> bool:
    """Whether all numbers are known, and lie between two others."""
    return numbers is not None and all(low < x < high for row in numbers for x in row)


def certain(condition: Tensor) -> bool:
    """Whether a condition (S,) is known to hold in every row."""
    numbers = read(condition)
    return numbers is not None and all(x for row in numbers for x in row)


def _answers(requests: Sequence[Request]) -> list[Any]:
    answers: list[Any] = [None] * len(requests)
    alike: dict[Any, list[int]] = {}
    for i, request in enumerate(requests):
        alike.setdefault(request.key, []).append(i)
    for chosen in alike.values():
        for i, answer in zip(chosen, _computed([requests[i] for i in chosen]), strict=True):
            answers[i] = answer
    return answers


def _computed(requests: Sequence[Request]) -> Sequence[Any]:
    """The results of requests that are alike, by one call."""
    first, options = requests[0], dict(requests[0].options)
    if len(requests) == 1:
        return [first.function(*first.tensors, *first.numbers, **options)]
    sizes = [len(request.tensors[0]) for request in requests]
    tensors = [torch.cat(parts) for parts in zip(*(request.tensors for request in requests), strict=True)]
    columns = zip(*(request.numbers for request in requests), strict=True)
    numbers = [_one_for_each(values, sizes, tensors[0].device) for values in columns]
    return _split(first.function(*tensors, *numbers, **options), sizes)


def _one_for_each(values: Sequence[float], sizes: Sequence[int], device: torch.device) -> float | Tensor:
    """A number that all requests share, or a tensor (S,), made where the others are."""
    if len(set(values)) == 1:
        return values[0]
    pairs = zip(sizes, values, strict=True)
    return torch.cat([torch.full((n,), value, dtype=torch.float64, device=device) for n, value in pairs])


def _split(result: Any, sizes: Sequence[int]) -> Sequence[Any]:
    """A batched result for each request: tensors and lists by rows, tuples part by part, None as it is."""
    if isinstance(result, Tensor):
        return result.split_with_sizes(list(sizes))
    if isinstance(result, tuple):
        return list(zip(*(_split(part, sizes) for part in result), strict=True))
    if result is None:
        return [None] * len(sizes)
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return [result[end - size : end] for end, size in zip(ends, sizes, strict=True)]

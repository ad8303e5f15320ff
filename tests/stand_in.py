"""A device with values for tests, where there is no other: after `register`, torch knows "standin".

Its tensors wrap tensors of the CPU, which compute. As on a GPU, an operation on tensors of both devices is an
error. `crossings` notes what would make a host wait for a device: values that are read, and copies.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

NAME = "standin"
_aten = torch.ops.aten
_COPIES = {_aten.copy_.default, _aten._to_copy.default}
_WAITS = {
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
}  # a value, or a size that depends on one
_INDEXING = {
    _aten.index.Tensor,
    _aten.index_put_.default,
    _aten.index_put.default,
    _aten._index_put_impl_.default,
}
_found: list[list[str]] = []
_libraries: list[torch.library.Library] = []


@contextmanager
def crossings() -> Iterator[list[str]]:
    """The operations inside that read a value of the device, or copy from or to the host."""
    _found.append([])
    try:
        yield _found[-1]
    finally:
        _found.pop()


class StandIn(Tensor):
    """A tensor of the device. Its values are in ``host``."""

    host: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, host: Tensor) -> "StandIn":
        layout = {"strides": host.stride(), "storage_offset": host.storage_offset()}
        x = Tensor._make_wrapper_subclass(cls, host.shape, dtype=host.dtype, device=f"{NAME}:0", **layout)
        x.host = host
        return x

    def __repr__(self) -> str:
        return f"StandIn({self.host})"

    @property
    def data(self) -> Tensor:
        return Tensor.data.__get__(self)

    @data.setter
    def data(self, x: "StandIn") -> None:
        Tensor.data.__set__(self, x)  # shape and dtype
        self.host = x.host

    def __format__(self, spec: str) -> str:
        return format(self.cpu(), spec)

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        if not force:
            raise TypeError(f"can't convert {self.device} device type tensor to numpy")
        return self.cpu().numpy(force=True)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Files have the values, as those of other devices without storage do."""
        state = self.host.detach().clone(), self.dtype, str(self.device), self.requires_grad
        return torch._utils._rebuild_device_tensor_from_cpu_tensor, state

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Sequence[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        # a view that is made in inference mode, of a tensor from outside of it, must not be of that mode
        with torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext():
            return _computed(function, args, dict(kwargs or {}))


def _computed(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The result of an operation, computed on the CPU."""
    given: dict[int, Tensor] = {}  # by what computes in their place

    def unwrapped(x: Any) -> Any:
        if isinstance(x, Tensor):
            host = x.host if isinstance(x, StandIn) else x
            given[id(host)] = x
            return host
        return type(x)(map(unwrapped, x)) if type(x) in (list, tuple) else x

    hosts = unwrapped(args)
    options = {name: unwrapped(x) for name, x in kwargs.items()}
    wrappers = [x for x in given.values() if isinstance(x, StandIn)]
    others = [x for x in given.values() if not isinstance(x, StandIn)]
    there = bool(wrappers)
    if options.get("device") is not None:
        there = torch.device(options["device"]).type == NAME
        options["device"] = torch.device("cpu") if there else options["device"]
    if _waits(function, args, wrappers, others, there):
        for found in _found:
            found.append(str(function))
    if wrappers and others and function not in _COPIES:
        _check(function, args, others)
    before = [(x, x.host.shape, x.host.stride()) for x in wrappers]
    result = function(*hosts, **options)
    if wrappers and not function._schema.returns:  # torch leaves it to the kernel to tell autograd
        torch.autograd.graph.increment_version(args[0])
    for x, *layout in before:
        if layout != [x.host.shape, x.host.stride()]:  # resized, transposed
            x.data = StandIn(x.host)

    def wrapped(x: Any) -> Any:
        if isinstance(x, Tensor):
            return given[id(x)] if id(x) in given else StandIn(x)  # the first: changed in place
        return type(x)(map(wrapped, x)) if isinstance(x, list | tuple) else x

    return wrapped(result) if there else result


def _waits(
    function: Any, args: Any, wrappers: Sequence[StandIn], others: Sequence[Tensor], there: bool
) -> bool:
    """Whether the host would wait for a device."""
    if function in _COPIES:
        return len({there, *(True for _ in wrappers), *(False for _ in others)}) == 2
    if function in _INDEXING:
        return bool(wrappers) and any(
            type(x) is Tensor or x.dtype == torch.bool for x in args[1] if x is not None
        )
    return bool(wrappers) and not _WAITS.isdisjoint(function.tags)


def _check(function: Any, args: Any, others: Sequence[Tensor]) -> None:
    """Numbers of the host, and indices, may be used on a device. Other tensors of it may not."""
    allowed = torch.Tag.pointwise in function.tags or function in _INDEXING
    indices = function in _INDEXING and args[0].device.type == NAME
    written = {id(args[i]) for i, a in enumerate(function._schema.arguments[: len(args)]) if _written(a)}
    for x in others:
        if indices and not x.is_floating_point():
            continue
        if x.dim() > 0 or not allowed or id(x) in written:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{NAME}:0 and {x.device}! ({function})"
            )


def _written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


class _Stream:
    """The only one; all work on it is done."""

    def wait_stream(self, other: "_Stream") -> None:
        pass

    def synchronize(self) -> None:
        pass


class _Backend(_DummyBackendModule):
    def current_stream(self) -> _Stream:
        return _Stream()

    def stream(self, stream: _Stream) -> AbstractContextManager[None]:
        return nullcontext()

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]


def _shortened(product: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """What autocast makes of a product."""

    def shortened(A: Tensor, B: Tensor) -> Tensor:
        with torch.autocast(NAME, enabled=False):
            dtype = torch.get_autocast_dtype(NAME)
            return product(A.to(dtype), B.to(dtype))

    return shortened


def register() -> None:
    """Let torch know the device, until this process ends."""
    if _libraries:
        return
    _setup_privateuseone_for_python_backend(NAME, backend_module=_Backend())
    everything, aten = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    everything.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    for product in (torch.mm, torch.bmm, torch.matmul):
        aten.impl(product.__name__, _shortened(product), "AutocastPrivateUse1")
    everything.fallback(lambda function, *args, **kwargs: _computed(function, args, kwargs), "PrivateUse1")
    # how torch.tensor(numbers, device=...) fills a tensor, past __torch_dispatch__
    aten.impl("_copy_from", lambda x, to, _=False: _computed(_aten.copy_.default, (to, x), {}), "PrivateUse1")
    _libraries.extend([everything, aten])

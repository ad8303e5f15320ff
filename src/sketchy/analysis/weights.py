"""Names, shapes and dtypes of the weights in models and files. The weights are not read or allocated."""

import importlib
import re
import struct
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sketchy.analysis.state import Weight
from sketchy.files import parse, told
from sketchy.optim.routing import param_groups

Weights = dict[str, Weight]

_SAFETENSORS = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
_MOST_AXES = 64  # of torch
_LONGEST_HEADER = 100 << 20  # the limit of the format


def of_shapes(shapes: Iterable[str]) -> Weights:
    """Weights from shapes such as 4096x1024. The shape is also the name; equal shapes get a number."""
    found: Weights = {}
    for text in shapes:
        if not re.fullmatch(r"\d+([x×,]\d+)*", text):
            raise ValueError(f"shape={text!r}: must be whole numbers joined by x, such as 4096x1024")
        sizes = tuple(map(int, re.split("[x×,]", text)))
        name = "x".join(map(str, sizes))
        again = sum(weight.shape == sizes for weight in found.values())
        found[f"{name} #{again + 1}" if again else name] = Weight.named(None, sizes)
    return found


def of_model(model: nn.Module) -> Weights:
    """The trainable parameters of a model, each once, with their paths in `sketchy.param_groups`."""
    paths = {name: group["path"] for group in param_groups(model) for name, _ in group["params"]}
    return {
        name: Weight(tuple(p.shape), p.dtype, paths[name])
        for name, p in model.named_parameters()
        if name in paths
    }


def of_factory(address: str) -> Weights:
    """The parameters of the model that ``package.module:factory`` builds on the meta device."""
    module_name, _, attribute = address.partition(":")
    if not module_name or not attribute:
        raise ValueError(f"model={address!r}: must be package.module:function")
    sys.path.insert(0, str(Path.cwd()))  # also find modules in the current directory
    try:
        factory: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            factory = getattr(factory, part)
    except AttributeError:
        raise ValueError(f"model={address!r}: module {module_name} has no {attribute}") from None
    except ModuleNotFoundError as error:
        raise ValueError(f"model={address!r}: there is no module {error.name}") from error
    except Exception as error:
        raise ValueError(f"model={address!r}: importing it failed: {told(error)}") from error
    finally:
        sys.path.pop(0)
    if not callable(factory):
        kind = type(factory).__name__
        raise ValueError(f"model={address!r}: must be a function or class that can be called; it is a {kind}")
    try:
        with torch.device("meta"), _Unfilled():
            model = factory()
    except Exception as error:
        raise ValueError(f"model={address!r}: building it failed: {told(error)}") from error
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"model={address!r}: must build a torch.nn.Module; it built a {type(model).__name__}"
        )
    return of_model(model)


class _Unfilled(TorchFunctionMode):
    """Skips the random initialisation of meta tensors. Torch would import code for it (a second)."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (nn.init.normal_, Tensor.normal_):
            filled = kwargs["tensor"] if "tensor" in kwargs else args[0]
            if filled.is_meta:
                return filled
        return func(*args, **kwargs)


def of_file(path: Path) -> Weights:
    """The floating-point tensors of a safetensors file or a saved ``state_dict``, read from its header."""
    if path.suffix == ".safetensors":
        found = _of_safetensors(path)
    elif path.suffix in (".pt", ".pth", ".bin", ".ckpt"):
        found = _of_state_dict(path)
    else:
        raise ValueError(f"file={str(path)!r}: must end in .safetensors, .pt, .pth, .bin or .ckpt")
    if not found:
        raise ValueError(f"file={str(path)!r}: contains no floating-point tensor")
    return found


def _of_safetensors(path: Path) -> Weights:
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        text = file.read(length) if length <= _LONGEST_HEADER else b""
    try:
        entries = parse(text)
        entries.pop("__metadata__", None)
        return {
            name: Weight.named(name, _shape(name, entry["shape"]), _SAFETENSORS[entry["dtype"]])
            for name, entry in entries.items()
            if not entry["dtype"].startswith(("I", "U", "BOOL"))
        }
    except (ValueError, AttributeError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"file={str(path)!r}: is not a safetensors file ({told(error)})") from error


def _shape(name: str, sizes: Any) -> tuple[int, ...]:
    def is_size(size: Any) -> bool:
        return isinstance(size, int) and not isinstance(size, bool) and 0 <= size < 2**63

    if not isinstance(sizes, list) or len(sizes) > _MOST_AXES or not all(map(is_size, sizes)):
        raise ValueError(
            f"the shape of {name!r} is {str(sizes)[:60]}: must be up to {_MOST_AXES} whole numbers from 0"
        )
    return tuple(sizes)


def _of_state_dict(path: Path) -> Weights:
    path.open("rb").close()  # raises the usual error for a missing file
    try:
        # memory-mapped, so nothing is read; not on the meta device, where tied weights would count twice
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        raise ValueError(
            f"file={str(path)!r}: torch.load(weights_only=True) cannot read it: {told(error)}"
        ) from error
    for key in ("state_dict", "model_state_dict", "model"):  # a checkpoint with more than weights
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping):
        kind = type(content).__name__
        raise ValueError(f"file={str(path)!r}: must contain a state_dict; it contains a {kind}")
    found, seen = {}, set()
    for name, value in content.items():
        if isinstance(value, Tensor) and value.is_floating_point():
            place = (value.untyped_storage()._cdata, value.storage_offset(), value.shape)
            if place not in seen:  # a tied weight is saved under two names
                seen.add(place)
                found[str(name)] = Weight.named(str(name), value.shape, value.dtype)
    return found

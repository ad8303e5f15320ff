"""Checks of option values: each takes a name and a value, and returns a plain value or raises ValueError."""

from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor

from sketchy.core.arguments import check_number, parse_bytes


def number(allowed: str, test: Callable[[float], bool]) -> Callable[[str, Any], float]:
    def check(name: str, value: Any) -> float:
        found = check_number(name, value)
        if not test(found):
            raise ValueError(f"{name}={value}: must be {allowed}")
        return found

    return check


def count(least: int, *, optional: bool = False) -> Callable[[str, Any], int | None]:
    allowed = f"an int, at least {least}" + (", or None" if optional else "")

    def check(name: str, value: Any) -> int | None:
        if optional and value is None:
            return None
        if isinstance(value, bool) or not hasattr(value, "__index__") or value < least:
            raise ValueError(f"{name}={value!r}: must be {allowed}")
        return int(value)

    return check


def ranks(name: str, value: Any) -> int | tuple[int, ...] | None:
    """One rank for all axes, or one for each axis."""
    one = count(2, optional=True)
    if not isinstance(value, tuple | list):
        return one(name, value)
    if not value or None in value:
        raise ValueError(f"{name}={value!r}: must be an int, None, or a rank for each axis, such as (16, 32)")
    return tuple(int(one(name, rank) or 0) for rank in value)


def budget(name: str, value: Any) -> str | float | None:
    """Bytes as a text, such as 1.5GiB, or floats per weight."""
    if value is None:
        return None
    if isinstance(value, str):
        parse_bytes(name, value)
        return value
    allowed = "above 0 (floats of sketch for each sketched weight), a size such as '1.5GiB', or None"
    return number(allowed, lambda v: 0 < v < float("inf"))(name, value)


def one_of(values: Collection[str | None]) -> Callable[[str, Any], Any]:
    def check(name: str, value: Any) -> Any:
        if value not in values:
            raise ValueError(f"{name}={value!r}: must be one of {', '.join(map(repr, values))}")
        return value

    return check


def flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{name}={value!r}: must be True or False")
    return value


def dtype(*allowed: torch.dtype | str) -> Callable[[str, Any], str | None]:
    names = [str(dtype).removeprefix("torch.") for dtype in allowed]
    shown = ", ".join(repr(dtype) if isinstance(dtype, str) else str(dtype) for dtype in allowed)

    def check(name: str, value: Any) -> str | None:
        given = str(value).removeprefix("torch.")
        if value is not None and given not in names:
            raise ValueError(f"{name}={value}: must be one of None, {shown}")
        return None if value is None else given

    return check


not_negative = number("at least 0", lambda v: 0 <= v < float("inf"))


def rate(name: str, value: Any) -> float | Tensor:
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise ValueError(f"Tensor {name} must be 1-element: its shape is {tuple(value.shape)}")
        if not value.is_meta:
            not_negative(name, value.item())
        return value
    return not_negative(name, value)


def decay(name: str, value: Any) -> float | None:
    return None if value is None else number("in [0, 1), or None", lambda v: 0 <= v < 1)(name, value)


def sketch_beta2(name: str, value: Any) -> float | None:
    return None if value is None else number("in [0, 1], or None", lambda v: 0 <= v <= 1)(name, value)


def exponent(name: str, value: Any) -> float | None:
    return None if value is None else number("in (0, 1], or None", lambda v: 0 < v <= 1)(name, value)


def betas(name: str, value: Any) -> tuple[float, float]:
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise ValueError(f"{name}={value!r}: must be two numbers, (beta1, beta2)")
    prefix = name.removesuffix("betas")  # adam_betas: adam_beta1, adam_beta2
    beta1 = number("in [0, 1)", lambda v: 0 <= v < 1)(f"{prefix}beta1", value[0])
    beta2 = number("in [0, 1]; 1 is a sum without decay", lambda v: 0 <= v <= 1)(f"{prefix}beta2", value[1])
    return beta1, beta2


def adam_betas(name: str, value: Any) -> tuple[float, float] | None:
    return None if value is None else betas(name, value)

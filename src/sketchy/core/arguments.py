"""Checks of arguments. Error messages give the name, the value and what is allowed."""

import numbers
import operator
import re
from typing import Any

import torch


def check_count(name: str, value: Any, least: int, allowed: str) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name}={value!r}: must be an int, {allowed}")
    if value < least:
        raise ValueError(f"{name}={value}: must be {allowed}")
    return operator.index(value)


def check_number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{name}={value!r}: must be a number")
    return float(value)


_UNITS = {"b": 1} | {
    f"{letter}{i}b": (1024 if i else 1000) ** power
    for power, letter in enumerate("kmgtp", start=1)
    for i in ("", "i")
}


def parse_bytes(name: str, text: str) -> int:
    """The number of bytes in a text such as 8GiB, 500MB or 1.5 TB."""
    match = re.fullmatch(r"(\d+\.?\d*)\s*([kmgtp]?i?b)", text.strip().lower())
    if match is None:
        raise ValueError(f"{name}={text!r}: must be a number with a unit, such as 8GiB or 500MB")
    return int(float(match[1]) * _UNITS[match[2]])


def check_device(device: torch.device | str) -> torch.device:
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, TypeError) as error:  # no such device, or none on this machine
        raise ValueError(f"device={device!r}: {str(error).splitlines()[0]}") from None


def check_dtype(dtype: torch.dtype) -> torch.dtype:
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"dtype={dtype}: must be torch.float32 or torch.float64")
    return dtype

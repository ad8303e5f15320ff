"""The device that is checked, and the versions of what runs on it."""

import os
import platform
from pathlib import Path
from typing import Any

import torch

from sketchy import __version__
from sketchy.files import told


def best_device() -> torch.device:
    """The accelerator that torch prefers, else the CPU."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return torch.device("cpu") if found is None else found


def device_of(name: str | None) -> torch.device:
    """The device with this name, or the best one. Raise ValueError if it doesn't exist or doesn't compute."""
    if name is None:
        return best_device()
    try:
        device = torch.device(name)
        if int(torch.ones(2, device=device).sum()) == 2:
            return device
        why = "it does not add 1 and 1"
    except Exception as error:  # each backend has its own
        why = told(error).rstrip(".")
    here = sorted({"cpu", best_device().type})
    raise ValueError(f"device={name!r}: cannot be used ({why}); there is {' and '.join(here)}")


def about(device: torch.device) -> dict[str, Any]:
    """Versions, names and settings, as they are shown."""
    return {
        "sketchy": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "CUDA": torch.version.cuda,
        "ROCm": torch.version.hip,
        "system": f"{platform.system()} {platform.machine()}",
        "device": str(device),
        "name": device_name(device),
        "memory": _memory(device),
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "float32_matmul_precision": _setting(torch.get_float32_matmul_precision),
        "allow_tf32": _setting(lambda: torch.backends.cuda.matmul.allow_tf32),
        "cudnn.allow_tf32": _setting(lambda: torch.backends.cudnn.allow_tf32),
    }


def device_name(device: torch.device) -> str:
    if device.type == "cpu":
        return processor()
    module = torch.get_device_module(device)
    try:
        return str(module.get_device_name(device))
    except Exception:  # not every backend has names
        return device.type


def processor() -> str:
    """The name of this machine's processor, as it calls itself."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    found = next((line.split(": ")[1] for line in lines if line.startswith("model name")), "")
    return found or platform.processor()


def _memory(device: torch.device) -> str | None:
    try:
        return f"{torch.get_device_module(device).get_device_properties(device).total_memory / 2**30:.0f} GiB"
    except Exception:  # of the CPU, or not known
        return None


def _setting(read: Any) -> Any:
    try:
        return read()
    except RuntimeError:  # torch's older and newer settings were mixed
        return None

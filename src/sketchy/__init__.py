"""Sketchy: second-order training that fits in memory, with Frequent Directions sketches.

Names load when they are first used: `sketchy --help` must not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sketchy import core as core
    from sketchy import oco as oco
    from sketchy import optim as optim
    from sketchy.analysis.spectra import SpectrumMonitor as SpectrumMonitor
    from sketchy.frequent_directions import FrequentDirections as FrequentDirections
    from sketchy.optim import Shampoo as Shampoo
    from sketchy.optim import SketchyAdagrad as SketchyAdagrad
    from sketchy.optim import SketchyShampoo as SketchyShampoo
    from sketchy.optim import SketchySOAP as SketchySOAP
    from sketchy.optim import create_optimizer as create_optimizer
    from sketchy.optim import log as log
    from sketchy.optim import param_groups as param_groups

__version__ = "0.2.0.dev0"

_PACKAGES = ("core", "oco", "optim")
_HOMES = {
    "FrequentDirections": "sketchy.frequent_directions",
    "SpectrumMonitor": "sketchy.analysis.spectra",
} | dict.fromkeys(
    (
        *("Shampoo", "SketchyAdagrad", "SketchyShampoo", "SketchySOAP"),
        *("create_optimizer", "log", "param_groups"),
    ),
    "sketchy.optim",
)


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"sketchy.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'sketchy' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PACKAGES, *_HOMES})

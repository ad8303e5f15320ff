"""Changes to our optimizers, one by one: what each is worth is measured by `benchmarks.quality.ablation`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sketchy

Settings = dict[str, Any]


@dataclass(frozen=True)
class Switch:
    """One change, as options with it and without it."""

    on: Settings
    off: Settings


BETA2 = Switch({"betas": (0.9, 0.95)}, {"betas": (0.9, 0.999)})
WHITENING = Switch({"whiten": True}, {"whiten": False})
ROW_NORM = Switch({"row_norm": 0.95}, {"row_norm": None})
EXPONENT = Switch({"exponent": 0.5}, {"exponent": None})

KINDS = {"sketchy_soap": sketchy.SketchySOAP, "sketchy_shampoo": sketchy.SketchyShampoo}
SWITCHES: dict[str, dict[str, Switch]] = {
    "sketchy_soap": {"beta2 0.95": BETA2, "whitening": WHITENING, "row norm": ROW_NORM},
    "sketchy_shampoo": {
        "beta2 0.95": BETA2, "exponent 1/2": EXPONENT, "whitening": WHITENING, "row norm": ROW_NORM,
    },
}  # fmt: skip
ALL, NONE = "all on", "all off"


def changes(switches: Mapping[str, Switch]) -> dict[str, Settings]:
    """All switches on, each one off, each one alone on, and all off. Settings that repeat are left out.

    >>> switches = {name: Switch({name: 1}, {name: 0}) for name in "abc"}
    >>> for name, settings in changes(switches).items():
    ...     print(name, settings)
    all on {'a': 1, 'b': 1, 'c': 1}
    without a {'a': 0, 'b': 1, 'c': 1}
    without b {'a': 1, 'b': 0, 'c': 1}
    without c {'a': 1, 'b': 1, 'c': 0}
    a alone {'a': 1, 'b': 0, 'c': 0}
    b alone {'a': 0, 'b': 1, 'c': 0}
    c alone {'a': 0, 'b': 0, 'c': 1}
    all off {'a': 0, 'b': 0, 'c': 0}
    """

    def settings(on: set[str]) -> Settings:
        chosen = (switch.on if name in on else switch.off for name, switch in switches.items())
        return {option: value for some in chosen for option, value in some.items()}

    everything = set(switches)
    found = {
        ALL: settings(everything),
        **{f"without {name}": settings(everything - {name}) for name in switches},
        **{f"{name} alone": settings({name}) for name in switches},
        NONE: settings(set()),
    }
    unique: dict[str, Settings] = {}
    for name, some in found.items():
        if some not in unique.values():
            unique[name] = some
    return unique


# The length of SketchySOAP's steps, with all changes on. The last one is the default.
SCALES: dict[float, str] = {1.0: "graft scale 1", 1.5: "graft scale 1.5", 2.25: ALL}
ABLATION: dict[str, dict[str, Settings]] = {name: changes(some) for name, some in SWITCHES.items()}
ABLATION["sketchy_soap"] |= {
    change: {**ABLATION["sketchy_soap"][ALL], "graft_scale": scale}
    for scale, change in SCALES.items()
    if change != ALL
}


def named(optimizer: str, change: str) -> str:
    """The name of an optimizer with a change, in files and commands."""
    return f"{optimizer}: {change}"

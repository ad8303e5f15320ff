"""Checks of command-line options. An error has the name, the value and what is allowed."""

from collections.abc import Collection, Iterable


def at_least(least: float, **options: float | Iterable[float]) -> None:
    """Raise if one of the options, or one number of an option with several, is below ``least``."""
    for name, given in options.items():
        values = given if isinstance(given, Iterable) else [given]
        for value in values:
            if not value >= least:
                raise ValueError(f"{name.replace('_', '-')}={value:g}: must be at least {least:g}")


def positive(**options: float) -> None:
    for name, value in options.items():
        if not value > 0:
            raise ValueError(f"{name.replace('_', '-')}={value:g}: must be above 0")


def known(names: Collection[str], **options: Iterable[str]) -> None:
    """Raise if one of the options has a name that is not in ``names``."""
    for option, given in options.items():
        if unknown := [name for name in given if name not in names]:
            raise ValueError(f"{option}={' '.join(unknown)}: unknown; known are {', '.join(names)}")

"""What to say where a package of an extra is missing."""


def missing(package: str, extra: str) -> str:
    """One sentence: there is no published package yet, so it is a clone that has the extras.

    >>> missing("plotly", "report")
    "plotly is missing; pip install '.[report]' in a clone of sketchy brings it"
    """
    return f"{package} is missing; pip install '.[{extra}]' in a clone of sketchy brings it"

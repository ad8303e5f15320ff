"""Numbers that summarise several measurements."""

import math
import statistics
from collections.abc import Sequence
from typing import Any

ResultRow = dict[str, Any]  # one line of a file of results


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """The lower quartile, the median and the upper quartile; all three are equal for a single value."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def exponent(xs: Sequence[float], ys: Sequence[float]) -> float:
    """The slope of log y against log x: 1 is linear.

    >>> exponent([1, 2, 4], [3, 12, 48])
    2.0
    """
    return statistics.linear_regression([math.log(x) for x in xs], [math.log(y) for y in ys]).slope

"""Sketchy: second-order training that fits in memory, on Frequent Directions sketches."""

from sketchy import core as core
from sketchy import oco as oco
from sketchy.frequent_directions import FrequentDirections as FrequentDirections

__version__ = "0.1.0"

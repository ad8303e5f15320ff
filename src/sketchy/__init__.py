"""Sketchy: second-order training that fits in memory, on Frequent Directions sketches."""

from sketchy.frequent_directions import FrequentDirections as FrequentDirections

__version__ = "0.1.0"

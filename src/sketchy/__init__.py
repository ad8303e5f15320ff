"""Sketchy: second-order training that fits in memory, on Frequent Directions sketches."""

from sketchy import core as core
from sketchy import oco as oco
from sketchy import optim as optim
from sketchy.frequent_directions import FrequentDirections as FrequentDirections
from sketchy.optim import Shampoo as Shampoo
from sketchy.optim import SketchyAdagrad as SketchyAdagrad
from sketchy.optim import SketchyShampoo as SketchyShampoo
from sketchy.optim import SketchySOAP as SketchySOAP
from sketchy.optim import param_groups as param_groups

__version__ = "0.1.0"

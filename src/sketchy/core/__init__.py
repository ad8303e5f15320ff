"""The math: pure functions on tensors, batched over leading dimensions. They need torch and stdlib only."""

from sketchy.core import bounds as bounds
from sketchy.core import linalg as linalg
from sketchy.core import operator as operator
from sketchy.core import sketch as sketch

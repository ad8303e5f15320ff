"""How weights of the paper's networks start."""

import math

from torch import Tensor, nn

_TRUNCATED = 0.87962566103423978  # standard deviation of a standard normal number, cut at ± 2


def lecun_normal_(weight: Tensor) -> None:
    """Truncated at two standard deviations; the variance is 1 / inputs, as of flax."""
    std = 1 / math.sqrt(weight[0].numel()) / _TRUNCATED
    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)


def lecun_linear(inputs: int, outputs: int) -> nn.Linear:
    linear = nn.Linear(inputs, outputs)
    lecun_normal_(linear.weight)
    nn.init.zeros_(linear.bias)
    return linear

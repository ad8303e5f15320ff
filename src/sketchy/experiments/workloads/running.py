"""Running averages of the statistics of batch norms."""

import torch
from torch import Tensor, distributed, nn


class RunningStatistics(nn.Module):
    """Mean and biased variance of each channel; over a batch of ``batch`` rows they keep the share ``keep``.

    A batch may come in several forward passes, and on several ranks.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, *, keep: float, batch: int) -> None:
        super().__init__()
        self.keep, self.batch = keep, batch
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    @torch.no_grad()
    def remember(self, mean: Tensor, variance: Tensor, rows: int) -> None:
        """Add the statistics of a forward pass with so many rows."""
        several = distributed.is_available() and distributed.is_initialized()
        ranks = distributed.get_world_size() if several else 1  # all see as many rows in this pass
        kept = self.keep ** (rows * ranks / self.batch)
        self.running_mean.mul_(kept).add_(mean, alpha=1 - kept)
        self.running_var.mul_(kept).add_(variance, alpha=1 - kept)

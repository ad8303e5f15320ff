"""The Conformer with absolute positions: 104,883,200 weights with 16 layers of width 512 and 1024 pieces.

A layer is x + FF/2, + attention, + convolution, + FF/2, and a norm. Padding never counts: an utterance in a
batch has the outputs that it has alone.
"""

import math
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from sketchy.experiments.workloads.conformer.front_end import LogMel
from sketchy.experiments.workloads.running import RunningStatistics
from sketchy.experiments.workloads.workload import Batch

_EPS, _EPS_BATCH = 1e-6, 1e-3


class Norm(nn.Module):
    """Layer norm times (1 + scale): the scale starts at 0, and decay pulls it to 0."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale, self.bias = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return functional.layer_norm(x, self.bias.shape, 1 + self.scale, self.bias, _EPS)


class MaskedBatchNorm(RunningStatistics):
    """Batch norm over the frames that exist, times (1 + scale)."""

    def __init__(self, width: int, *, keep: float, batch: int) -> None:
        super().__init__(width, keep=keep, batch=batch)
        self.scale, self.bias = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor, exists: Tensor) -> Tensor:
        """``x``: (rows, frames, width). ``exists``: (rows, frames, 1)."""
        mean, variance = self.running_mean, self.running_var
        y = x.to(mean.dtype)  # statistics are float32, also under autocast
        if self.training:
            count = exists.sum()
            mean = (y * exists).sum((0, 1)) / count
            variance = ((y - mean).square() * exists).sum((0, 1)) / count
            self.remember(mean, variance, len(x))
        scaled = (y - mean) * (variance + _EPS_BATCH).rsqrt()
        return (scaled * (1 + self.scale) + self.bias).to(x.dtype)


class Subsampling(nn.Module):
    """Two convolutions with stride 2 and a linear map: a quarter of the frames."""

    def __init__(self, bins: int, channels: int, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, channels, 3, 2)
        self.second = nn.Conv2d(channels, channels, 3, 2)
        self.linear = nn.Linear(channels * shorter(shorter(bins)), width)

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """From (rows, frames, bins) and numbers of frames, to (rows, frames / 4, width) and theirs."""
        x = features.unsqueeze(1)
        for conv in (self.first, self.second):
            # one window for each two frames and bins: the padding depends on no length of the batch
            pad = [2 * shorter(side) + 1 - side for side in (x.shape[3], x.shape[2])]
            x, lengths = functional.relu(conv(functional.pad(x, (0, pad[0], 0, pad[1])))), shorter(lengths)
            x = x * _exists(lengths, x.shape[2]).unsqueeze(1).to(x.dtype)
        return self.linear(x.transpose(1, 2).flatten(2)), lengths


Length = TypeVar("Length", int, Tensor)


def shorter(length: Length) -> Length:
    """The length after a stride of 2."""
    return (length + 1) // 2


def _exists(lengths: Tensor, frames: int) -> Tensor:
    """(rows, frames, 1): which frames are not padding."""
    return (torch.arange(frames, device=lengths.device) < lengths.unsqueeze(1)).unsqueeze(2)


def positions(frames: int, width: int, device: torch.device | None = None) -> Tensor:
    """Sines, then cosines, of wave lengths from 2π to 20000π, (frames, width)."""
    count = width // 2
    rates = torch.exp(torch.arange(count, device=device) * (-math.log(10_000) / max(1, count - 1)))
    angles = torch.arange(frames, device=device).unsqueeze(1) * rates
    return functional.pad(torch.cat([angles.sin(), angles.cos()], 1), (0, width % 2))


class FeedForward(nn.Module):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm, self.dropout = Norm(width), nn.Dropout(dropout)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.down(functional.silu(self.up(self.norm(x)))))


class Attention(nn.Module):
    """Self-attention whose queries are scaled, entry by entry of a head, by softplus(s) / softplus(0)."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.norm, self.dropout = heads, Norm(width), nn.Dropout(dropout)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.scale = nn.Parameter(torch.zeros(width // heads))

    def forward(self, x: Tensor, exists: Tensor) -> Tensor:
        y = self.norm(x)
        q, k, v = (
            linear(y).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for linear in (self.query, self.key, self.value)
        )
        q = q * (functional.softplus(self.scale) / math.log(2)).to(q.dtype)
        mask = exists.transpose(1, 2).unsqueeze(1)  # of keys: (rows, 1, 1, frames)
        found = functional.scaled_dot_product_attention(q, k, v, mask)
        return self.dropout(self.out(found.transpose(1, 2).flatten(2)))


class Convolution(nn.Module):
    """A gated unit, a convolution of each channel by itself, a masked batch norm, and a linear map."""

    def __init__(self, width: int, kernel: int, *, keep: float, batch: int) -> None:
        super().__init__()
        self.norm, self.value, self.gate = Norm(width), nn.Linear(width, width), nn.Linear(width, width)
        self.depthwise = nn.Conv1d(width, width, kernel, padding="same", groups=width, bias=False)
        self.batch_norm = MaskedBatchNorm(width, keep=keep, batch=batch)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, exists: Tensor) -> Tensor:
        y = self.norm(x)
        y = self.value(y) * self.gate(y).sigmoid() * exists.to(x.dtype)
        y = self.depthwise(y.transpose(1, 2)).transpose(1, 2)
        return self.out(functional.silu(self.batch_norm(y, exists)))


class Layer(nn.Module):
    def __init__(
        self, width: int, heads: int, kernel: int, dropout: float, *, keep: float, batch: int
    ) -> None:
        super().__init__()
        self.before, self.after = FeedForward(width, dropout), FeedForward(width, dropout)
        self.attention = Attention(width, heads, dropout)
        self.convolution = Convolution(width, kernel, keep=keep, batch=batch)
        self.norm = Norm(width)

    def forward(self, x: Tensor, exists: Tensor) -> Tensor:
        x = x + 0.5 * self.before(x)
        x = x + self.attention(x, exists)
        x = x + self.convolution(x, exists)
        return self.norm(x + 0.5 * self.after(x))


class ConformerNetwork(nn.Module):
    """Logits (rows, frames / 4, pieces) of a batch of recordings, and the numbers of frames that exist."""

    def __init__(
        self,
        front_end: LogMel,
        pieces: int,
        *,
        width: int,
        layers: int,
        heads: int,
        channels: int,
        kernel: int,
        dropout: float,
        input_dropout: float,
        keep: float,
        batch: int,
    ) -> None:
        super().__init__()
        self.front_end = front_end
        self.subsampling = Subsampling(front_end.bins, channels, width)
        self.dropout = nn.Dropout(input_dropout)
        self.layers = nn.ModuleList(
            Layer(width, heads, kernel, dropout, keep=keep, batch=batch) for _ in range(layers)
        )
        self.norm, self.head = Norm(width), nn.Linear(width, pieces)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        features, lengths = self.front_end(batch)
        x, lengths = self.subsampling(features, lengths)
        x = self.dropout(x + positions(x.shape[1], x.shape[2], x.device).to(x.dtype))
        exists = _exists(lengths, x.shape[1])
        for layer in self.layers:
            x = layer(x, exists)
        return self.head(self.norm(x)), lengths

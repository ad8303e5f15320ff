"""ResNet-50 as MLPerf has it: 25,557,032 weights at width 64 and 1000 classes.

It is version 1.5 (a block's stride is in its 3 x 3 convolution). A block's last norm starts with zeros, so a
new block adds nothing. Norms take their statistics over parts of a batch ("virtual batches"), so that they do
not depend on how a batch is divided.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from sketchy.experiments.workloads.initial import lecun_normal_
from sketchy.experiments.workloads.running import RunningStatistics
from sketchy.experiments.workloads.workload import Batch

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of red, green and blue on ImageNet
_EPS = 1e-5


class VirtualNorm(RunningStatistics):
    """Batch norm over parts of ``virtual`` rows of a batch; their statistics are averaged."""

    def __init__(self, channels: int, *, virtual: int, batch: int, keep: float = 0.9) -> None:
        super().__init__(channels, keep=keep, batch=batch)
        self.virtual = virtual
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return functional.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, eps=_EPS
            )
        means, variances, parts = [], [], []
        for part in x.split(self.virtual):
            mean, variance = torch.empty_like(self.running_mean), torch.empty_like(self.running_var)
            # with momentum 1, these become the statistics of the part
            parts.append(
                functional.batch_norm(
                    part, mean.zero_(), variance.zero_(), self.weight, self.bias, True, 1.0, _EPS
                )
            )
            count = part.numel() // len(mean)
            means.append(mean)
            variances.append(variance * ((count - 1) / count))
        self.remember(torch.stack(means).mean(0), torch.stack(variances).mean(0), len(x))
        return torch.cat(parts) if len(parts) > 1 else parts[0]


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3 and 1 x 1 convolutions beside a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int, **norm: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1, self.norm1 = _conv(inputs, width, 1), VirtualNorm(width, **norm)
        self.conv2, self.norm2 = _conv(width, width, 3, stride), VirtualNorm(width, **norm)
        self.conv3, self.norm3 = _conv(width, outputs, 1), VirtualNorm(outputs, **norm)
        nn.init.zeros_(self.norm3.weight)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Sequential(_conv(inputs, outputs, 1, stride), VirtualNorm(outputs, **norm))

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.norm1(self.conv1(x)))
        y = functional.relu(self.norm2(self.conv2(y)))
        return functional.relu(self.norm3(self.conv3(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """Logits (rows, classes) of a batch of pictures of bytes (rows, 3, height, width).

    ``blocks``: of each of the stages, whose widths double. ``stem``: 7 for a 7 x 7 convolution with stride 2
    and a pool with stride 2, as on ImageNet; 3 for a 3 x 3 convolution with stride 2. ``virtual``, ``batch``:
    see `VirtualNorm`.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(
        self, classes: int, *, width: int, blocks: Sequence[int], stem: int, dropout: float, **norm: int
    ) -> None:
        super().__init__()
        self.register_buffer("mean", 255 * torch.tensor(MEAN).view(3, 1, 1), persistent=False)
        self.register_buffer("deviation", 255 * torch.tensor(DEVIATION).view(3, 1, 1), persistent=False)
        self.pooled = stem == 7
        self.stem, self.norm = _conv(3, width, stem, 2), VirtualNorm(width, **norm)
        stages, inputs = [], width
        for stage, count in enumerate(blocks):
            for i in range(count):
                stride = 2 if stage > 0 and i == 0 else 1
                stages.append(Bottleneck(inputs, width << stage, stride, **norm))
                inputs = 4 * width << stage
        self.blocks = nn.Sequential(*stages)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(inputs, classes)
        nn.init.normal_(self.head.weight, std=0.01)
        nn.init.zeros_(self.head.bias)

    def forward(self, batch: Batch) -> Tensor:
        x = (batch["images"].float() - self.mean) / self.deviation
        x = x.contiguous(memory_format=torch.channels_last) if x.is_cuda else x  # for its tensor cores
        x = functional.relu(self.norm(self.stem(x)))
        x = functional.max_pool2d(x, 3, 2, padding=1) if self.pooled else x
        return self.head(self.dropout(self.blocks(x).mean((2, 3))))


def _conv(inputs: int, outputs: int, side: int, stride: int = 1) -> nn.Conv2d:
    conv = nn.Conv2d(inputs, outputs, side, stride, padding=side // 2, bias=False)
    lecun_normal_(conv.weight)
    return conv

"""The networks that the tasks train, written out in full."""

from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional


class GPT(nn.Module):
    """A pre-norm transformer: (batch, length) of ids to (batch, length, vocabulary) of logits."""

    def __init__(self, vocabulary: int, *, width: int, layers: int, heads: int, context: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.embed_position = nn.Embedding(context, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:  # weights that add to the residual stream start smaller: there are many
                additions = 2 * layers if name.endswith("out.weight") else 1
                nn.init.normal_(weight, std=0.02 / additions**0.5)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.embed_position.weight[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Layer(nn.Module):
    """Causal attention, then a two-layer network, each on a normalised copy of the residual stream."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.network_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention_in = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.network_in = nn.Linear(width, 4 * width, bias=False)
        self.network_out = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        mixed = self.attention_in(self.attention_norm(x)).view(batch, length, 3, self.heads, -1)
        query, key, value = mixed.permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention_out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.network_out(functional.gelu(self.network_in(self.network_norm(x))))


def mlp(*widths: int, activation: type[nn.Module], linear_at: int | None = None) -> nn.Sequential:
    """Linear layers, each followed by an activation, except the last one and layer number ``linear_at``."""
    modules: list[nn.Module] = []
    for i, (inside, outside) in enumerate(pairwise(widths)):
        modules += [nn.Linear(inside, outside)]
        modules += [] if i in (len(widths) - 2, linear_at) else [activation()]
    return nn.Sequential(*modules)


class Block(nn.Module):
    """A residual block: two 3 x 3 convolutions with batch norm. The shortcut is 1 x 1 if shapes differ."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.into = _convolution(inside, outside, 3, stride)
        self.out = _convolution(outside, outside, 3)
        same = (inside, stride) == (outside, 1)
        self.short = nn.Identity() if same else _convolution(inside, outside, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.short(x) + self.out(functional.relu(self.into(x))))


def resnet(*widths: int, classes: int) -> nn.Sequential:
    """A ResNet for small images: a convolution, max pooling, then a block for each width.

    All blocks except the first halve height and width.
    """
    stem = [_convolution(3, widths[0], 3), nn.ReLU(), nn.MaxPool2d(2)]
    blocks = [
        Block(inside, outside, stride=1 if i == 0 else 2)
        for i, (inside, outside) in enumerate(pairwise((widths[0], *widths)))
    ]
    return nn.Sequential(
        *stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes)
    )


def _convolution(inside: int, outside: int, size: int, stride: int = 1) -> nn.Sequential:
    convolution = nn.Conv2d(inside, outside, size, stride=stride, padding=size // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outside))

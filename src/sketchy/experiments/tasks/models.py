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
            if weight.ndim == 2:  # what is added to the residual stream shrinks with the number of additions
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
    """Linear maps with an activation between them; none after the last, nor after number ``linear_at``."""
    modules: list[nn.Module] = []
    for i, (inside, outside) in enumerate(pairwise(widths)):
        modules += [nn.Linear(inside, outside)]
        modules += [] if i in (len(widths) - 2, linear_at) else [activation()]
    return nn.Sequential(*modules)


def convnet(*channels: int, classes: int) -> nn.Sequential:
    """Convolutions of 3 x 3, each with batch norm and ReLU, the picture halved after each but the last."""
    modules: list[nn.Module] = []
    for i, (inside, outside) in enumerate(pairwise(channels)):
        modules += [nn.Conv2d(inside, outside, 3, padding=1, bias=False), nn.BatchNorm2d(outside), nn.ReLU()]
        modules += [nn.MaxPool2d(2)] if i < len(channels) - 2 else []
    return nn.Sequential(*modules, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels[-1], classes))

"""Parameter lists by name, synthetic gradients for them, and their forward and backward passes.

A gradient is a low-rank matrix plus noise: singular values decay as i^-0.75, and a tenth of the energy is
noise. There are a few sets of gradients, whose directions differ a little from one to the next. All
optimizers get the same ones.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from sketchy.experiments.tasks.models import GPT, Layer

TOKENS, LENGTH = 4096, 512  # tokens of a batch, and of one text in it
VOCABULARY = 16384  # too long to be preconditioned, by the defaults of all optimizers
DIRECTIONS, DECAY, NOISE = 128, 0.75, 0.1  # of a synthetic gradient
SETS, TURN = 4, 0.1  # sets of gradients, and the angle from one to the next

Named = list[tuple[str, nn.Parameter]]


@dataclass(frozen=True)
class Problem:
    """A list of weights and, if there is a network, its forward and backward pass."""

    title: str
    parameters: Callable[[], Named]
    training_pass: Callable[[], Callable[[], object]] | None = None  # forward and backward over TOKENS


class Gradients:
    """Synthetic gradients for ``p.grad``, set after set, forwards and backwards so that they never jump."""

    def __init__(self, parameters: Iterable[nn.Parameter], sets: int = SETS) -> None:
        self.parameters = list(parameters)
        generator = torch.Generator().manual_seed(0)
        made = [gradients(tuple(p.shape), sets, generator) for p in self.parameters]
        self._sets = [list(one) for one in zip(*made, strict=True)]
        self._order = [*range(sets), *range(sets - 2, 0, -1)]
        self._next = 0
        for p in self.parameters:
            p.grad = torch.zeros_like(p)

    def advance(self) -> None:
        """Copy the next set into ``p.grad``: an optimizer may have changed or removed the gradient."""
        for p, new in zip(self.parameters, self._sets[self._order[self._next]], strict=True):
            if p.grad is None:
                p.grad = torch.empty_like(p)
            p.grad.copy_(new)
        self._next = (self._next + 1) % len(self._order)


def gradients(shape: tuple[int, ...], sets: int, generator: torch.Generator) -> list[Tensor]:
    """Gradients of one weight, with entries of about 1e-3."""

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator)

    if len(shape) < 2:
        return [1e-3 * normal(*shape) for _ in range(sets)]
    m, n = shape[0], math.prod(shape[1:])
    r = min(m, n, DIRECTIONS)
    sigma = torch.arange(1, r + 1) ** -DECAY
    left, left_to, right, right_to = normal(m, r) * sigma, normal(m, r) * sigma, normal(n, r), normal(n, r)
    result = []
    for i in range(sets):
        c, s = math.cos(i * TURN), math.sin(i * TURN)
        G = (c * left + s * left_to) @ (c * right + s * right_to).T / float(sigma.square().sum()) ** 0.5
        result.append(1e-3 * (G + (NOISE / (1 - NOISE)) ** 0.5 * normal(m, n)).reshape(shape))
    return result


def _matrix(width: int) -> nn.Module:
    return nn.Linear(width, width, bias=False)


def _texts(model: GPT) -> Callable[[], object]:
    """Forward and backward pass of a language model."""
    ids = torch.randint(
        model.embed.num_embeddings, (TOKENS // LENGTH, LENGTH), generator=torch.Generator().manual_seed(0)
    )

    def run() -> object:
        model.zero_grad()
        return nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()

    return run


def _inside(model: nn.Module, width: int) -> Callable[[], object]:
    """Forward and backward pass of a hidden layer, whose input needs a gradient, too."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(TOKENS // LENGTH, LENGTH, width, generator=generator).requires_grad_()

    def run() -> object:
        model.zero_grad()
        return model(x).backward(x.detach())

    return run


def _named(build: Callable[[], nn.Module], *, matrices_only: bool = False) -> Named:
    return [(name, p) for name, p in build().named_parameters() if p.ndim > 1 or not matrices_only]


def _layer(width: int, *, matrices_only: bool = False) -> Problem:
    build = partial(Layer, width, width // 64)
    return Problem(
        f"one transformer layer of width {width}" + (", its four matrices" if matrices_only else ""),
        lambda: _named(build, matrices_only=matrices_only),
        lambda: _inside(build(), width),
    )


def transformer(layers: int, width: int = 256, vocabulary: int = VOCABULARY) -> Problem:
    build = partial(GPT, vocabulary, width=width, layers=layers, heads=width // 64, context=LENGTH)
    return Problem(
        f"{layers}-layer transformer of width {width}, vocabulary of {vocabulary}: all its weights",
        lambda: _named(build),
        lambda: _texts(build()),
    )


def matrix(m: int, n: int) -> Problem:
    return Problem(f"one {m} x {n} weight", lambda: [("weight", nn.Parameter(torch.zeros(m, n)))])


def resnet50() -> list[tuple[str, tuple[int, ...]]]:
    """The shapes of ResNet-50 (He et al., 2016, Table 1) with batch norm, by name.

    >>> sum(math.prod(shape) for _, shape in resnet50())
    25557032
    """
    shapes: list[tuple[str, tuple[int, ...]]] = []

    def convolution(name: str, outside: int, inside: int, side: int) -> None:
        shapes.append((f"{name}.weight", (outside, inside, side, side)))
        shapes.extend((f"{name}_norm.{part}", (outside,)) for part in ("weight", "bias"))

    convolution("stem", 64, 3, 7)
    inside = 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        middle, outside = 64 * 2**stage, 256 * 2**stage
        for block in range(blocks):
            name = f"stage{stage}.{block}"
            for part, (to, of, side) in enumerate(
                ((middle, inside, 1), (middle, middle, 3), (outside, middle, 1))
            ):
                convolution(f"{name}.convolution{part}", to, of, side)
            if block == 0:
                convolution(f"{name}.shortcut", outside, inside, 1)
            inside = outside
    return [*shapes, ("head.weight", (1000, inside)), ("head.bias", (1000,))]


PROBLEMS: dict[str, Problem] = {
    "matrix": Problem(
        "one 1024 x 1024 weight",
        lambda: _named(partial(_matrix, 1024)),
        lambda: _inside(_matrix(1024), 1024),
    ),
    "block": _layer(768, matrices_only=True),  # of GPT-2 small
    "layer512": _layer(512),
    "transformer": transformer(12),
    "transformer2": transformer(2),
    "resnet50": Problem(
        "ResNet-50's weights", lambda: [(name, nn.Parameter(torch.zeros(s))) for name, s in resnet50()]
    ),
}

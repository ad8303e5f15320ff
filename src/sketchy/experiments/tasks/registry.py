"""The tasks by name, and their data.

Learning rates are tuned on the validation rows. Therefore these rows come from the published training sets,
never from the test sets.
"""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from sketchy.experiments.published import Read
from sketchy.experiments.tasks import sets
from sketchy.experiments.tasks.models import GPT, mlp, resnet
from sketchy.experiments.tasks.molecules import MoleculeNetwork
from sketchy.experiments.tasks.task import Split, Task

CONTEXT = 64  # context length of the language model, in characters
HELD_OUT_WINDOWS = 2000  # the largest number of validation windows; they are spread evenly over the text
CIFAR_MEAN = (0.4914, 0.4822, 0.4465)  # of the training pixels, by channel
CIFAR_STD = (0.2470, 0.2435, 0.2616)


def load(name: str, *, directory: str | Path | None = None, download: bool = False) -> Task:
    """The task ``name`` with its data. If the data is missing, an error says how to get it.

    >>> digits = load("digits")
    >>> digits.loss_name, len(digits.train), len(digits.validation)
    ('nats', 1437, 360)
    """
    if name not in TASKS:
        raise ValueError(f"task={name!r}: no such task; known are {', '.join(TASKS)}")
    return TASKS[name](partial(sets.read, directory=directory, download=download))


def _characters(
    name: str,
    text: str,
    read: Callable[[str], Read],
    *,
    width: int = 128,
    layers: int = 2,
    heads: int = 4,
    batch: int = 16,
    steps: int = 400,
    look_every: int = 40,
) -> Task:
    """A character-level GPT. The last tenth of the text is held out, as usual."""
    here, following = (torch.from_numpy(array) for array in read(text))
    cut = round(0.9 * len(here))

    def windows(part: slice, stride: int) -> Split:
        return Split(*(ids[part].unfold(0, CONTEXT, stride) for ids in (here, following)))

    return Task(
        name,
        "nats per character",
        windows(slice(None, cut), 1),
        windows(slice(cut, None), CONTEXT * math.ceil((len(here) - cut) / (CONTEXT * HELD_OUT_WINDOWS))),
        prepare=lambda rows: (rows.inputs.long(), rows.targets.long()),
        build=partial(GPT, int(here.max()) + 1, width=width, layers=layers, heads=heads, context=CONTEXT),
        loss=lambda logits, targets: cross_entropy(logits.flatten(0, 1), targets.flatten()),
        batch=batch,
        steps=steps,
        look_every=look_every,
    )


def _autoencoder(read: Callable[[str], Read]) -> Task:
    """A small MNIST autoencoder after Hinton and Salakhutdinov: sigmoids, a linear code of size 20."""
    pixels = torch.from_numpy(read("mnist")[0])

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        return binary_cross_entropy_with_logits(logits, targets, reduction="sum") / len(targets)

    return Task(
        "autoencoder",
        "binary cross-entropy per image",
        Split(pixels[:50_000], pixels[:50_000]),
        Split(pixels[50_000:], pixels[50_000:]),
        prepare=lambda rows: (rows.inputs / 255, rows.targets / 255),
        build=partial(mlp, 784, 400, 100, 20, 100, 400, 784, activation=nn.Sigmoid, linear_at=2),
        loss=loss,
        batch=256,
        steps=400,
        look_every=20,
    )


def _cifar10(read: Callable[[str], Read]) -> Task:
    """A ResNet of three blocks on CIFAR-10, without augmentation."""
    planes, labels = (torch.from_numpy(array) for array in read("cifar10"))
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (CIFAR_MEAN, CIFAR_STD))

    def prepare(rows: Split) -> tuple[Tensor, Tensor]:
        images = (rows.inputs.view(-1, 3, 32, 32) / 255 - mean) / std
        return images.to(memory_format=torch.channels_last), rows.targets.long()

    def build() -> nn.Module:
        model = resnet(32, 64, 128, classes=10)
        return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    return Task(
        "cifar10",
        "nats",
        Split(planes[:45_000], labels[:45_000]),
        Split(planes[45_000:], labels[45_000:]),
        prepare=prepare,
        build=build,
        loss=cross_entropy,
        batch=64,
        steps=400,
        look_every=40,
        classifies=True,
    )


def _tox21(read: Callable[[str], Read]) -> Task:
    """Message passing on the molecules of Tox21, with twelve assays. Every fifth graph is held out.

    Stereoisomers have the same graph, so they are in the same split.
    """
    molecules, labels = (torch.from_numpy(array) for array in read("tox21"))
    held_out = torch.unique(molecules.flatten(1), dim=0, return_inverse=True)[1] % 5 == 0

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        tested = targets >= 0
        return binary_cross_entropy_with_logits(
            logits[tested], targets[tested].to(logits), reduction="sum"
        ) / len(targets)

    return Task(
        "tox21",
        "binary cross-entropy per molecule, over the assays it was tested in",
        Split(molecules[~held_out], labels[~held_out]),
        Split(molecules[held_out], labels[held_out]),
        prepare=lambda rows: (rows.inputs, rows.targets),
        build=partial(MoleculeNetwork, labels.shape[1], width=128, layers=3),
        loss=loss,
        batch=64,
        steps=400,
        look_every=20,
    )


def _digits(read: Callable[[str], Read]) -> Task:
    """scikit-learn's digits, which need no download. Every fifth image is held out."""
    from sklearn.datasets import load_digits

    pixels, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    held_out = torch.arange(len(labels)) % 5 == 0
    return Task(
        "digits",
        "nats",
        Split(pixels[~held_out], labels[~held_out]),
        Split(pixels[held_out], labels[held_out]),
        prepare=lambda rows: (rows.inputs.float() / 16, rows.targets),
        build=partial(mlp, 64, 128, 64, 10, activation=nn.ReLU),
        loss=cross_entropy,
        batch=64,
        steps=200,
        look_every=10,
        classifies=True,
    )


TASKS: dict[str, Callable[[Callable[[str], Read]], Task]] = {
    "charlm": partial(_characters, "charlm", "tinyshakespeare"),
    "autoencoder": _autoencoder,
    "cifar10": _cifar10,
    "warpeace": partial(_characters, "warpeace", "warandpeace"),
    "tox21": _tox21,
    "digits": _digits,
    "charlm_long": partial(_characters, "charlm_long", "tinyshakespeare", steps=4000, look_every=200),
    "gpt256": partial(  # 3.2 million weights
        _characters, "gpt256", "warandpeace", width=256, layers=4, batch=8, steps=1500, look_every=300
    ),
    "gpt10m": partial(  # 10.7 million weights
        _characters,
        "gpt10m",
        "warandpeace",
        width=384,
        layers=6,
        heads=6,
        batch=8,
        steps=1500,
        look_every=300,
    ),
}

"""What a training task is: data, a network, a loss, and what is measured on held-out rows."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

VALIDATION_CHUNK = 64  # rows in one forward pass; more no longer fit the cache and take longer


@dataclass(frozen=True)
class Split:
    """Rows of inputs and of what is to be predicted, in the compact types in which they lie on disk."""

    inputs: Tensor  # (rows, ...)
    targets: Tensor  # (rows, ...)

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass(frozen=True)
class Score:
    """What a model makes of the validation rows."""

    loss: float
    accuracy: float | None  # share of right classes, None where nothing is classified


@dataclass(frozen=True)
class Task:
    """A network to train. Batches depend on seed and step alone, so all optimizers see the same ones."""

    name: str
    loss_name: str  # unit of the loss, as printed
    train: Split
    validation: Split
    prepare: Callable[[Split], tuple[Tensor, Tensor]]  # rows as the model and the loss take them
    build: Callable[[], nn.Module]
    loss: Callable[[Tensor, Tensor], Tensor]  # of outputs and targets: mean over the rows
    batch: int
    steps: int
    look_every: int  # steps between two looks at the validation split
    classifies: bool = False

    def model(self, seed: int) -> nn.Module:
        """A new network; torch's own random numbers are left as they were."""
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            return self.build()

    def rows(self, seed: int, step: int) -> tuple[Tensor, Tensor]:
        """The training batch of a step, drawn with replacement."""
        draw = torch.Generator().manual_seed(1_000_003 * seed + step)  # no two of the steps of a run agree
        chosen = torch.randint(len(self.train), (self.batch,), generator=draw)
        return self.prepare(Split(self.train.inputs[chosen], self.train.targets[chosen]))

    def training_loss(self, model: nn.Module, seed: int, step: int) -> Tensor:
        inputs, targets = self.rows(seed, step)
        return self.loss(model(inputs), targets)

    @torch.no_grad()
    def validate(self, model: nn.Module) -> Score:
        """Loss and accuracy over all validation rows, in evaluation mode."""
        before, loss, right = model.training, 0.0, 0
        model.eval()
        for start in range(0, len(self.validation), VALIDATION_CHUNK):
            part = slice(start, start + VALIDATION_CHUNK)
            rows = Split(self.validation.inputs[part], self.validation.targets[part])
            inputs, targets = self.prepare(rows)
            outputs = model(inputs)
            loss += len(rows) * float(self.loss(outputs, targets))
            right += int((outputs.argmax(-1) == targets).sum()) if self.classifies else 0
        model.train(before)
        count = len(self.validation)
        return Score(loss / count, right / count if self.classifies else None)

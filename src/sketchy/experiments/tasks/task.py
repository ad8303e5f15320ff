"""Training tasks: data, a network, a loss, and the score on held-out rows."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

VALIDATION_CHUNK = 64  # rows in one forward pass; more do not fit into the cache and are slower


@dataclass(frozen=True)
class Split:
    """Rows of inputs and targets, in the compact dtypes of the files."""

    inputs: Tensor  # (rows, ...)
    targets: Tensor  # (rows, ...)

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass(frozen=True)
class Score:
    """Loss and accuracy on the validation rows."""

    loss: float
    accuracy: float | None  # share of correctly classified rows; None if the task is not a classification


@dataclass(frozen=True)
class Task:
    """A network to train. Batches depend on seed and step only, so all optimizers get the same ones."""

    name: str
    loss_name: str  # unit of the loss, as printed
    train: Split
    validation: Split
    prepare: Callable[[Split], tuple[Tensor, Tensor]]  # converts rows to arguments of the model and the loss
    build: Callable[[], nn.Module]
    loss: Callable[[Tensor, Tensor], Tensor]  # from outputs and targets to the mean over the rows
    batch: int
    steps: int
    look_every: int  # steps between two validations
    classifies: bool = False

    def model(self, seed: int) -> nn.Module:
        """A new network. The state of torch's random number generator does not change."""
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            return self.build()

    def rows(self, seed: int, step: int) -> tuple[Tensor, Tensor]:
        """The training batch of a step, drawn with replacement."""
        draw = torch.Generator().manual_seed(1_000_003 * seed + step)  # different for each step of a run
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

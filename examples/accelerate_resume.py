"""Accelerate: `save_state`, `load_state` and an exact resume, on scikit-learn's digits.

python examples/accelerate_resume.py       # pip install accelerate
"""

import tempfile
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import sketchy


def train(
    epochs: range, total: int, *, load: Path | None = None, save: Path | None = None
) -> dict[str, Tensor]:
    """Train for some of the epochs, from a saved state or from the start. Returns the final weights."""
    set_seed(0)
    images, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    model: nn.Module = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = sketchy.SketchySOAP(model.named_parameters(), lr=3e-3, rank=16)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total * 15)
    loader = DataLoader(TensorDataset(images.float() / 16, labels), batch_size=128, shuffle=True)

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=1)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    if load is not None:
        accelerator.load_state(str(load))  # weights, optimizer, schedule, random numbers
    for epoch in epochs:
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        print(f"epoch {epoch}  loss {loss.item():.6f}")
    if save is not None:
        accelerator.save_state(str(save))
    return accelerator.unwrap_model(model).state_dict()


def main(epochs: int = 6) -> float:
    """Train without and with a stop in the middle; print and return the difference of the weights."""
    once = train(range(epochs), epochs)
    with tempfile.TemporaryDirectory() as directory:
        half, saved = epochs // 2, Path(directory) / "half"
        train(range(half), epochs, save=saved)
        print("stopped; a new process would go on from here")
        resumed = train(range(half, epochs), epochs, load=saved)
    apart = max(float((once[name] - resumed[name]).abs().max()) for name in once)
    print(f"weights after a stop differ from those without by {apart}")
    return apart


if __name__ == "__main__":
    main()

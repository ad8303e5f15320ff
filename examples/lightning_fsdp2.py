"""Lightning with FSDP2 (`ModelParallelStrategy`), on scikit-learn's digits; stopped and resumed.

python examples/lightning_fsdp2.py         # one process; pip install lightning
torchrun --nproc-per-node 2 examples/lightning_fsdp2.py
"""

import os
import tempfile
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer, seed_everything
from lightning.pytorch.strategies import ModelParallelStrategy
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, TensorDataset

import sketchy

PROCESSES = int(os.environ.get("WORLD_SIZE", "1"))


class Digits(LightningModule):
    def __init__(self, dtype: torch.dtype, lr: float = 1e-2, rank: int = 16) -> None:
        super().__init__()
        self.lr, self.rank = lr, rank
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(dtype)
        self.losses: list[float] = []

    def configure_model(self) -> None:
        fully_shard(self.net, mesh=self.device_mesh["data_parallel"])

    def configure_optimizers(self) -> Any:  # Lightning calls it after configure_model
        return sketchy.SketchySOAP(self.named_parameters(), lr=self.lr, rank=self.rank)

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        images, labels = batch
        loss = nn.functional.cross_entropy(self.net(images), labels)
        self.losses.append(float(self.trainer.strategy.reduce(loss.detach(), reduce_op="mean")))
        return loss


def fit(
    dtype: torch.dtype, until: int, save: Path | None = None, resume: Path | None = None
) -> tuple[list[float], bool]:
    """The losses, and whether this is the first process."""
    seed_everything(0, verbose=False)
    model = Digits(dtype)
    images, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    data = TensorDataset(images[:1792].to(dtype) / 16, labels[:1792])
    loader = DataLoader(data, batch_size=128 // PROCESSES)  # Lightning divides the rows between processes
    trainer = Trainer(
        max_epochs=until,
        gradient_clip_val=1.0,
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
        strategy=ModelParallelStrategy(data_parallel_size=PROCESSES, tensor_parallel_size=1),
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, loader, ckpt_path=resume, weights_only=True)
    if save is not None:
        trainer.save_checkpoint(save, weights_only=False)  # a folder: each process writes its part
    return model.losses, trainer.is_global_zero


def main(epochs: int = 6, double: bool = False) -> None:
    """Train without and with a stop in the middle; print the losses of both."""
    dtype = torch.float64 if double else torch.float32
    once, first = fit(dtype, epochs)
    with tempfile.TemporaryDirectory() as directory:  # all processes use that of the first
        saved = Path(directory) / "half.ckpt"
        stopped = fit(dtype, epochs // 2, save=saved)[0] + fit(dtype, epochs, resume=saved)[0]
    if first:
        print("the same at every step" if once == stopped else "NOT the same", f"on {PROCESSES} processes")
        print("\n".join(f"epoch {step // 14}  loss {once[step]:.6f}" for step in range(13, len(once), 14)))


if __name__ == "__main__":
    import tyro

    tyro.cli(main)

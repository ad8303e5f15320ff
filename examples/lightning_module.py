"""A Lightning module with a schedule and clipping, on scikit-learn's digits; stopped and resumed.

python examples/lightning_module.py        # pip install lightning
"""

import tempfile
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer, seed_everything
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import sketchy


class Digits(LightningModule):
    def __init__(self, epochs: int, lr: float = 1e-2, rank: int = 16) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
        self.losses: list[float] = []

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        images, labels = batch
        loss = nn.functional.cross_entropy(self.net(images), labels)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = sketchy.SketchySOAP(
            self.named_parameters(), lr=self.hparams["lr"], rank=self.hparams["rank"]
        )
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.hparams["epochs"])
        return {"optimizer": optimizer, "lr_scheduler": schedule}


def fit(model: Digits, until: int, save: Path | None = None, resume: Path | None = None) -> None:
    images, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    loader = DataLoader(TensorDataset(images.float() / 16, labels), batch_size=128)
    trainer = Trainer(
        max_epochs=until,
        gradient_clip_val=1.0,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, loader, ckpt_path=resume, weights_only=True)
    if save is not None:
        trainer.save_checkpoint(save, weights_only=False)  # with the optimizer's state


def main(epochs: int = 8) -> tuple[list[float], list[float]]:
    """Train without and with a stop in the middle; print and return the losses of both."""
    seed_everything(0, verbose=False)
    once = Digits(epochs)
    halted, resumed = Digits(epochs), Digits(epochs)
    halted.load_state_dict(once.state_dict())
    fit(once, epochs)
    with tempfile.TemporaryDirectory() as directory:
        saved = Path(directory) / "half.ckpt"
        fit(halted, epochs // 2, save=saved)
        fit(resumed, epochs, resume=saved)
    stopped = halted.losses + resumed.losses
    print(f"uninterrupted:      {once.losses[0]:.4f} -> {once.losses[-1]:.4f} in {len(once.losses)} steps")
    print(f"stopped in between: {stopped[0]:.4f} -> {stopped[-1]:.4f} in {len(stopped)} steps")
    print("the same at every step" if once.losses == stopped else "NOT the same")
    return once.losses, stopped


if __name__ == "__main__":
    main()

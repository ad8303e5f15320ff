"""The monitor in Lightning and in the Hugging Face Trainer: the records of the same run without them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from sketchy import SketchySOAP
from sketchy.analysis.callbacks import Watch, lightning_callback, trainer_callback
from sketchy.analysis.spectra import SpectrumMonitor, read

ROWS = torch.randn(24, 6, generator=torch.Generator().manual_seed(1))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))


def optimizer_of(net: nn.Module, ours: bool) -> torch.optim.Optimizer:
    named = net.named_parameters()
    return SketchySOAP(named, lr=0.01, rank=3) if ours else torch.optim.AdamW(named, lr=0.01)


def batches(epochs: int) -> list[torch.Tensor]:
    return [rows for _ in range(epochs) for rows in ROWS.split(4)]


def plain(ours: bool, epochs: int = 1) -> list[Any]:
    """The records of a plain loop."""
    net = network()
    optimizer = optimizer_of(net, ours)
    with SpectrumMonitor(optimizer if ours else net, every=3) as monitor:
        for rows in batches(epochs):
            optimizer.zero_grad()
            net(rows).square().mean().backward()
            optimizer.step()
    return monitor.records


def test_it_follows_our_optimizer_else_the_model_and_only_the_first_process_writes(tmp_path: Path) -> None:
    net = network()
    ours, other = optimizer_of(net, True), optimizer_of(net, False)

    class Wrapped:
        optimizer = ours

    for optimizers, source in (([other, ours], ours), ([Wrapped()], ours), ([other], net)):
        watch = Watch({"every": 1, "path": tmp_path / "x.jsonl"})
        for first in (False, True):
            (tmp_path / "x.jsonl").unlink(missing_ok=True)
            watch.begin(net, optimizers, 0, None, first)
            net(ROWS).square().mean().backward()
            (ours if source is ours else other).step()
            assert watch.monitor is not None and watch.monitor._source is source
            watch.end()
            assert (tmp_path / "x.jsonl").exists() == first


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("ours", [True, False])
def test_lightning_records_what_a_plain_loop_records_and_resumes(ours: bool, tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
            return self.net(batch).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return optimizer_of(self, ours)

    def fit(epochs: int, callback: Any, resume: Path | None = None, save: Path | None = None) -> None:
        trainer = lightning.Trainer(
            max_epochs=epochs,
            callbacks=[callback],
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(Module(), DataLoader(ROWS, batch_size=4), ckpt_path=resume, weights_only=True)
        if save is not None:
            trainer.save_checkpoint(save)

    expected = [(r.step, f"net.{r.parameter}", r.axis, r.trace, r.share) for r in plain(ours, epochs=2)]
    once = lightning_callback(every=3)
    fit(2, once)
    assert [(r.step, r.parameter, r.axis, r.trace, r.share) for r in once.monitor.records] == expected
    file, saved = tmp_path / "spectra.jsonl", tmp_path / "half.ckpt"
    fit(1, lightning_callback(every=3, path=file), save=saved)
    fit(2, lightning_callback(every=3, path=file), resume=saved)
    assert [(r.step, r.parameter, r.axis, r.trace, r.share) for r in read(file)] == expected


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("ours", [True, False])
def test_the_trainer_records_what_a_plain_loop_records(ours: bool, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def forward(self, rows: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": self.net(rows).square().mean()}

    model = Model()
    optimizer = optimizer_of(model, ours)
    schedule = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
    callback = trainer_callback(every=3, path=tmp_path / "spectra.jsonl")
    arguments = transformers.TrainingArguments(
        str(tmp_path),
        num_train_epochs=1,
        per_device_train_batch_size=4,
        train_sampling_strategy="sequential",
        max_grad_norm=0.0,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
        remove_unused_columns=False,
    )
    trainer = transformers.Trainer(
        model,
        arguments,
        train_dataset=[{"rows": row} for row in ROWS],
        optimizers=(optimizer, schedule),
        callbacks=[callback],
    )
    trainer.train()
    found = [(r.step, r.parameter, r.axis, r.trace) for r in read(tmp_path / "spectra.jsonl")]
    assert found == [(r.step, f"net.{r.parameter}", r.axis, r.trace) for r in plain(ours)]

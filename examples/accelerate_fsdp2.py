"""Accelerate with FSDP2: `save_state`, `load_state` and an exact resume, on scikit-learn's digits.

python examples/accelerate_fsdp2.py        # one process: without FSDP2; pip install accelerate
torchrun --nproc-per-node 2 examples/accelerate_fsdp2.py
"""

import tempfile
from pathlib import Path

import torch
from accelerate import Accelerator, PartialState
from accelerate.utils import (
    DataLoaderConfiguration,
    DistributedType,
    FullyShardedDataParallelPlugin,
    broadcast_object_list,
    set_seed,
)
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import sketchy


def make_accelerator() -> Accelerator:
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, cpu_ram_efficient_loading=False)
    cpu = not torch.accelerator.is_available()
    loading = DataLoaderConfiguration(split_batches=True, use_seedable_sampler=True)  # a batch is shared
    accelerator = Accelerator(cpu=cpu, fsdp_plugin=plugin, dataloader_config=loading)
    if cpu and accelerator.num_processes > 1:  # on a CPU, Accelerate itself takes DDP
        accelerator.state.fsdp_plugin = plugin
        accelerator.state.distributed_type = PartialState().distributed_type = DistributedType.FSDP
    return accelerator


def train(
    accelerator: Accelerator,
    epochs: range,
    dtype: torch.dtype,
    load: Path | None = None,
    save: Path | None = None,
) -> dict[str, Tensor]:
    """Train for some of the epochs, from a saved state or from the start. Returns the final weights."""
    set_seed(0)
    images, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    model: nn.Module = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(dtype)
    optimizer = sketchy.SketchySOAP(model.named_parameters(), lr=3e-3, rank=16)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=100)
    data = TensorDataset(images.to(dtype) / 16, labels)
    loader = DataLoader(data, batch_size=128, shuffle=True, drop_last=True)

    accelerator.free_memory()  # forget the objects of an earlier call
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    if load is not None:
        accelerator.load_state(str(load))  # weights, optimizer, schedule, random numbers
    for epoch in epochs:
        loader.set_epoch(epoch)
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        mean = accelerator.reduce(loss.detach(), "mean")
        accelerator.print(f"epoch {epoch}  loss {mean.item():.6f}")
    if save is not None:
        accelerator.save_state(str(save))
    return accelerator.get_state_dict(model)  # whole, in the main process


def main(epochs: int = 6, double: bool = False) -> None:
    """Train without and with a stop in the middle; print the difference of the weights."""
    accelerator, dtype = make_accelerator(), torch.float64 if double else torch.float32
    accelerator.print(f"FSDP2: {accelerator.is_fsdp2}")
    once = train(accelerator, range(epochs), dtype)
    with tempfile.TemporaryDirectory() as directory:
        half, saved = epochs // 2, Path(broadcast_object_list([directory])[0]) / "half"
        train(accelerator, range(half), dtype, save=saved)
        accelerator.print("stopped; a new run would go on from here")
        resumed = train(accelerator, range(half, epochs), dtype, load=saved)
        accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        apart = max(float((once[name] - resumed[name]).abs().max()) for name in once)
        print(f"weights after a stop differ from those without by {apart}")
    accelerator.end_training()


if __name__ == "__main__":
    import tyro

    tyro.cli(main)

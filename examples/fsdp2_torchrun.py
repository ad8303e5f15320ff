"""FSDP2 and torchrun: weights, optimizer state and checkpoints in parts, and a run that resumes.

python examples/fsdp2_torchrun.py                               # one process; --help lists all options
torchrun --nproc-per-node 2 examples/fsdp2_torchrun.py

The same command again, on any number of processes, goes on from the newest complete checkpoint. Model and
text are those of nanogpt_loop.py. GPUs are used if there are any.
"""

import os
from pathlib import Path
from typing import Any

import torch
from nanogpt_loop import GPT, learning_rate, read_text
from torch import distributed, nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor

import sketchy


def start() -> torch.device:
    """Join the other processes, by gloo and, for GPUs, NCCL. Returns the device of this process."""
    alone = {} if "RANK" in os.environ else {"store": distributed.HashStore(), "rank": 0, "world_size": 1}
    distributed.init_process_group(**alone)
    if not torch.accelerator.is_available():
        return torch.device("cpu")
    torch.accelerator.set_device_index(int(os.environ.get("LOCAL_RANK", "0")))
    return torch.accelerator.current_accelerator()


@torch.no_grad()
def initialise(model: nn.Module) -> None:
    """Fill one weight after the other. The numbers do not depend on the number of processes."""
    generator = torch.Generator().manual_seed(0)
    for name, p in model.named_parameters():
        full = torch.full(p.shape, float("norm" in name and name.endswith("weight")))
        if p.ndim > 1:
            full.normal_(std=0.02, generator=generator)
        p.copy_(distribute_tensor(full.to(p.device), p.device_mesh, p.placements, src_data_rank=None))


def save(model: nn.Module, optimizer: Any, folder: Path, step: int) -> None:
    """Write a checkpoint. While it is incomplete, its name ends in ".part"."""
    weights, state = get_state_dict(model, optimizer)
    part = folder / f"step-{step:06d}.part"  # what a killed run left here is overwritten
    checkpoint.save({"model": weights, "optimizer": state}, checkpoint_id=part)  # until all have written
    if distributed.get_rank() == 0:
        part.rename(part.with_suffix(""))


def load(model: nn.Module, optimizer: Any, folder: Path) -> int:
    """Load the newest complete checkpoint. Returns its step; 0 if there is none."""
    newest = [max((path.name for path in folder.glob("step-*") if path.suffix != ".part"), default=None)]
    distributed.broadcast_object_list(newest, src=0)  # rank 0 decides for all
    if newest[0] is None:
        return 0
    weights, state = get_state_dict(model, optimizer)
    saved = {"model": weights, "optimizer": state}
    checkpoint.load(saved, checkpoint_id=folder / newest[0])
    set_state_dict(model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"])
    return int(newest[0].removeprefix("step-"))


def main(
    steps: int = 200, lr: float = 4e-3, rank: int = 32, every: int = 50, folder: Path = Path("runs/fsdp2")
) -> None:
    """Train up to a number of steps, and save after every few."""
    device = start()
    here, ranks = distributed.get_rank(), distributed.get_world_size()
    text = read_text()
    symbols = sorted(set(text))
    tokens = torch.tensor([symbols.index(character) for character in text[:200_000]])
    with torch.device("meta"):  # takes no memory yet
        model = GPT(len(symbols), context=64, width=64, layers=2)
    for block in model.blocks.layers:
        fully_shard(block)
    fully_shard(model)
    model.to_empty(device=device)  # this rank's part only
    initialise(model)
    optimizer = sketchy.SketchySOAP(sketchy.param_groups(model), lr=lr, rank=rank)  # after fully_shard

    for step in range(load(model, optimizer, folder), steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps, lr)
        generator = torch.Generator().manual_seed(step)  # the step determines the batch: nothing to save
        at = torch.randint(len(tokens) - 65, (16, 1), generator=generator)[here::ranks] + torch.arange(65)
        rows = tokens[at].to(device)  # of this rank; ranks may have unequal numbers of rows
        loss = model(rows[:, :-1], rows[:, 1:]) * len(rows) * ranks / 16
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # by the norm over all ranks
        optimizer.step()
        distributed.all_reduce(mean := loss.detach() / ranks)
        if here == 0 and step % 10 == 0:
            print(f"step {step:4d}  loss {mean.item():.4f}", flush=True)
        if (step + 1) % every == 0 or step + 1 == steps:
            save(model, optimizer, folder, step + 1)
    distributed.destroy_process_group()


if __name__ == "__main__":
    import tyro

    tyro.cli(main)

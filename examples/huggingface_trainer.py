"""The Hugging Face Trainer, both ways: `optimizer_cls_and_kwargs` and `optimizers=`. No download.

python examples/huggingface_trainer.py     # pip install transformers accelerate

A two-layer GPT-2 made from its config learns bytes of the source of Python's argparse.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainingArguments,
    get_cosine_schedule_with_warmup,
    set_seed,
)

import sketchy


def examples(length: int = 64) -> list[dict[str, torch.Tensor]]:
    tokens = torch.frombuffer(bytearray(Path(argparse.__file__).read_bytes()), dtype=torch.uint8).long()
    return [{"input_ids": piece, "labels": piece} for piece in tokens[: 512 * length].split(length)]


def train(way: str, steps: int, lr: float, rank: int) -> list[float]:
    set_seed(0)
    config = GPT2Config(vocab_size=256, n_positions=64, n_embd=64, n_layer=2, n_head=4)
    config.bos_token_id = config.eos_token_id = None  # bytes have none
    model = GPT2LMHeadModel(config)
    # Without `params` the Trainer makes two groups without names. Embeddings then look like any other matrix.
    options: dict[str, Any] = {"params": sketchy.param_groups(model), "lr": lr, "rank": rank}
    if way == "optimizer_cls_and_kwargs":
        how: dict[str, Any] = {"optimizer_cls_and_kwargs": (sketchy.SketchySOAP, options)}
    else:
        optimizer = sketchy.SketchySOAP(**options)
        how = {"optimizers": (optimizer, get_cosine_schedule_with_warmup(optimizer, 5, steps))}

    with tempfile.TemporaryDirectory() as directory:
        arguments = TrainingArguments(
            directory,
            max_steps=steps,
            per_device_train_batch_size=16,
            lr_scheduler_type="cosine",
            warmup_steps=5,
            logging_steps=10,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = Trainer(model, arguments, train_dataset=examples(), **how)
        trainer.train()
    return [entry["loss"] for entry in map(dict, trainer.state.log_history) if "loss" in entry]


def main(steps: int = 60, lr: float = 3e-3, rank: int = 32) -> dict[str, list[float]]:
    """Train both ways; print and return the loss of every tenth step."""
    losses = {way: train(way, steps, lr, rank) for way in ("optimizer_cls_and_kwargs", "optimizers")}
    for way, curve in losses.items():
        print(f"{way:25}", *(f"{loss:.4f}" for loss in curve))
    print("the same" if len(set(map(tuple, losses.values()))) == 1 else "NOT the same")
    return losses


if __name__ == "__main__":
    main()

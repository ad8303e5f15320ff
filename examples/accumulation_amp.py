"""Gradient accumulation under autocast(bfloat16), with a GradScaler and clipping, on scikit-learn's digits.

python examples/accumulation_amp.py

A scaler is needed only for float16 on an accelerator. Here it shows that scaled gradients, and steps that are
skipped because a gradient overflowed, work as with AdamW. Some virtual machines announce AMX but forbid it
("Illegal instruction"): set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 there.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import sketchy


def main(
    steps: int = 60, micro_batches: int = 4, micro_batch: int = 64, lr: float = 3e-3, amp: bool = True
) -> tuple[nn.Module, list[float]]:
    """Train; return the model and the loss of every step."""
    torch.manual_seed(0)
    images, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    images = images.float() / 16
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = sketchy.SketchyShampoo(model.named_parameters(), lr=lr, rank=16)
    scaler = torch.amp.GradScaler("cpu", enabled=amp)

    losses, skipped = [], 0
    for step in range(1, steps + 1):
        rows = torch.randint(len(labels), (micro_batches * micro_batch,))
        total = 0.0
        for part in rows.split(micro_batch):
            with torch.autocast("cpu", torch.bfloat16, enabled=amp):
                loss = nn.functional.cross_entropy(model(images[part]), labels[part]) / micro_batches
            scaler.scale(loss).backward()  # adds to the gradients
            total += loss.item()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scale = scaler.get_scale()
        scaler.step(optimizer)  # skipped if a gradient is not finite; then neither weights nor state change
        scaler.update()
        optimizer.zero_grad()
        skipped += scaler.get_scale() < scale
        losses.append(total)
        if step % 20 == 0:
            print(f"step {step:4d}  loss {total:.4f}  scale {scaler.get_scale():.0f}  skipped {skipped}")
    return model, losses


if __name__ == "__main__":
    main()

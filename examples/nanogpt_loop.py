"""A nanoGPT-style loop: character GPT, parameter groups, warm-up, cosine, clipping, checkpoint and resume.

python examples/nanogpt_loop.py            # --resume continues from the checkpoint; --help lists all options

The text is Tiny Shakespeare if $SKETCHY_DATA has it, otherwise the source of Python's argparse.
"""

import argparse
import gzip
import math
import os
from pathlib import Path

import torch
from torch import Tensor, nn

import sketchy


def read_text() -> str:
    shakespeare = Path(os.environ.get("SKETCHY_DATA", ".")) / "text" / "tinyshakespeare.txt.gz"
    if shakespeare.exists():
        return gzip.decompress(shakespeare.read_bytes()).decode()
    return Path(argparse.__file__).read_text(encoding="utf-8")


class GPT(nn.Module):
    def __init__(self, vocabulary: int, context: int, width: int, layers: int) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        block = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.lm_head.weight = self.wte.weight  # tied, as in GPT-2: treated like the embedding
        nn.init.normal_(self.wte.weight, std=0.02)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        logits = self.lm_head(self.blocks(x, mask=mask, is_causal=True))
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def learning_rate(step: int, steps: int, peak: float) -> float:
    warmup = steps // 10
    cosine = 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))
    return peak * ((step + 1) / warmup if step < warmup else cosine)


def main(
    steps: int = 200,
    lr: float = 4e-3,
    rank: int = 32,
    width: int = 64,
    checkpoint: Path = Path("runs/nanogpt.pt"),
    resume: bool = False,
    stop_after: int | None = None,  # steps; simulates a crash
) -> tuple[GPT, list[float]]:
    """Train; return the model and the losses of the steps taken."""
    torch.manual_seed(0)
    text = read_text()
    symbols = sorted(set(text))
    tokens = torch.tensor([symbols.index(character) for character in text[:200_000]])
    model = GPT(len(symbols), context=64, width=width, layers=2)

    groups = sketchy.param_groups(model)  # matrices; embeddings, heads and vectors
    groups[1]["weight_decay"] = 0.0
    optimizer = sketchy.SketchySOAP(groups, lr=lr, rank=rank, weight_decay=0.1)
    start = 0
    if resume:
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        start = saved["step"]

    losses = []
    for step in range(start, steps if stop_after is None else stop_after):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, steps, lr)
        generator = torch.Generator().manual_seed(step)  # the step determines the batch: nothing to save
        at = torch.randint(len(tokens) - 65, (16, 1), generator=generator) + torch.arange(65)
        loss = model(tokens[at[:, :-1]], tokens[at[:, 1:]])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if step % 20 == 0:
            print(f"step {step:4d}  loss {losses[-1]:.4f}  lr {optimizer.param_groups[0]['lr']:.2e}")
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": start + len(losses)}
    torch.save(state, checkpoint)
    print(f"step {state['step']:4d}  saved to {checkpoint}")
    return model, losses


if __name__ == "__main__":
    import tyro

    tyro.cli(main)

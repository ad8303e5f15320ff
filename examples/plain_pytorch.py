"""A plain training loop on scikit-learn's digits: SketchySOAP replaces AdamW, and nothing else changes.

python examples/plain_pytorch.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import sketchy


def main(steps: int = 200, batch: int = 128, lr: float = 3e-3, rank: int = 16, seed: int = 0) -> list[float]:
    """Train; print and return the loss of every step."""
    torch.manual_seed(seed)
    images, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    images = images.float() / 16
    train, test = torch.randperm(len(labels)).split([1500, 297])

    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))
    # was: torch.optim.AdamW(model.parameters(), lr=lr)
    optimizer = sketchy.SketchySOAP(model.named_parameters(), lr=lr, rank=rank)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    losses = []
    for step in range(1, steps + 1):
        rows = train[torch.randint(len(train), (batch,))]
        loss = nn.functional.cross_entropy(model(images[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if step % 50 == 0:
            print(f"step {step:4d}  loss {losses[-1]:.4f}")

    with torch.no_grad():
        right = (model(images[test]).argmax(1) == labels[test]).float().mean()
    print(f"accuracy on {len(test)} other digits: {right:.1%}\n")
    print(optimizer.report())
    return losses


if __name__ == "__main__":
    main()

"""Muon with its momentum in 8 bits: torch's own steps, with the momentum rounded after each of them."""

from collections.abc import Callable
from typing import Any, overload

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.optim import Muon
from torch.optim._muon import muon

BLOCK = 2048  # entries that share a scale
LARGEST = 127  # code


class Muon8bit(Muon):
    """``torch.optim.Muon``, where each block of the momentum is stored as codes round(127 M / max |M|).

    A step uses the momentum before it is rounded. Only one weight at a time has it in full precision. With
    ``rounded=False`` it is kept as it is, and steps are torch's to the bit.
    """

    def __init__(self, params: Any, lr: float = 1e-3, *, rounded: bool = True, **options: Any) -> None:
        self.rounded = rounded
        super().__init__(params, lr=lr, **options)

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            options = {name: value for name, value in group.items() if name in SETTINGS}
            for weight in group["params"]:
                if weight.grad is not None:
                    state = self.state[weight]
                    M = decoded(state, weight.grad) if state else torch.zeros_like(weight.grad)
                    muon([weight], [weight.grad], [M], **options, has_complex=False)
                    state.update(encoded(M) if self.rounded else {"momentum": M})
        return loss


SETTINGS = (
    "lr", "weight_decay", "momentum", "nesterov", "ns_coefficients", "eps", "ns_steps", "adjust_lr_fn",
)  # fmt: skip


def encoded(M: Tensor) -> dict[str, Tensor]:
    """Codes and the scale of each block: M ≈ scale code.

    >>> encoded(torch.tensor([[1.27, -0.5], [0.0, 0.004]]))["codes"].tolist()
    [127, -50, 0, 0]
    """
    blocks = pad(M.flatten(), (0, -M.numel() % BLOCK)).view(-1, BLOCK)
    scales = blocks.abs().amax(1, keepdim=True) / LARGEST
    codes = (blocks / scales.clamp_min(torch.finfo(M.dtype).tiny)).round_().to(torch.int8)
    return {"codes": codes.flatten()[: M.numel()].clone(), "scales": scales}


def decoded(state: dict[str, Tensor], like: Tensor) -> Tensor:
    """The momentum that a state holds."""
    if "momentum" in state:
        return state["momentum"]
    codes = pad(state["codes"].to(like.dtype), (0, -like.numel() % BLOCK)).view(-1, BLOCK)
    return (codes * state["scales"]).flatten()[: like.numel()].view_as(like)

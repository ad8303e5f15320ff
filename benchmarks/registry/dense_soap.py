"""Dense SOAP in plain PyTorch, to compare the sketched optimizers with.

Vyas et al., "SOAP: Improving and Stabilizing Shampoo using Adam", Alg. 3. A full eigendecomposition refreshes
the bases at every step. This is the most accurate version of SOAP, and too slow for practical use.
"""

from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim import Optimizer


class SOAP(Optimizer):
    """Adam in the eigenbases of the left and right moving covariances; plain Adam for vectors.

    L ← β₂ L + (1 − β₂) G Gᵀ,  R ← β₂ R + (1 − β₂) Gᵀ G,  L = Q_L Λ Q_Lᵀ,  R = Q_R Λ Q_Rᵀ;
    M and V are Adam's moments of G and of Q_Lᵀ G Q_R;  W ← W − η Q_L (Q_Lᵀ M Q_R / √V) Q_Rᵀ.

    N-d weights are matrices of their first axis by all others. The defaults are the SOAP authors'.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 3e-3,
        betas: tuple[float, float] = (0.95, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._move(weight, group)
        return loss

    def _move(self, weight: Tensor, group: dict[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        assert weight.grad is not None
        G = weight.grad.flatten(1) if weight.ndim > 1 else weight.grad
        state = self.state[weight]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["M"], state["V"] = torch.zeros_like(G), torch.zeros_like(G)
            if G.ndim == 2:  # like the authors: the first gradient initializes the bases and makes no step
                state["L"], state["R"] = (1 - beta2) * G @ G.T, (1 - beta2) * G.T @ G
                state["Q_L"], state["Q_R"] = (eigenbasis(state[side]) for side in "LR")
                return
        state["step"] += 1
        state["M"].lerp_(G, 1 - beta1)
        state["V"].lerp_(self._rotated(state, G).square(), 1 - beta2)
        unbiased1, unbiased2 = (1 - beta ** float(state["step"]) for beta in (beta1, beta2))
        N = (self._rotated(state, state["M"]) / unbiased1) / ((state["V"] / unbiased2).sqrt() + group["eps"])
        if G.ndim == 2:
            N = state["Q_L"] @ N @ state["Q_R"].T
            # After the step: bases that include G leave only rounding errors outside of their span, and Adam
            # would scale these to the length of any other entry.
            state["L"].lerp_(G @ G.T, 1 - beta2)
            state["R"].lerp_(G.T @ G, 1 - beta2)
            state["Q_L"], state["Q_R"] = (eigenbasis(state[side]) for side in "LR")
        weight.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * N.view_as(weight))

    @staticmethod
    def _rotated(state: dict[str, Tensor], X: Tensor) -> Tensor:
        return state["Q_L"].T @ X @ state["Q_R"] if X.ndim == 2 else X


def eigenbasis(C: Tensor) -> Tensor:
    """Eigenvectors of C, in float64 if float32 fails.

    On covariances with many zero rows (dark pixels) float32 does not converge, or returns nan if the entries
    are small, too. So C is first scaled to a largest entry of 1.
    """
    C = C / C.abs().max().clamp_min(torch.finfo(C.dtype).tiny)
    try:
        Q = torch.linalg.eigh(C)[1]
        if Q.isfinite().all():
            return Q
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        pass
    return torch.linalg.eigh(C.double())[1].to(C.dtype)

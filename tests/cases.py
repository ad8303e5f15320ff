"""The tables that the tests run through: streams, decays, solvers, dtypes."""

import torch
from torch import Tensor

F32, F64 = torch.float32, torch.float64
SOLVERS = ("exact", "subspace")
DECAYS = (1.0, 0.999, 0.9)
TOLERANCE = {F32: 2e-5, F64: 1e-10}  # relative to the largest eigenvalue


def _rotation(d: int, generator: torch.Generator) -> Tensor:
    return torch.linalg.qr(torch.randn(d, d, generator=generator, dtype=F64))[0]


def stream(kind: str, d: int, k: int, steps: int, seed: int = 0, dtype: torch.dtype = F64) -> list[Tensor]:
    """``steps`` matrices (d, k) of one kind, as a training run or an adversary might send them."""
    g = torch.Generator().manual_seed(seed)
    Q, turn = _rotation(d, g), torch.eye(d, dtype=F64)
    index = torch.arange(1, d + 1, dtype=F64)
    scale, spectrum = 1.0, index**-1.0
    match kind:
        case "power":
            pass
        case "steep":
            spectrum = index**-2.0
        case "geometric":
            spectrum = 0.8**index
        case "drifting":
            S = torch.randn(d, d, generator=g, dtype=F64) / d**0.5
            turn = torch.matrix_exp(0.05 * (S - S.T))
        case "repeated":
            spectrum = torch.where(index <= d // 2, 1.0, 0.1)
        case "white":
            spectrum = torch.ones(d, dtype=F64)
        case "rank-deficient":
            spectrum = torch.where(index <= max(1, d // 8), 1.0, 0.0)
        case "zero":
            spectrum = torch.zeros(d, dtype=F64)
        case "tiny":
            scale = 1e-20
        case "huge":
            scale = 1e20
        case _:
            raise KeyError(kind)
    result = []
    for _ in range(steps):
        noise = torch.randn(d, k, generator=g, dtype=F64)
        result.append((scale * (Q * spectrum) @ noise).to(dtype))
        Q = turn @ Q
    return result


DECAYING = ("power", "steep", "geometric", "drifting", "tiny", "huge")
STREAMS = (*DECAYING, "repeated", "white", "rank-deficient", "zero")


def covariance(stream: list[Tensor], decay: float = 1.0) -> Tensor:
    """The truth: C = Σ decay^(T-t) A_t A_tᵀ, dense, float64."""
    C = torch.zeros(len(stream[0]), len(stream[0]), dtype=F64)
    for A in stream:
        C = decay * C + A.double() @ A.double().T
    return C

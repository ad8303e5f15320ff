"""Assertions that print what they measured."""

import torch
from torch import Tensor

from sketchy import FrequentDirections
from sketchy.core.sketch import Sketch


def assert_close(actual: Tensor, expected: Tensor, *, scale: Tensor | float, tolerance: float) -> None:
    """Largest difference at most ``tolerance`` times ``scale``."""
    error = (actual.double() - expected.double()).abs().max().item()
    allowed = tolerance * float(scale)
    assert error <= allowed, f"off by {error:.3e}, allowed {allowed:.3e}"


def assert_psd_leq(lower: Tensor, upper: Tensor, *, scale: Tensor | float, tolerance: float) -> None:
    """lower ⪯ upper up to rounding."""
    smallest = torch.linalg.eigvalsh(upper - lower).min().item()
    allowed = tolerance * float(scale)
    assert smallest >= -allowed, (
        f"smallest eigenvalue of the difference {smallest:.3e}, allowed {-allowed:.3e}"
    )


def norm(S: Tensor) -> float:
    """The operator norm of a symmetric matrix; scaled first so that 1e40 does not overflow inside."""
    largest = S.abs().max()
    if largest == 0:
        return 0.0
    return (torch.linalg.eigvalsh(S / largest).abs().max() * largest).item()


def dense(sketch: Sketch) -> Tensor:
    """B Bᵀ of an unbatched sketch, float64."""
    U = sketch.basis.double()
    return (U * sketch.eigenvalues) @ U.T


def orthonormality(basis: Tensor) -> float:
    U = basis.double()
    return (U.mT @ U - torch.eye(U.shape[-1], dtype=U.dtype)).abs().max().item()


def feed(fd, matrices):
    for A in matrices:
        fd.update(A)
    return fd


def same(a: FrequentDirections, b: FrequentDirections) -> bool:
    """Equal bit for bit. Buffered vectors stay in the buffer."""
    mine, theirs = a.state_dict(), b.state_dict()
    return all(torch.equal(torch.as_tensor(mine[k]), torch.as_tensor(theirs[k])) for k in mine)

"""The guarantees of the sketch when matrix products round float32 to TF32.

`torch.set_float32_matmul_precision("high")` permits this. The tests use hardware that does so, and
simulate it on all hardware.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from cases import F32, F64, STREAMS, stream
from checks import dense, norm, orthonormality
from sketchy.core import dense as whole
from sketchy.core import sketch
from sketchy.core.certificate import product_eps
from sketchy.core.linalg import gaussian
from sketchy.core.sketch import Sketch

D, K, RANK, STEPS, DECAY = 48, 80, 8, 12, 0.9
TF32_EPS = 2.0**-10
ORTHONORMAL = 2.5 * TF32_EPS  # measured: 1.2

aten = torch.ops.aten
PRODUCTS = (aten.mm, aten.bmm, aten.addmm, aten.baddbmm, aten.baddbmm_)


def tf32(x: Tensor) -> Tensor:
    """Round to 10 bits after the leading one, ties to even."""
    if x.dtype != F32:
        return x
    bits = x.contiguous().view(torch.int32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & ~0x1FFF).view(F32)


class RoundedProducts(TorchDispatchMode):
    """Matrix products of float32 as tensor cores do them: factors rounded to TF32, sums in float32."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function.overloadpacket in PRODUCTS:
            *rest, A, B = args
            args = (*rest, tf32(A), tf32(B))
        return function(*args, **(kwargs or {}))


def changes_products() -> bool:
    """Whether the setting in force changes a product at all."""
    A = gaussian(256, 256, seed=0, like=torch.empty(0))
    found = A @ A
    return bool((found - (A.double() @ A.double())).norm() > 1e-5 * found.norm())


@pytest.fixture
def high() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    yield
    torch.set_float32_matmul_precision(before)


@pytest.fixture(params=["hardware", "rounded here"])
def products(request: pytest.FixtureRequest, high: None) -> Any:
    """A context in which products are rounded."""
    if request.param == "rounded here":
        return RoundedProducts
    if not changes_products():
        pytest.skip("'high' changes no product on this hardware")
    return nullcontext


def update(solver: str, state: Sketch, A: Tensor, seed: int) -> Sketch:
    if solver == "dense":
        return whole.update(state, A, beta2=DECAY)
    probes = gaussian(16, D, seed=seed, like=A) if solver == "subspace with probes" else None
    return sketch.update(state, A, beta2=DECAY, solver=solver.split()[0], probes=probes)


def test_rounding_to_tf32_keeps_eleven_digits() -> None:
    x = torch.tensor([1.0, 1 + 2.0**-10, 1 + 2.0**-11, 1 + 3 * 2.0**-11, -(1 + 2.0**-12)])
    assert tf32(x).tolist() == [1.0, 1 + 2.0**-10, 1.0, 1 + 2.0**-9, -1.0]
    with RoundedProducts():
        assert changes_products()


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("k", [K, 4])
@pytest.mark.parametrize("solver", ["exact", "subspace", "subspace with probes", "dense"])
def test_certificates_hold_and_bases_are_orthonormal_at_high(
    products: Any, solver: str, k: int, kind: str
) -> None:
    state = sketch.empty(D, D if solver == "dense" else RANK)
    C = torch.zeros(D, D, dtype=F64)
    for t, A in enumerate(stream(kind, D, k, STEPS, dtype=F32)):
        with products():
            state = update(solver, state, A, 1000 + t)
        C = DECAY * C + A.double() @ A.double().T
        error = norm(C - dense(state))
        assert error <= state.error_bound, f"error {error:.3e}, certified {state.error_bound:.3e}"
        assert orthonormality(state.basis) <= ORTHONORMAL


def test_a_certificate_at_high_still_says_something(high: None) -> None:
    """Steady streams: the bound stays below the norm of what is sketched."""
    state = sketch.empty(D, RANK)
    with RoundedProducts():
        for t, A in enumerate(stream("power", D, K, 40, dtype=F32)):
            state = update("subspace with probes", state, A, t)
    assert state.error_bound < 0.25 * state.eigenvalues[0]


def test_the_eps_of_products_follows_the_setting(high: None) -> None:
    x = torch.empty(0)
    assert product_eps(x) == TF32_EPS
    assert product_eps(x.double()) == torch.finfo(F64).eps
    torch.set_float32_matmul_precision("highest")
    assert product_eps(x) == torch.finfo(F32).eps


@pytest.mark.cpu_only("each backend has its own setting")
@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="an older torch")
def test_a_setting_for_one_backend_is_no_obstacle() -> None:
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        assert product_eps(torch.empty(0)) == torch.finfo(F32).eps
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


@pytest.mark.cpu_only("each backend has its own setting")
@pytest.mark.parametrize(("setting", "bits"), [("highest", 23), ("high", 10), ("medium", 7)])
def test_each_setting_of_torch_has_the_eps_of_its_digits(setting: str, bits: int) -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(setting)
    try:
        assert product_eps(torch.empty(0)) == 2.0**-bits
    finally:
        torch.set_float32_matmul_precision(before)

"""The update of the weights, by different operations: p ← (1 - lr weight_decay) p - lr factor direction."""

import pytest
import torch

from cases import F32, F64
from checks import assert_close
from sketchy.core.tasks import run
from sketchy.optim.descend import descend_


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("factor", [1.0, 3e-9, 1e25, 0.0])
@pytest.mark.parametrize("rate", [0.01, torch.tensor(0.01, dtype=F64)], ids=["number", "tensor"])
@pytest.mark.parametrize("lies", ["by rows", "by columns"])
@pytest.mark.parametrize("count", [1, 3])
def test_weights_move_and_decay(count, lies, rate, factor, decay, dtype, rng):
    weights = [torch.randn(6, 5, generator=rng, dtype=dtype) for _ in range(count)]
    direction = torch.randn(count, 6, 5, generator=rng, dtype=dtype) / max(factor, 1e-8)
    expected = [
        (1 - 0.01 * decay) * p.double() - 0.01 * factor * x.double()
        for p, x in zip(weights, direction, strict=True)
    ]
    if lies == "by columns":
        weights = [p.mT.contiguous().mT for p in weights]
    factors = torch.full((count,), factor, dtype=F64)
    run(descend_(weights, direction.clone(), factors, None, {"lr": rate, "weight_decay": decay}))
    for p, end in zip(weights, expected, strict=True):
        assert_close(p.double(), end, scale=end.abs().max(), tolerance=4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("count", [1, 3])
def test_autograd_is_told_that_weights_have_changed(count, rng):
    weights = [torch.randn(6, 5, generator=rng) for _ in range(count)]
    before = [p._version for p in weights]
    group = {"lr": 0.1, "weight_decay": 0.1}
    run(descend_(weights, torch.ones(count, 6, 5), torch.ones(count, dtype=F64), None, group))
    assert all(p._version > version for p, version in zip(weights, before, strict=True))


@pytest.mark.parametrize("stored", [torch.bfloat16, F32], ids=str)
@pytest.mark.parametrize("rate", [0.5, torch.tensor(0.5, dtype=F64)], ids=["number", "tensor"])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("good", [[True], [False], [False, True, False], [True, True]], ids=str)
def test_only_weights_with_good_gradients_move_and_decay(good, known, rate, stored, rng):
    """``known``: if all are good, no mask is given."""
    weights = [torch.randn(4, 3, generator=rng).to(stored) for _ in good]
    before, mask = [p.clone() for p in weights], torch.tensor(good)
    direction = torch.randn(len(good), 4, 3, generator=rng)
    factors = torch.full((len(good),), 2.0, dtype=F64)
    given = None if known and all(good) else mask
    scales = torch.where(mask, factors, 0.0)
    run(descend_(weights, direction.clone(), scales, given, {"lr": rate, "weight_decay": 0.5}))
    for p, old, x, counts in zip(weights, before, direction, good, strict=True):
        expected = (0.75 * old.double() - x.double()).to(stored) if counts else old
        assert_close(p, expected, scale=1, tolerance=2 * torch.finfo(stored).eps if counts else 0.0)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("all_good", [True, False])
def test_a_weight_in_a_short_dtype_is_rounded_once(all_good, count, rng):
    weights = [torch.randn(40, 30, generator=rng).bfloat16() for _ in range(count)]
    direction = torch.randn(count, 40, 30, generator=rng)
    exact = [p.double() * (1 - 0.1 * 0.5) - 0.1 * x.double() for p, x in zip(weights, direction, strict=True)]
    good = None if all_good else torch.ones(count, dtype=torch.bool)
    group = {"lr": 0.1, "weight_decay": 0.5}
    run(descend_(weights, direction.clone(), torch.ones(count, dtype=F64), good, group))
    for p, end in zip(weights, exact, strict=True):
        half = 0.5 * torch.finfo(torch.bfloat16).eps * 2.0 ** end.abs().log2().floor()
        assert ((p.double() - end).abs() <= 1.001 * half).all()


def test_a_weight_moves_although_its_device_cannot_be_read(blind):
    p = torch.ones(2, 3)
    group = {"lr": 0.5, "weight_decay": 0.0}
    run(descend_([p], torch.ones(1, 2, 3), torch.ones(1, dtype=F64), None, group))
    assert torch.equal(p, torch.full((2, 3), 0.5))

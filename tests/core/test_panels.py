"""Panels cover each entry of a stack once, and results by panels equal those of the whole stack."""

import pytest
import torch

from cases import F64
from checks import assert_close
from sketchy import SketchyShampoo, SketchySOAP
from sketchy.core import momentum
from sketchy.core.extremes import energies
from sketchy.core.tasks import run
from sketchy.core.tuned import panels, sizes

SHAPES = [(1, 7, 5), (4, 7, 5), (3, 40), (5,), (2, 3, 4, 5), (1, 1, 90)]


@pytest.fixture(params=[1, 100, 300, 1000], ids=lambda size: f"{size}_bytes")
def small_cache(request, monkeypatch):
    monkeypatch.setattr(sizes, "PANEL_BYTES", request.param)


@pytest.mark.parametrize("shape", [shape for shape in SHAPES if len(shape) > 1], ids=str)
def test_every_entry_is_in_one_panel(shape, small_cache):
    seen = torch.zeros(shape)
    for stack, piece in panels.panels(seen):
        assert seen[piece].numel() <= seen[stack].numel()
        seen[piece] += 1
    assert (seen == 1).all()


@pytest.mark.cpu_only("others need no pieces that fit into a cache")
def test_a_large_stack_is_cut_and_a_small_one_is_not(monkeypatch):
    monkeypatch.setattr(sizes, "PANEL_BYTES", 4 * 60)
    assert len(list(panels.panels(torch.zeros(3, 4, 5)))) == 1
    assert len(list(panels.panels(torch.zeros(4, 4, 5)))) == 2
    assert len(list(panels.panels(torch.zeros(2, 40, 5)))) == 2 * 4


def test_energies_are_sums_of_squares_whatever_the_panels(small_cache, rng):
    A = torch.randn(3, 11, 6, generator=rng, dtype=F64)
    rows, columns = energies(A)
    assert_close(rows, A.square().sum(-1), scale=1, tolerance=1e-12)
    assert_close(columns, A.square().sum(-2), scale=1, tolerance=1e-12)


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("moving_average", [True, False])
def test_momentum_is_the_same_by_panels(moving_average, nesterov, small_cache, monkeypatch, rng):
    G, M = torch.randn(2, 3, 11, 6, generator=rng, dtype=F64)
    options = {"moving_average": moving_average, "nesterov": nesterov}
    by_panels, kept = M.clone(), M.clone()
    found = run(momentum.advance_(by_panels, G, 0.9, torch.tensor([1.0, 2.0, 3.0]), **options))
    monkeypatch.setattr(sizes, "PANEL_BYTES", 1 << 30)
    expected = run(momentum.advance_(kept, G, 0.9, torch.tensor([1.0, 2.0, 3.0]), **options))
    assert all(map(torch.equal, found, expected)) and torch.equal(by_panels, kept)


@pytest.mark.parametrize("kind", [SketchyShampoo, SketchySOAP])
def test_a_step_is_the_same_by_panels(kind, small_cache, monkeypatch, rng):
    starts = [torch.randn(shape[1:], generator=rng, dtype=F64) for shape in SHAPES for _ in range(2)]
    gradients = [[torch.randn(x.shape, generator=rng, dtype=F64) for x in starts] for _ in range(4)]

    def train() -> list[torch.Tensor]:
        params = [torch.nn.Parameter(x.clone()) for x in starts]
        optimizer = kind(params, lr=0.1, rank=3)
        for step in gradients:
            for p, g in zip(params, step, strict=True):
                p.grad = g.clone()
            optimizer.step()
        return [p.detach() for p in params]

    by_panels = train()
    monkeypatch.setattr(sizes, "PANEL_BYTES", 1 << 30)
    for found, expected in zip(by_panels, train(), strict=True):
        assert_close(found, expected, scale=1, tolerance=1e-9)

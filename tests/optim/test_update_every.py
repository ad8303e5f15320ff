"""``update_every``: which steps update a sketch, how often beta2 decays it, which shapes are updated when."""

import itertools
from typing import Any

import pytest
import torch
from torch import nn

from optim.optimizers import (
    CLASSES,
    F64,
    Case,
    advance,
    assert_near,
    assert_same,
    gradient,
    snapshot,
    weights,
)
from sketchy import Shampoo, SketchyAdagrad, SketchyShampoo, SketchySOAP

SHAPES = ((6, 5), (5, 4), (4, 7))
every_class = pytest.mark.parametrize("case", CLASSES, ids=str)


def sketch(optimizer: Any, p: nn.Parameter) -> dict[str, torch.Tensor]:
    """The part of a state that only an update of the sketches changes."""
    ends = ("_basis", "_eigenvalues", "_escaped_mass", "_error_bound")
    return {k: v.clone() for k, v in optimizer.state.get(p, {}).items() if k.endswith(ends)}


def refreshes(optimizer: Any, params: list[nn.Parameter], steps: int) -> list[list[int]]:
    """At which steps each parameter's sketch changed."""
    seen: list[list[int]] = [[] for _ in params]
    for step in range(steps):
        before = [sketch(optimizer, p) for p in params]
        advance(optimizer, params, [step])
        for p, old, steps_of in zip(params, before, seen, strict=True):
            now = sketch(optimizer, p)
            if not old or any(not torch.equal(now[k], old[k]) for k in now):
                steps_of.append(step)
    return seen


@every_class
def test_shapes_take_turns_and_each_is_refreshed_every_third_step(case: Case) -> None:
    params = weights(shapes=[SHAPES[0], (6,), SHAPES[1], (5,), SHAPES[2], SHAPES[0]])
    matrices, vectors = [0, 2, 4, 5], [params[1], params[3]]
    optimizer = case.make(
        [{"params": [p], "path": "adam" if p in set(vectors) else "sketch"} for p in params], update_every=3
    )
    every = refreshes(optimizer, params, 13)
    seen = [every[i] for i in matrices]
    assert seen[0] == seen[3], "weights of one shape go together"
    for steps in seen:
        assert steps[0] == 0, "the first gradient makes a preconditioner"
        assert {b - a for a, b in itertools.pairwise(steps[1:])} == {3}
        assert steps[1] <= 3
    for step in range(3, 13):
        assert sum(step in steps for steps in seen[:3]) == 1, "one shape a step"


@every_class
def test_update_every_one_is_plain(case: Case) -> None:
    params = weights(shapes=SHAPES)
    assert refreshes(case.make(params, update_every=1), params, 4) == [[0, 1, 2, 3]] * 3
    params, twins = weights(), weights()
    optimizers = case.make(params), case.make(twins, update_every=1)
    for optimizer, mine in zip(optimizers, (params, twins), strict=True):
        advance(optimizer, mine, range(4))
    assert_same(snapshot(optimizers[0]), snapshot(optimizers[1]))


@every_class
def test_between_refreshes_weights_move_and_momentum_goes_on(case: Case) -> None:
    p = weights(shapes=SHAPES[:1])[0]
    optimizer = case.make([p], update_every=4, betas=(0.9, 0.99))
    for step in range(6):
        before, momentum = p.detach().clone(), optimizer.state.get(p, {}).get("momentum")
        momentum = None if momentum is None else momentum.clone()
        advance(optimizer, [p], [step])
        assert not torch.equal(p, before)
        assert momentum is None or not torch.equal(optimizer.state[p]["momentum"], momentum)


@pytest.mark.parametrize("beta2", [1.0, 0.9])
@pytest.mark.parametrize("cls", [SketchyShampoo, SketchySOAP])
def test_beta2_acts_per_observed_gradient(cls: Any, beta2: float) -> None:
    """A run that sketches every third gradient equals a run with only those gradients."""
    p, q = (weights(F64, SHAPES[:1])[0] for _ in range(2))
    options: dict[str, Any] = {"rank": 3, "betas": (0.0, beta2), "solver": "exact"}
    every_third, plain = cls([p], update_every=3, **options), cls([q], **options)
    for step in range(10):
        p.grad = gradient(p, 0, step)
        every_third.step()
        if step % 3 == 0:
            q.grad = gradient(q, 0, step)
            plain.step()
    assert_near(sketch(every_third, p), sketch(plain, q), 1e-10)


@pytest.mark.cpu_only("elsewhere the host doesn't know that a step was skipped")
@every_class
def test_a_skipped_gradient_or_none_does_not_use_up_a_turn(case: Case) -> None:
    """The period counts a parameter's own good gradients."""
    params = weights(shapes=SHAPES)
    optimizer = case.make(params, update_every=3)
    advance(optimizer, params, range(3))  # the first shape is due at the next step
    before = sketch(optimizer, params[0])
    for bad in (torch.nan, None):
        for i, p in enumerate(params):
            p.grad = gradient(p, i, 3)
        params[0].grad = None if bad is None else torch.full_like(params[0], bad)
        optimizer.step()
        assert_same(sketch(optimizer, params[0]), before)
    advance(optimizer, params, [3])
    assert not torch.equal(*(list(s.values())[1] for s in (sketch(optimizer, params[0]), before))), (
        "and then it is due"
    )


def test_roots_take_turns_while_covariances_see_every_gradient() -> None:
    params = weights(shapes=SHAPES)
    optimizer = Shampoo(params, roots_every=3)
    for step in range(13):
        before = [sketch(optimizer, p) for p in params]
        covariances = [optimizer.state.get(p, {}).get("left_covariance") for p in params]
        covariances = [None if C is None else C.clone() for C in covariances]
        advance(optimizer, params, [step])
        changed = [not torch.equal(x["left_basis"], sketch(optimizer, p)["left_basis"])
                   for x, p in zip(before, params, strict=True) if x]  # fmt: skip
        assert sum(changed) == (0 if step == 0 else 1), "one shape a step, and all at first"
        for C, p in zip(covariances, params, strict=True):
            assert C is None or not torch.equal(C, optimizer.state[p]["left_covariance"])


@pytest.mark.parametrize("cls", [SketchyShampoo, SketchySOAP, SketchyAdagrad])
def test_sketches_have_no_rare_roots(cls: Any) -> None:
    with pytest.raises(ValueError, match=r"roots_every=10: \w+ has no such option \(.*update_every"):
        cls(weights(), roots_every=10)


@pytest.mark.parametrize("rank", [2, 64])
@every_class
def test_a_sketch_of_nothing_lets_momentum_pass(case: Case, rank: int) -> None:
    """A first gradient of zero gives an empty sketch until the next update, as in low-rank adapters."""
    ranked = {} if "rank" in case.cls.without else {"rank": rank}
    params = [nn.Parameter(torch.ones(shape)) for shape in SHAPES]
    optimizer = case.make(params, update_every=10, weight_decay=0.0, **ranked)
    for p in params:
        p.grad = torch.zeros_like(p)
    optimizer.step()
    before = [p.detach().clone() for p in params]
    advance(optimizer, params, range(3))
    for p, old in zip(params, before, strict=True):
        assert p.isfinite().all()
        assert torch.equal(p, old) == (
            optimizer.param_groups[0]["graft"] is None
        )  # whose length is its own: 0

"""The optimizers equal the reference, and in special cases each other and torch's optimizers. Float64."""

from typing import Any

import pytest
import torch
from torch import Tensor

from checks import assert_close
from optim.trajectories import gradients, start, train, train_one
from sketchy import Shampoo, SketchyAdagrad, SketchyShampoo, SketchySOAP, reference
from sketchy.core.preconditioner import STALE

LR = 0.1
EXACT = 1e-10  # of weights of order 1, after steps of length 0.1: rounding, and powers of small eigenvalues
SOAP_EPS = 1e-4
SOAP = 1e-9  # rounding 1e-16 of entries that are zero in exact arithmetic, over SOAP_EPS, a thousand times
ALG_3: dict[str, Any] = {"lr": LR, "graft": None, "eps": 0.0, "weight_decay": 0.0, "solver": "exact"}
ALG_3 |= {"exponent": None, "whiten": False, "row_norm": None}
DECAYS = (1.0, 0.95)
PLAIN = {"whiten": False, "row_norm": None}  # SOAP itself: without what SketchySOAP adds to it


def play(player: Any, G: Tensor, attribute: str = "X", **options: Any) -> Tensor:
    """The weights of a reference optimizer after each step."""
    history = []
    for g in G:
        player = player.step(g, LR, **options)
        history.append(getattr(player, attribute))
    return torch.stack(history)


# -- S-Shampoo ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("beta2", DECAYS)
@pytest.mark.parametrize(
    ("shape", "rank"), [((6, 4), 3), ((8, 8), 5), ((10, 3), 4), ((5, 12), 2), ((9, 7), 9)]
)
def test_sketchy_shampoo_is_alg_3(shape, rank, beta2):
    """Shapes with a side below the rank have one full covariance, which is exact."""
    X, G = start(shape), gradients(shape)
    found = train_one(SketchyShampoo, X, G, betas=(0.0, beta2), rank=rank, **ALG_3)
    assert_close(found, play(reference.SShampoo.start(X, rank), G, beta2=beta2), scale=1, tolerance=EXACT)


@pytest.mark.parametrize("beta2", DECAYS)
@pytest.mark.parametrize("shape", [(6, 4), (3, 9), (7, 7)])
def test_at_full_rank_sketchy_shampoo_is_shampoo(shape, beta2):
    X, G = start(shape), gradients(shape)
    options = {name: value for name, value in ALG_3.items() if name != "solver"}
    whole = train_one(Shampoo, X, G, betas=(0.0, beta2), **options)
    sketched = train_one(SketchyShampoo, X, G, betas=(0.0, beta2), rank=max(shape), **ALG_3)
    expected = play(reference.SShampoo.start(X, max(shape)), G, beta2=beta2)
    assert torch.equal(sketched, whole)
    assert_close(whole, expected, scale=1, tolerance=EXACT)


@pytest.mark.parametrize("rank", [3, 9])
@pytest.mark.parametrize(
    ("shape", "merge_dims", "axes"),
    [
        ((4, 3, 5), 1, (4, 3, 5)),
        ((6, 4, 3, 3), 1, (6, 4, 3, 3)),
        ((6, 4, 3, 3), 9, (6, 4, 9)),
        ((6, 4, 3, 3), None, (6, 36)),
        ((1, 5, 1, 4), None, (5, 4)),
    ],
)
def test_a_weight_with_many_axes_equals_its_dense_twin(shape, merge_dims, axes, rank):
    """One sketch an axis and the exponent 1 / (2 * number of axes); merging is a change of shape."""
    X, G = start(shape), gradients(shape)
    found = train_one(SketchyShampoo, X, G, betas=(0.0, 0.95), rank=rank, merge_dims=merge_dims, **ALG_3)
    player = reference.TensorShampoo.start(X.reshape(axes), rank)
    expected = play(player, G.reshape(-1, *axes), beta2=0.95).reshape(found.shape)
    assert_close(found, expected, scale=1, tolerance=EXACT)


@pytest.mark.parametrize("kind", [SketchyShampoo, Shampoo])
@pytest.mark.parametrize(("shape", "shortest"), [((4, 9), 0), ((9, 4), 1), ((5, 5), 0)])
def test_one_sided_is_the_inverse_square_root_along_the_shortest_axis(kind, shape, shortest):
    X, G = start(shape), gradients(shape)
    options = ALG_3 | {"betas": (0.0, 0.95), "one_sided": True}
    rank = 3 if kind is SketchyShampoo else 9
    if kind is SketchyShampoo:
        options["rank"] = rank
    else:
        del options["solver"]
    player = reference.TensorShampoo.start(X, rank, axes=(shortest,))
    assert_close(train_one(kind, X, G, **options), play(player, G, beta2=0.95), scale=1, tolerance=EXACT)


@pytest.mark.parametrize("exponent", [0.5, 0.1])
def test_the_exponent_is_that_of_each_axis(exponent):
    X, G = start((6, 4)), gradients((6, 4))
    found = train_one(SketchyShampoo, X, G, betas=(0.0, 0.95), rank=3, **{**ALG_3, "exponent": exponent})
    expected = play(reference.TensorShampoo.start(X, 3), G, beta2=0.95, exponent=exponent)
    assert_close(found, expected, scale=1, tolerance=EXACT)


# -- S-AdaGrad ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("beta2", DECAYS)
@pytest.mark.parametrize(("shape", "rank"), [((8,), 3), ((8,), 8), ((3, 4), 5), ((2, 2, 3), 4)])
def test_sketchy_adagrad_is_alg_2_on_the_flattened_weight(shape, rank, beta2):
    X, G = start(shape), gradients(shape)
    found = train_one(SketchyAdagrad, X, G, lr=LR, betas=(0.0, beta2), rank=rank, eps=0.0).flatten(1)
    player = reference.SAdagrad.start(X.flatten(), rank)
    assert_close(found, play(player, G.flatten(1), "x", beta2=beta2), scale=1, tolerance=EXACT)


@pytest.mark.parametrize("rank", [3, 20])
def test_a_preconditioned_vector_under_sketchy_shampoo_is_sketchy_adagrad(rank):
    X, G = start((8,)), gradients((8,))
    options = {"lr": LR, "betas": (0.9, 0.99), "rank": rank, "graft": "rmsprop", "solver": "subspace"}
    vector = train_one(SketchyShampoo, X, G, precondition_1d=True, **options, weight_decay=0.1)
    assert torch.equal(vector, train_one(SketchyAdagrad, X, G, **options, weight_decay=0.1))


# -- SketchySOAP --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("betas", "nesterov"), [((0.9, 0.999), True), ((0.8, 0.95), False), ((0.0, 0.95), True)]
)
@pytest.mark.parametrize("graft", [None, "factored", "own"])
@pytest.mark.parametrize("shape", [(6, 4), (3, 8), (4, 3, 2)])
def test_at_full_rank_sketchy_soap_is_soap(shape, graft, betas, nesterov):
    X, G = start(shape), gradients(shape)
    options = {"betas": betas, "nesterov": nesterov, "eps": SOAP_EPS, "weight_decay": 0.1}
    ours = options | {"lr": LR, "rank": 12, "graft": graft, "graft_scale": 1.0} | PLAIN
    found = train_one(SketchySOAP, X, G, **ours).flatten(2)
    player = reference.Soap.start(X.flatten(1))
    expected = play(player, G.flatten(2), graft=graft, **options)
    assert_close(found, expected, scale=1, tolerance=SOAP)


@pytest.mark.parametrize("graft", [None, "own", "factored"])
@pytest.mark.parametrize("row_norm", [0.0, 0.95])
def test_at_full_rank_with_row_norms_sketchy_soap_is_soap_with_normalized_rows(row_norm, graft):
    X, G = start((7, 5)), gradients((7, 5)) * torch.logspace(-2, 2, 7, dtype=torch.float64).unsqueeze(1)
    options = {"betas": (0.9, 0.95), "eps": SOAP_EPS, "weight_decay": 0.1, "row_norm": row_norm}
    options |= {"whiten": False}
    found = train_one(SketchySOAP, X, G, lr=LR, rank=12, graft=graft, graft_scale=1.0, **options)
    expected = play(reference.Soap.start(X), G, graft=graft, **options)
    assert_close(found, expected, scale=1, tolerance=SOAP)
    plain = play(reference.Soap.start(X), G, graft=graft, **{**options, "row_norm": None})
    assert (expected - plain).abs().max() > 1e-3


@pytest.mark.parametrize("sketch_beta2", [None, 0.8])
@pytest.mark.parametrize("shape", [(7, 5), (4, 9), (6, 6)])
def test_at_full_rank_whitened_soap_is_soap_with_whitened_factors(shape, sketch_beta2):
    X, G = start(shape), gradients(shape) * torch.logspace(-1, 1, shape[0], dtype=torch.float64).unsqueeze(1)
    options = {"betas": (0.9, 0.95), "eps": SOAP_EPS, "weight_decay": 0.1, "graft": "own"}
    options |= {"sketch_beta2": sketch_beta2, "whiten": True, "row_norm": None}
    found = train_one(SketchySOAP, X, G, lr=LR, rank=12, graft_scale=1.0, **options)
    expected = play(reference.Soap.start(X), G, **options)
    assert_close(found, expected, scale=1, tolerance=SOAP)
    assert (expected - play(reference.Soap.start(X), G, **{**options, "whiten": False})).abs().max() > 1e-3


def test_at_full_rank_with_a_polar_step_sketchy_soap_is_soap_with_one():
    X, G = start((7, 5)), gradients((7, 5))
    options = {"betas": (0.9, 0.95), "eps": SOAP_EPS, "weight_decay": 0.1, "graft": "own", "row_norm": 0.95}
    found = train_one(SketchySOAP, X, G, lr=LR, rank=12, graft_scale=1.0, polar=3, whiten=False, **options)
    expected = play(reference.Soap.start(X), G, polar_steps=3, **options)
    assert_close(found, expected, scale=1, tolerance=SOAP)


def test_a_polar_step_is_for_sketched_weights_only():
    X, G = start((6, 4)), gradients((6, 4))
    options = {"lr": LR, "path": "adam"}
    assert torch.equal(
        train_one(SketchySOAP, X, G, polar=3, **options), train_one(SketchySOAP, X, G, **options)
    )


def test_adams_path_has_its_own_rate_and_betas():
    """It moves as if its weights were in a group of their own; the rate follows a schedule."""
    shapes = [(6, 4), (5,), (3,)]
    X, G = [start(shape) for shape in shapes], [gradients(shape) for shape in shapes]
    options = {"lr": LR, "betas": (0.9, 0.95), "adam_lr_scale": 0.5, "adam_betas": (0.0, 0.8)}
    found = train(SketchySOAP, X, G, rank=3, **options)
    matrix = train(SketchySOAP, X[:1], G[:1], rank=3, lr=LR, betas=(0.9, 0.95))
    vectors = train(SketchySOAP, X[1:], G[1:], rank=3, lr=LR / 2, betas=(0.0, 0.8))
    for together, apart in zip(found, [*matrix, *vectors], strict=True):
        assert_close(together, apart, scale=1, tolerance=EXACT)


@pytest.mark.parametrize("exponent", [None, 0.5])
@pytest.mark.parametrize(("shape", "rank"), [((8, 6), 3), ((5, 9), 6), ((6, 6), 9)])
def test_whitened_sketchy_shampoo_equals_its_dense_twin(shape, rank, exponent):
    X, G = start(shape), gradients(shape)
    options = ALG_3 | {"betas": (0.0, 0.95), "rank": rank, "exponent": exponent}
    found = train_one(SketchyShampoo, X, G, **{**options, "whiten": True})
    player = reference.TensorShampoo.start(X, rank)
    expected = play(player, G, beta2=0.95, exponent=exponent, whiten=True)
    assert_close(found, expected, scale=1, tolerance=EXACT)
    assert (found - train_one(SketchyShampoo, X, G, **options)).abs().max() > 1e-3


@pytest.mark.parametrize("kind", [SketchyShampoo, SketchySOAP])
def test_the_fast_whitened_step_equals_the_exact_one_while_nothing_escapes(kind):
    """The subspace solver is exact on a stream with fewer directions than the rank."""
    X, P, Q = start((20, 16)), start((20, 3), seed=1), start((16, 3), seed=2)
    G = torch.stack([P @ torch.diag(d) @ Q.T for d in gradients((3,))])
    options = {"lr": LR, "rank": 8, "whiten": True, "betas": (0.9, 0.95)}
    fast, exact = (train_one(kind, X, G, solver=solver, **options) for solver in ("subspace", "exact"))
    assert_close(fast, exact, scale=1, tolerance=1e-7)


def test_one_sided_soap_has_one_moment_for_each_direction_of_the_shortest_axis():
    beta1, beta2, X, G = 0.9, 0.95, start((3, 8)), gradients((3, 8))
    L, U, V, M, x = torch.zeros_like(X[:, :3]), torch.zeros_like(X[:, :3]), X[:, :1] * 0, X * 0, X
    expected = []
    for t, g in enumerate(G, 1):
        L = beta2 * L + g @ g.T
        before, U = U, torch.linalg.eigh(L)[1]
        V = beta2 * (U.T @ before).square() @ V + (1 - beta2) * (U.T @ g).square().mean(1, keepdim=True)
        M = beta1 * M + (1 - beta1) * g
        ahead = beta1 * M / (1 - beta1**t) + (1 - beta1) * g
        root = (V / (1 - beta2**t)).sqrt()
        x = x - LR * U @ (U.T @ ahead / (root + SOAP_EPS * root.max()))
        expected.append(x)
    options = {"lr": LR, "betas": (beta1, beta2), "eps": SOAP_EPS, "weight_decay": 0.0, "graft": None}
    found = train_one(SketchySOAP, X, G, one_sided=True, **options, **PLAIN)
    assert_close(found, torch.stack(expected), scale=1, tolerance=SOAP)


# -- refreshes and blocks -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [SketchyShampoo, SketchySOAP, Shampoo])
def test_refreshing_every_step_is_plain(kind):
    X, G = start((6, 4)), gradients((6, 4))
    assert torch.equal(train_one(kind, X, G, update_every=1), train_one(kind, X, G))


def _stale(sketch: reference.DenseSketch) -> torch.Tensor:
    """G̃ with eigenvalues of at least a share of the average: old sketches don't describe new directions."""
    values, U = torch.linalg.eigh(sketch.compensated())
    return U @ torch.diag(values.clamp(min=STALE * sketch.G_bar.trace() / len(U))) @ U.T


def test_skipped_refreshes_equal_a_loop_that_skips_them_and_shapes_take_turns():
    """Every third gradient is sketched, and beta2 acts on those; the second shape is one step ahead."""
    every, beta2, rank, shapes = 3, 0.95, 3, ((6, 4), (5, 7))
    X, G = [start(shape) for shape in shapes], [gradients(shape) for shape in shapes]
    found = train(SketchyShampoo, X, G, betas=(0.0, beta2), rank=rank, update_every=every, **ALG_3)
    for turn in range(2):
        x, left, right = X[turn], *(reference.DenseSketch.empty(d, rank) for d in shapes[turn])
        for t, g in enumerate(G[turn]):
            if due := t == 0 or (t + turn) % every == 0:
                left, right = left.update(g @ g.T, beta2), right.update(g.T @ g, beta2)
            L, R = (
                reference.pseudo_power(s.compensated() if due else _stale(s), -1 / 4) for s in (left, right)
            )
            x = x - LR * L @ g @ R
            assert_close(found[turn][t], x, scale=1, tolerance=EXACT)


@pytest.mark.parametrize("beta2", DECAYS)
@pytest.mark.parametrize("update_every", [1, 2])
def test_rare_roots_are_of_covariances_that_saw_every_gradient(beta2, update_every):
    """Square weights: one gradient fixes both roots. The second shape is one step ahead."""
    every, shapes = 3, ((5, 5), (4, 4))
    X, G = [start(shape) for shape in shapes], [gradients(shape) for shape in shapes]
    options = {name: value for name, value in ALG_3.items() if name != "solver"}
    options |= {"betas": (0.0, beta2), "update_every": update_every}
    found = train(Shampoo, X, G, roots_every=every, **options)
    for turn, shape in enumerate(shapes):
        x, left, right = X[turn], *(reference.DenseSketch.empty(d, d) for d in shape)
        for t, g in enumerate(G[turn]):
            if t == 0 or (t + turn) % update_every == 0:
                left, right = left.update(g @ g.T, beta2), right.update(g.T @ g, beta2)
            if t == 0 or (t + turn) % every == 0:
                L, R = (reference.pseudo_power(s.compensated(), -1 / 4) for s in (left, right))
            x = x - LR * L @ g @ R
            assert_close(found[turn][t], x, scale=1, tolerance=EXACT)


def test_a_rare_root_is_the_same_to_rounding_as_one_of_each_step_when_it_is_taken():
    """After a step that takes roots, the records of both are those of the same covariance."""
    X, G = start((6, 4)), gradients((6, 4))[:7]
    states = []
    for roots_every in (1, 3):
        p = torch.nn.Parameter(X.clone())
        optimizer = Shampoo([p], betas=(0.9, 0.9), roots_every=roots_every)
        for g in G:
            p.grad = g.clone()
            optimizer.step()
        states.append({known.axis: known for known in optimizer.covariances()})
        C = sum(0.9 ** (len(G) - 1 - t) * g @ g.T for t, g in enumerate(G))
        left = states[-1]["left"]
        B = left.sketch.factor()[0]
        assert_close(B @ B.T, C, scale=1, tolerance=EXACT)
        assert left.trace.item() == pytest.approx(C.trace().item())
        assert torch.linalg.matrix_norm(B @ B.T - C, 2) <= left.sketch.error_bound
    for axis, known in states[0].items():
        other = states[1][axis]
        assert_close(known.sketch.eigenvalues, other.sketch.eigenvalues, scale=1, tolerance=EXACT)


@pytest.mark.parametrize("graft", [None, "factored", "own"])
def test_between_refreshes_soap_keeps_its_bases_and_sees_every_gradient(graft):
    """A square weight: one gradient then fixes both bases."""
    X, G = start((5, 5)), gradients((5, 5))
    options = {"graft": graft, "graft_scale": 1.0, "eps": SOAP_EPS, "weight_decay": 0.0}
    found = train_one(SketchySOAP, X, G, lr=LR, update_every=4, betas=(0.9, 0.999), **options, **PLAIN)
    player = reference.Soap.start(X)
    for t, g in enumerate(G):
        player = player.step(g, LR, eps=SOAP_EPS, graft=graft, refresh=t % 4 == 0)
        assert_close(found[t], player.X, scale=1, tolerance=SOAP)


@pytest.mark.parametrize("kind", [SketchyShampoo, SketchySOAP, Shampoo, SketchyAdagrad])
def test_blocks_of_full_size_are_no_blocks(kind):
    X, G = start((6, 4)), gradients((6, 4))
    assert torch.equal(train_one(kind, X, G, block_size=24), train_one(kind, X, G))


@pytest.mark.parametrize("rank", [2, 9])
@pytest.mark.parametrize("graft", [None, "factored", "own"])
@pytest.mark.parametrize("kind", [SketchyShampoo, SketchySOAP])
def test_blocks_of_half_size_are_separate_parameters(kind, graft, rank):
    """A (6, 8) weight in blocks of 4 or less is four (3, 4) weights."""
    X, G = start((6, 8)), gradients((6, 8))
    options = {"lr": LR, "graft": graft, "rank": rank}
    found = train_one(kind, X, G, block_size=4, **options)
    corners = [(..., slice(i, i + 3), slice(j, j + 4)) for i in (0, 3) for j in (0, 4)]
    apart = train(kind, [X[c] for c in corners], [G[c] for c in corners], **options)
    for corner, expected in zip(corners, apart, strict=True):
        assert_close(found[corner], expected, scale=1, tolerance=SOAP)


@pytest.mark.parametrize("shape", [(3, 7, 4), (2, 5, 3, 2)])
@pytest.mark.parametrize("kind", [SketchyShampoo, SketchySOAP, Shampoo])
def test_stacked_matrices_are_separate_parameters(kind, shape):
    X, G = start(shape), gradients(shape)
    options = {"lr": LR} | ({} if kind is Shampoo else {"rank": 2})
    found = train_one(kind, X, G, stacked=True, **options)
    for i, expected in enumerate(train(kind, list(X), list(G.unbind(1)), **options)):
        assert_close(found[:, i], expected, scale=1, tolerance=SOAP)


@pytest.mark.parametrize("shape", [(5, 1, 4), (5, 4, 1, 1)])
@pytest.mark.parametrize("kind", [SketchyShampoo, SketchySOAP, Shampoo])
def test_stacked_vectors_are_a_matrix(kind, shape):
    """As of a depthwise convolution; SketchySOAP has no basis for a vector."""
    X, G = start(shape), gradients(shape)
    found, expected = (train_one(kind, X, G, lr=LR, stacked=stacked) for stacked in (True, False))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("rank", [2, 9])
def test_uneven_blocks_are_separate_parameters_too(rank):
    """A (7, 5) weight in blocks of 4: (4, 3), (4, 2), (3, 3), (3, 2)."""
    X, G = start((7, 5)), gradients((7, 5))
    options = ALG_3 | {"betas": (0.0, 0.95), "rank": rank}
    found = train_one(SketchyShampoo, X, G, block_size=4, **options)
    corners = [(..., slice(i, i + 4), slice(j, j + 3)) for i in (0, 4) for j in (0, 3)]
    for corner in corners:
        expected = train_one(SketchyShampoo, X[corner], G[corner], **options)
        assert_close(found[corner], expected, scale=1, tolerance=EXACT)


@pytest.mark.parametrize("kind", [SketchyShampoo, SketchySOAP, Shampoo, SketchyAdagrad])
def test_parameters_in_one_stack_move_as_they_do_alone(kind):
    shapes = [(6, 4), (6, 4), (3, 5), (6, 4), (4,), (4,)]
    X = [start(shape, seed=i) for i, shape in enumerate(shapes)]
    G = [gradients(shape, seed=10 + i) for i, shape in enumerate(shapes)]
    options = {} if kind is Shampoo else {"rank": 3}
    for together, x, g in zip(train(kind, X, G, lr=LR, **options), X, G, strict=True):
        assert_close(together, train_one(kind, x, g, lr=LR, **options), scale=1, tolerance=EXACT)


@pytest.mark.parametrize("update_every", [1, 2])
@pytest.mark.parametrize(
    ("kind", "graft"), [(SketchyShampoo, "rows"), (SketchyShampoo, "factored"), (SketchySOAP, None)]
)
def test_the_trace_of_a_covariance_is_the_decayed_energy_of_gradients_if_sketches_see_them_all(
    kind, graft, update_every
):
    G, p = gradients((8, 6))[:5], torch.nn.Parameter(start((8, 6)))
    optimizer = kind([p], rank=3, betas=(0.9, 0.8), graft=graft, update_every=update_every, **PLAIN)
    for g in G:
        p.grad = g.clone()
        optimizer.step()
    expected = sum(0.8 ** (4 - t) * g.square().sum() for t, g in enumerate(G))
    for known in optimizer.covariances():
        if update_every > 1:
            assert known.trace is None
        else:
            assert known.trace.item() == pytest.approx(expected.item())

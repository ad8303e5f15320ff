"""The argument ``compile``: a wave of stacks as one graph. It takes the steps of the accelerators' path."""

import copy
import os
import warnings
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from optim.optimizers import CASES, F32, Case, advance, assert_near, assert_same, gradient, snapshot, weights
from ranks import on_threads
from sketchy import SketchyShampoo, SketchySOAP
from sketchy.core.tasks import without_reading
from sketchy.optim import compiled

pytestmark = [
    pytest.mark.filterwarnings("default"),  # the compiler has its own warnings
    pytest.mark.skipif(os.environ.get("SKETCHY_DEVICE") == "standin", reason="torch can't compile for it"),
]

PLAIN = {"backend": "eager"}  # torch.compile without its compiler: the graph as it was traced
KERNELS = {SketchySOAP: 510, SketchyShampoo: 275}
QUICK = [case for case in CASES if case.name in ("SketchyShampoo-paper", "SketchySOAP-small")]
REST = [pytest.param(case, marks=pytest.mark.slow) for case in CASES if case not in QUICK]
SHAPES = ((6, 5), (6, 5), (5,))  # a stack of two, and a vector


def follow(case: Case, steps: int = 5, bad: int = 2, **options: Any) -> dict[str, torch.Tensor]:
    """Weights and state after some steps; the first gradient of one of them has a NaN."""
    params = weights(shapes=SHAPES)
    optimizer = case.make(params, lr=0.01, **options)
    for t in range(steps):
        for i, p in enumerate(params):
            p.grad = gradient(p, i, t)
        if t == bad:
            params[0].grad[0, 0] = torch.nan
        optimizer.step()
    return snapshot(optimizer)


def made(compile: Any = PLAIN, **options: Any) -> tuple[Any, list[torch.nn.Parameter]]:
    params = weights(shapes=SHAPES)
    return SketchySOAP(params, rank=2, compile=compile, **options), params


@pytest.mark.parametrize("case", [*QUICK, *REST], ids=str)
def test_a_graph_takes_the_steps_of_the_path_that_reads_no_value(case: Case) -> None:
    bad = 99 if case.options.get("update_every") else 2  # a graph does not tell Python which were bad
    with without_reading():
        expected = follow(case, bad=bad)
    found = follow(case, bad=bad, compile=PLAIN)
    turns = [{name: run.pop(name) for name in [*run] if name.endswith("turn")} for run in (found, expected)]
    assert_near(found, expected, 1e-5)
    assert all(turns[0][name] == turns[1][name] + (bad < 5 and name.startswith("0.0.")) for name in turns[0])


def test_a_new_rate_or_decay_needs_no_new_graph_and_other_options_do() -> None:
    optimizer, params = made()
    for lr in (0.1, 0.2, torch.tensor(0.3)):
        optimizer.param_groups[0].update(lr=lr, weight_decay=0.1 * float(lr))
        advance(optimizer, params, [0])
    plain = SketchySOAP(weights(shapes=SHAPES), rank=2)
    copied = plain.param_groups[0]["params"]
    for lr in (0.1, 0.2, 0.3):
        plain.param_groups[0].update(lr=lr, weight_decay=0.1 * lr)
        advance(plain, copied, [0])
    for p, q in zip(params, copied, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)
    before = len(optimizer.compiled.graphs)
    assert before == 1
    optimizer.param_groups[0]["betas"] = (0.8, 0.9)
    advance(optimizer, params, [1])
    assert len(optimizer.compiled.graphs) == before + 1


def test_with_too_many_graphs_steps_go_on_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "MOST", 2)
    optimizer, params = made()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        for step, beta in enumerate((0.9, 0.8, 0.7, 0.6)):
            optimizer.param_groups[0]["betas"] = (beta, 0.95)
            before = params[0].detach().clone()
            advance(optimizer, params, [step])
            assert not torch.equal(before, params[0])
    assert len(optimizer.compiled.graphs) == 2
    assert sum("2 graphs" in str(w.message) for w in caught) == 1


def test_copies_and_checkpoints_go_on_alike() -> None:
    optimizer, params = made()
    advance(optimizer, params, range(2))
    both = copy.deepcopy((optimizer, params))
    loaded, others = made()
    with torch.no_grad():
        for p, q in zip(others, params, strict=True):
            p.copy_(q)
    loaded.load_state_dict(optimizer.state_dict())
    assert not both[0].compiled.graphs
    for one, some in ((optimizer, params), both, (loaded, others)):
        advance(one, some, range(2, 4))
    assert_same(snapshot(both[0]), snapshot(optimizer))
    assert_same(snapshot(loaded), snapshot(optimizer))


def test_a_step_in_a_graph_may_be_part_of_a_training_loop_with_closures_and_missing_gradients() -> None:
    optimizer, params = made()

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = sum((p.square().sum() for p in params[:2]), torch.zeros(()))
        loss.backward()
        return loss

    losses = [float(optimizer.step(closure)) for _ in range(8)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("wrong", ["yes", 1, None])
def test_a_wrong_argument_is_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"compile=.*torch\.compile"):
        made(compile=wrong)


def test_small_tensors_are_stored_before_large_ones_are_computed_from_them() -> None:
    def scaled(X: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return X * s.pow(-0.5).add(1).unsqueeze(-1)

    def scaled_cheaply(X: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return X * s.add(1).unsqueeze(-1)

    def factor(function: Any, columns: int) -> list[Any]:
        X, s = torch.rand(2048, columns, dtype=F32), torch.rand(2048, dtype=F32)
        graph = make_fx(function, tracing_mode="fake")(X, s)
        compiled.small_first_(graph)
        torch.testing.assert_close(graph(X, s), function(X, s))
        (product,) = (node for node in graph.graph.nodes if node.target is torch.ops.aten.mul.Tensor)
        column = product.args[1].args[0]  # what is unsqueezed
        return [column.target, getattr(column.args[0], "target", None)]

    plus = torch.ops.aten.add.Tensor
    assert factor(scaled, 8) == [torch.as_strided, plus]
    assert factor(scaled, 7)[0] == plus  # not much larger
    assert factor(scaled_cheaply, 8)[0] == plus  # nothing costly


def test_a_small_tensor_is_stored_once_for_all_large_ones_that_read_the_same_view() -> None:
    def scaled(X: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        column = s.sqrt().unsqueeze(-1)
        return X * column + X.mT.contiguous().mT * column

    X, s = torch.rand(2048, 8, dtype=F32), torch.rand(2048, dtype=F32)
    graph = make_fx(scaled, tracing_mode="fake")(X, s)
    compiled.small_first_(graph)
    assert [node.target for node in graph.graph.nodes].count(torch.as_strided) == 1
    torch.testing.assert_close(graph(X, s), scaled(X, s))


def test_constants_of_a_graph_are_made_once() -> None:
    optimizer, params = made()
    advance(optimizer, params, range(2))
    ((graph, _),) = optimizer.compiled.graphs.values()
    names = {str(node.target) for node in graph._orig_mod.graph.nodes}
    assert "aten.pow.Tensor_Scalar" in names
    assert not {"aten.arange.start", "aten.remainder.Scalar"} & names  # of the pseudo-random numbers


def test_sharded_weights_are_refused_with_a_remedy() -> None:
    on_threads(2, step_of_a_part)


def step_of_a_part() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2,))
    p = torch.nn.Parameter(distribute_tensor(torch.ones(6, 5), mesh, [Shard(0)], src_data_rank=None))
    p.grad = distribute_tensor(torch.ones(6, 5), mesh, [Shard(0)], src_data_rank=None)
    with pytest.raises(ValueError, match="compile: sharded weights"):
        SketchySOAP([p], rank=2, compile=PLAIN).step()


@pytest.mark.slow
@pytest.mark.parametrize("cls", [SketchySOAP, SketchyShampoo])
def test_torchs_compiler_takes_the_same_steps_in_few_kernels(cls: type) -> None:
    from torch._inductor import metrics

    shapes = ((768, 256), (256, 256), (1024, 256), (256, 1024), (1024,), (256,))
    params, others = (weights(F32, shapes) for _ in range(2))
    eager = cls(others, rank=32)
    metrics.reset()
    fast = cls(params, rank=32, compile=True)
    for optimizer, some in ((eager, others), (fast, params)):
        advance(optimizer, some, range(4))
    for p, q in zip(params, others, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)
    assert metrics.generated_kernel_count <= KERNELS[cls]


@pytest.mark.slow
@pytest.mark.parametrize(("cls", "most"), [(SketchySOAP, 14), (SketchyShampoo, 12)])
def test_a_compiled_step_reads_and_writes_a_weight_seldom(
    cls: type, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside products: what the kernels that the compiler makes read and write, in weights."""
    from torch._functorch import config as autograd
    from torch._inductor import config
    from torch._inductor.scheduler import ExternKernelSchedulerNode, Scheduler

    p = torch.nn.Parameter(torch.randn(512, 256, generator=torch.Generator().manual_seed(0)))
    passes, generate = [], Scheduler.codegen

    def counted(self: Scheduler) -> Any:
        for node in self.nodes:
            if not isinstance(node, ExternKernelSchedulerNode):
                both = {"include_reads": True, "include_writes": True}
                sizes = node.get_read_write_buffer_accesses(**both).values()
                passes.extend(size / p.nbytes for size in sizes if size >= p.nbytes)
        return generate(self)

    monkeypatch.setattr(Scheduler, "codegen", counted)
    optimizer: Any = cls([p], rank=16, compile=True)
    p.grad = torch.randn(512, 256, generator=torch.Generator().manual_seed(1))
    with config.patch(fx_graph_cache=False), autograd.patch(enable_autograd_cache=False):
        optimizer.step()  # with caches, an earlier run's kernels would be taken
    assert 7 <= sum(passes) <= most  # fused AdamW takes 7

"""Tasks that run together have the same results as alone."""

import pytest
import torch
from torch import Tensor

from cases import F32, F64, stream
from checks import assert_close
from sketchy.core import sketch, tasks
from sketchy.core.preconditioner import inverse_root, inverse_root_task
from sketchy.core.sketch import SOLVERS, Sketch, update_task
from sketchy.core.tasks import Request, Task, Unread, certain, gather, read, run

RANK, STEPS = 6, 8
SIZES = ((20, 9), (12, 30), (40, 7))  # d and k
# of the streams in each of three stacks: all cheap; a step each on the safe road, in float64, by the SVD
MIXTURES = (
    ("power", "white", "drifting"),
    ("rank-deficient", "power", "zero"),
    ("zero", "repeated", "white"),
)


def stacks(kinds: tuple[str, ...], dtype: torch.dtype) -> list[list[Tensor]]:
    """For each step, a stack (2, d, k) for each of the sizes."""
    made = []
    for i, (kind, (d, k)) in enumerate(zip(kinds, SIZES, strict=True)):
        pair = [stream(kind, d, k, STEPS, seed=10 * i + j, dtype=dtype) for j in range(2)]
        made.append([torch.stack(matrices) for matrices in zip(*pair, strict=True)])
    return [list(each) for each in zip(*made, strict=True)]


def dense(state: Sketch) -> Tensor:
    U = state.basis.double()
    return (U * state.eigenvalues.unsqueeze(-2)) @ U.mT


def alike(actual: Sketch, expected: Sketch, tolerance: float) -> None:
    scale = expected.eigenvalues.amax().clamp(min=1e-300)
    assert_close(dense(actual), dense(expected), scale=scale, tolerance=tolerance)
    for name in ("eigenvalues", "escaped_mass", "error_bound"):
        assert_close(getattr(actual, name), getattr(expected, name), scale=scale, tolerance=tolerance)


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("size", [1.0, 1e-12])
@pytest.mark.parametrize("kinds", MIXTURES)
def test_sketches_updated_together_are_those_updated_alone(kinds, size, solver, dtype):
    empty = [sketch.empty(d, RANK, batch=(2,), dtype=dtype) for d, _ in SIZES]
    together, alone = list(empty), list(empty)
    tolerance = 2e-3 if dtype == F32 else 1e-9
    for As in stacks(kinds, dtype):
        As = [As[0] * size, *As[1:]]
        pairs = zip(together, As, strict=True)
        together = run(gather(update_task(s, A, beta2=0.9, solver=solver) for s, A in pairs))
        alone = [sketch.update(s, A, beta2=0.9, solver=solver) for s, A in zip(alone, As, strict=True)]
    for actual, expected in zip(together, alone, strict=True):
        alike(actual, expected, tolerance)


@pytest.mark.parametrize("size", [1.0, 1e-12, 1e12])
@pytest.mark.parametrize("kinds", [("white", "white", "white"), ("white", "rank-deficient", "repeated")])
def test_sketches_of_both_solvers_are_updated_side_by_side(kinds, size):
    """Whichever steps they ask at: an extreme stream asks later, one on the safe road earlier."""
    empty = [sketch.empty(d, RANK, batch=(2,), dtype=F64) for d, _ in SIZES]
    solvers = ("exact", "subspace", "subspace")
    together, alone = list(empty), list(empty)
    for As in stacks(kinds, F64):
        As = [As[0] * size, *As[1:]]
        some = list(zip(together, As, solvers, strict=True))
        together = run(gather(update_task(s, A, beta2=0.9, solver=solver) for s, A, solver in some))
        some = list(zip(alone, As, solvers, strict=True))
        alone = [sketch.update(s, A, beta2=0.9, solver=solver) for s, A, solver in some]
    for actual, expected in zip(together, alone, strict=True):
        alike(actual, expected, 1e-9)


def test_inverse_roots_taken_together_are_those_taken_alone(rng):
    sketches = []
    for d, k in (*SIZES, (RANK, 11)):  # the last is whole
        state = sketch.empty(d, RANK, batch=(2,), dtype=F64)
        A = torch.randn(2, d, k, generator=rng, dtype=F64)
        sketches.append(sketch.update(state, A) if d != 12 else state)  # one has seen nothing
    roots = run(gather(inverse_root_task(state, 0.25, 1e-7) for state in sketches))
    for actual, state in zip(roots, sketches, strict=True):
        expected = inverse_root(state, 0.25, 1e-7)
        assert_close(actual.gain, expected.gain, scale=1.0, tolerance=1e-14)
        assert_close(actual.scale, expected.scale, scale=1.0, tolerance=1e-14)
        assert actual.basis is state.basis


class Counted:
    """A function that remembers the shapes it was called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, ...]] = []

    def __call__(self, x: Tensor, factor: float | Tensor, *, power: int) -> tuple[Tensor, list[float]]:
        self.calls.append(tuple(x.shape))
        weights = factor if isinstance(factor, float) else factor.unsqueeze(-1)
        return weights * x**power, x[:, 0].tolist()


def ask(function: Counted, x: Tensor, factor: float, power: int, log: list[int]) -> Task[Tensor]:
    y, firsts = yield Request(function, (x,), (factor,), {"power": power})
    assert firsts == x[:, 0].tolist()
    log.append(len(x))
    numbers = yield Request(read, (y[:, 0],))
    assert numbers == [(value,) for value in y[:, 0].tolist()]
    return y


@pytest.mark.cpu_only("it reads values")
def test_requests_that_are_alike_are_computed_in_one_call_and_others_apart(rng):
    asked = [(2, 3, 1.0, 2), (1, 3, 4.0, 2), (3, 5, 1.0, 2), (2, 3, 1.0, 1), (4, 3, 1.0, 2)]
    function, log = Counted(), []
    xs = [torch.randn(S, n, generator=rng, dtype=F64) for S, n, *_ in asked]
    tasks = (ask(function, x, factor, power, log) for x, (*_, factor, power) in zip(xs, asked, strict=True))
    found = run(gather(tasks))
    assert function.calls == [(7, 3), (3, 5), (2, 3)]
    for y, x, (*_, factor, power) in zip(found, xs, asked, strict=True):
        assert torch.equal(y, factor * x**power)
    assert log == [2, 1, 3, 2, 4]  # they went on in their own order


def test_what_comes_after_the_last_request_runs_task_after_task():
    """So that only one of them holds large results."""
    log: list[str] = []

    def task(name: str, requests: int) -> Task[str]:
        for i in range(requests):
            log.append(f"{name}{i}")
            yield Request(read, (torch.zeros(1),))
        log.append(f"{name} begins")
        log.append(f"{name} ends")
        return name

    assert run(gather([task("a", 2), task("b", 0), task("c", 2)])) == ["a", "b", "c"]
    assert log == ["a0", "b begins", "b ends", "c0", "a1", "c1", "a begins", "a ends", "c begins", "c ends"]


@pytest.mark.cpu_only("it reads values")
def test_gathered_tasks_may_gather_others(rng):
    x = torch.randn(6, 4, generator=rng, dtype=F64)
    function, log = Counted(), []

    def both(a: Tensor, b: Tensor) -> Task[Tensor]:
        return torch.cat((yield from gather([ask(function, a, 2.0, 1, log), ask(function, b, 2.0, 1, log)])))

    found = run(gather([both(x[:1], x[1:3]), both(x[3:5], x[5:])]))
    assert torch.equal(torch.cat(found), 2 * x) and function.calls == [(6, 4)]


def test_an_error_in_one_task_reaches_the_caller():
    def broken() -> Task[None]:
        yield Request(read, (torch.zeros(1),))
        raise ValueError("at home")

    with pytest.raises(ValueError, match="at home"):
        run(gather([broken(), broken()]))


def test_products_keep_the_dtype_of_their_factors_where_autocast_would_shorten_it():
    A = torch.ones(2, 2)
    with torch.autocast(A.device.type, torch.bfloat16):
        assert (A @ A).dtype == torch.bfloat16
        with tasks.without_autocast(A.device):
            assert (A @ A).dtype == F32
    with tasks.without_autocast(torch.device("meta")):  # it has no autocast
        assert A.to("meta").dtype == F32


def test_values_of_a_device_are_not_read():
    assert read(torch.zeros(2), torch.zeros(2, device="meta")) is None

    def ask_device() -> Task[object]:
        return (yield Request(read, (torch.zeros(3, device="meta"),)))

    assert run(ask_device()) is None

    def ask_result(count: int) -> Task[object]:
        return (yield Request(lengths, (torch.zeros(count, 2, device="meta"),)))

    found = run(gather([ask_result(3), ask_result(1)]))
    assert [(norms.shape, numbers) for norms, numbers in found] == [((3,), None), ((1,), None)]


def lengths(x: Tensor) -> tuple[Tensor, Unread]:
    norms = x.norm(dim=-1)
    return norms, Unread((norms,))


@pytest.mark.cpu_only("it reads values")
def test_a_condition_is_certain_if_it_is_known_and_holds_in_every_row():
    yes, mixed = torch.tensor([True, True]), torch.tensor([True, False])
    assert certain(yes) and not certain(mixed)
    with tasks.without_reading():
        assert not certain(yes)

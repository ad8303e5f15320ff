"""The public object: saving, copying, moving, and errors that do not change it."""

import copy
import io
import pickle

import pytest
import torch

from cases import F32, F64, SOLVERS, covariance, stream
from checks import assert_close, feed, norm, same
from sketchy import FrequentDirections

# -- state -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["state_dict", "torch.save", "deepcopy", "pickle"])
@pytest.mark.parametrize("solver", SOLVERS)
def test_saved_and_continued_equals_never_having_stopped(way, solver):
    """Vectors are still in the buffer when it is saved."""
    before = [v[:, 0].float() for v in stream("power", 20, 1, 16, seed=1)]
    after = [A.float() for A in stream("power", 20, 4, 5, seed=2)]
    fd = feed(FrequentDirections(20, 7, decay=0.99, solver=solver), before)
    match way:
        case "deepcopy":
            restored = copy.deepcopy(fd)
        case "pickle":
            restored = pickle.loads(pickle.dumps(fd))
        case _:
            state = fd.state_dict()
            if way == "torch.save":
                file = io.BytesIO()
                torch.save(state, file)
                state = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
            restored = FrequentDirections(20, 7, decay=0.99, solver=solver)
            restored.load_state_dict(state)
    assert same(feed(fd, after), feed(restored, after))


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_a_copy_does_not_share_its_fate(duplicate):
    fd = feed(FrequentDirections(6, 3), [torch.ones(6)])
    twin = duplicate(fd)
    twin.update(2 * torch.ones(6))
    twin.update(torch.ones(6, 2))
    assert fd.count == 1 and twin.count == 4
    assert_close(fd.dense(), torch.ones(6, 6), scale=1, tolerance=1e-6)


@pytest.mark.parametrize(
    "damage",
    [
        lambda s: s.pop("basis"),
        lambda s: s.update(extra=1),
        lambda s: s.update(basis=s["basis"][:, :-1]),
        lambda s: s.update(basis=s["basis"].double()),
        lambda s: s.update(eigenvalues=s["eigenvalues"] * float("nan")),
        lambda s: s.update(waiting=torch.zeros(2, 3)),
        lambda s: s.update(count=-1),
        lambda s: s.update(count="many"),
        lambda s: s.update(count=True),
        lambda s: s.update({3: 4}),
        lambda s: s.update(basis="none"),
        lambda s: s.update(basis=torch.zeros_like(s["basis"])),
        lambda s: s.update(eigenvalues=-s["eigenvalues"]),
        lambda s: s.update(waiting=torch.tensor(1.0)),
    ],
)
def test_a_damaged_state_is_refused_and_changes_nothing(damage):
    fd = feed(FrequentDirections(6, 3), [torch.ones(6, 2), torch.ones(6)])
    before = copy.deepcopy(fd)
    state = dict(fd.state_dict())
    damage(state)
    with pytest.raises(ValueError, match="state"):
        fd.load_state_dict(state)
    assert same(fd, before)


WRONG = {
    "a negative mass": ({"escaped_mass": -1e-30}, r"'escaped_mass'\] is damaged: has -1e-30, must be from 0"),
    "a negative bound": ({"error_bound": -1.0}, r"'error_bound'\] is damaged: has -1.0, must be from 0"),
    "an infinite bound": ({"error_bound": float("inf")}, r"'error_bound'\] is damaged: it has NaN or Inf"),
    "a mass whose sums overflow": ({"escaped_mass": 1e305}, "must be from 0 to 1e"),
    "eigenvalues whose sums overflow": (
        {"eigenvalues": [1e308, 1.0, 0.0]},
        r"has 1e\+308, must be from",
    ),
    "ascending eigenvalues": ({"eigenvalues": [1.0, 2.0, 0.0]}, "must be descending and end with 0"),
    "negative eigenvalues": ({"eigenvalues": [1.0, -2.0, -3.0]}, "must be descending and end with 0"),
    "a last eigenvalue": ({"eigenvalues": [3.0, 2.0, 1.0]}, "must be descending and end with 0"),
    "an infinite eigenvalue": ({"eigenvalues": [float("inf"), 1.0, 0.0]}, "NaN or Inf"),
    "large vectors": (
        {"waiting": [[0.0] * 5 + [-1e200]]},
        r"waiting'\] is damaged: has entries above 1e",
    ),
    "more vectors than were seen": (
        {"waiting": [[1.0] * 6] * 4, "count": 3},
        "has 4 vectors of 3",
    ),
    "a skewed basis": ({"basis": torch.ones(6, 3)}, "its columns must be orthonormal"),
    "no content": ({"basis": torch.zeros(6, 3, device="meta")}, "on meta: must be dense"),
    "a sparse basis": ({"basis": torch.eye(6)[:, :3].to_sparse()}, "sparse_coo on cpu: must be dense"),
}


@pytest.mark.cpu_only("messages name the CPU")
@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_state_that_updates_could_not_rely_on_is_refused_and_changes_nothing(name, solver):
    change, message = WRONG[name]
    fd = feed(
        FrequentDirections(6, 3, dtype=F64, solver=solver),
        [torch.eye(6, 2, dtype=F64), torch.ones(6, dtype=F64)],
    )
    before, state = copy.deepcopy(fd), fd.state_dict()
    given = {
        key: value if isinstance(value, int) else torch.as_tensor(value, dtype=F64)
        for key, value in change.items()
    }
    with pytest.raises(ValueError, match=message):
        fd.load_state_dict({**state, **given})
    assert same(fd, before)


@pytest.mark.parametrize(("stretch", "fits"), [(2e-4, True), (1e-3, False)])
def test_a_basis_that_is_orthonormal_up_to_1e_3_loads(stretch, fits):
    fd = feed(FrequentDirections(6, 3), [torch.eye(6, 2)])
    state = {**fd.state_dict(), "basis": fd.basis * (1 + stretch)}  # UᵀU is off by twice the stretch
    if fits:
        return fd.load_state_dict(state)
    with pytest.raises(ValueError, match="its columns must be orthonormal"):
        fd.load_state_dict(state)


@pytest.mark.parametrize(("dtype", "mass", "entry"), [(F32, 1e100, 3e38), (F64, 1e304, 1e150)], ids=str)
@pytest.mark.parametrize("solver", SOLVERS)
def test_the_largest_state_that_loads_can_be_updated_and_a_larger_one_is_refused(solver, dtype, mass, entry):
    fd = FrequentDirections(6, 3, dtype=dtype, solver=solver)
    values = {"eigenvalues": [mass, mass, 0.0], "escaped_mass": mass, "error_bound": mass}
    state = {**fd.state_dict(), **{key: torch.tensor(value, dtype=F64) for key, value in values.items()}}
    for name in values:
        with pytest.raises(ValueError, match=f"'{name}'] is damaged: has .*, must be from 0 to"):
            fd.load_state_dict({**state, name: 1.01 * state[name]})
    fd.load_state_dict({**state, "waiting": torch.full((2, 6), entry, dtype=dtype), "count": 2})
    fd.update(torch.full((6, 2), -entry, dtype=dtype))
    assert all(torch.isfinite(torch.as_tensor(value)).all() for value in fd.state_dict().values())


def test_a_loaded_state_has_no_gradients_and_no_shared_memory():
    fd = feed(FrequentDirections(6, 3), [torch.ones(6, 2), torch.ones(6)])
    state = {
        key: value.requires_grad_() if key == "basis" else value for key, value in fd.state_dict().items()
    }
    other = FrequentDirections(6, 3)
    other.load_state_dict(state)
    state["eigenvalues"].zero_()
    state["waiting"].zero_()
    assert other.state_dict()["waiting"].tolist() == [[1.0] * 6]
    assert not other.basis.requires_grad and other.eigenvalues[0] > 0


def test_a_state_of_another_kind_is_refused():
    with pytest.raises(TypeError, match="state is a NoneType"):
        FrequentDirections(6, 3).load_state_dict(None)


def test_another_shape_is_refused_with_both_shapes():
    with pytest.raises(ValueError, match=r"\(7, 3\).*must be \(6, 3\).*dim=6, rank=3"):
        FrequentDirections(6, 3).load_state_dict(FrequentDirections(7, 3).state_dict())


def test_to_changes_the_dtype_and_keeps_the_certificate():
    matrices = stream("power", 20, 3, 10)
    fd = feed(FrequentDirections(20, 6, dtype=F64), matrices)
    fd.update(matrices[0][:, 0])
    C = covariance([*matrices, matrices[0][:, :1]])
    bound = fd.error_bound
    assert fd.to(F64).error_bound == bound  # nothing is rounded
    assert fd.to(F32) is fd and fd.dtype == F32 and fd.basis.dtype == F32
    assert fd.error_bound == bound + 8 * torch.finfo(F32).eps * fd.eigenvalues[0]
    assert fd.error_bound >= norm(C - fd.dense())
    fd.to("cpu").to(matrices[0].device).to(F64).update(matrices[0])
    assert fd.error_bound >= norm(C + matrices[0] @ matrices[0].T - fd.dense())


def test_the_default_dtype_is_torchs():
    assert FrequentDirections(4, 2).dtype == torch.get_default_dtype()
    assert "dim=4, rank=2" in repr(FrequentDirections(4, 2))


def test_gradients_do_not_flow_into_the_sketch():
    v = torch.ones(4, requires_grad=True)
    fd = feed(FrequentDirections(4, 3), [v, v.unsqueeze(-1).expand(-1, 2) * 2])
    assert not fd.basis.requires_grad and not fd.eigenvalues.requires_grad


def test_a_stream_may_reuse_its_memory():
    buffer = torch.zeros(4)
    fd = FrequentDirections(4, 4)
    for i in range(3):
        buffer.zero_()[i] = i + 1.0
        fd.update(buffer)
    assert_close(fd.dense().diagonal(), torch.tensor([1.0, 4.0, 9.0, 0.0]), scale=9, tolerance=1e-6)


# -- bad input -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"dim": 0}, ValueError, "dim=0: must be at least 1"),
        ({"dim": 2.5}, TypeError, "dim=2.5: must be an int"),
        ({"rank": 1}, ValueError, "rank=1: must be at least 2"),
        ({"rank": True}, TypeError, "rank=True: must be an int"),
        ({"decay": 1.1}, ValueError, r"decay=1.1: must be in \[0, 1\]"),
        ({"decay": -0.1}, ValueError, r"decay=-0.1: must be in \[0, 1\]"),
        ({"decay": float("nan")}, ValueError, "decay=nan"),
        ({"decay": "0.9"}, TypeError, "decay='0.9': must be a number"),
        ({"solver": "svd"}, ValueError, "solver='svd': must be one of .*exact.*subspace"),
        ({"certificate": "maybe"}, ValueError, "certificate='maybe': must be one of .*probe.*none"),
        ({"failure_probability": 1}, ValueError, r"failure_probability=1.0: must be in \(0, 1\)"),
        ({"failure_probability": 0}, ValueError, r"failure_probability=0.0: must be in \(0, 1\)"),
        ({"buffer": 0}, ValueError, "buffer=0: must be at least 1"),
        ({"dtype": torch.bfloat16}, ValueError, "dtype=torch.bfloat16: must be torch.float32 or"),
        ({"device": "nope"}, ValueError, "device='nope': "),
        ({"device": "cuda:77"}, ValueError, "device='cuda:77': "),
        ({"seed": -1}, ValueError, "seed=-1: must be at least 0"),
        ({"seed": "lucky"}, TypeError, "seed='lucky': must be an int"),
    ],
)
def test_bad_options_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        FrequentDirections(**{"dim": 8, "rank": 4, **arguments})


BAD = {
    "shape": (torch.zeros(7), ValueError, r"A has the shape \(7,\): must be \(6,\) or \(6, k\)"),
    "transposed": (torch.zeros(2, 6), ValueError, r"A has the shape \(2, 6\)"),
    "three axes": (torch.zeros(6, 2, 2), ValueError, r"\(6, 2, 2\)"),
    "scalar": (torch.tensor(1.0), ValueError, r"A has the shape \(\)"),
    "dtype": (torch.zeros(6).double(), ValueError, "A is torch.float64 on cpu: must be torch.float32 on cpu"),
    "integers": (torch.zeros(6, dtype=torch.int64), ValueError, "A is torch.int64"),
    "device": (torch.zeros(6, device="meta"), ValueError, "on meta: must be torch.float32 on cpu"),
    "numpy": ([1.0] * 6, TypeError, r"A is a list: must be a torch.Tensor"),
    "nan": (torch.tensor([0, 0, float("nan"), 0, 0, 0]), ValueError, "A has NaN or Inf"),
    "sparse": (torch.eye(6)[:, :2].to_sparse(), ValueError, r"A is torch.sparse_coo: must be dense"),
    "inf": (torch.full((6, 3), float("inf")), ValueError, "A has NaN or Inf"),
    "late nan": (torch.cat([torch.ones(6, 500), torch.full((6, 1), float("nan"))], 1), ValueError, "NaN"),
}


@pytest.mark.cpu_only("messages name the CPU")
@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("name", BAD)
def test_a_bad_update_is_refused_and_changes_nothing(name, solver):
    A, error, message = BAD[name]
    fd = feed(FrequentDirections(6, 4, solver=solver), [torch.ones(6, 2), torch.ones(6)])
    before = copy.deepcopy(fd)
    with pytest.raises(error, match=message):
        fd.update(A)
    assert same(fd, before)


def test_apply_checks_its_argument_too():
    with pytest.raises(ValueError, match=r"x has the shape \(5,\)"):
        FrequentDirections(6, 4).apply(torch.zeros(5))

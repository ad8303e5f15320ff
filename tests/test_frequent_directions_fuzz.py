"""A fuzzer of the public object: vectors, blocks, merging, saving, other dtypes and mistakes, in any order.

A second object gets the same stream, and is never saved, loaded or given a mistake. `make fuzz` does this for
hours (see `tests/fuzz.py`).
"""

import copy
import io
import os
import pickle
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from torch import Tensor

from cases import F32, F64, SOLVERS, stream
from checks import assert_psd_leq, norm, orthonormality, same
from sketchy import FrequentDirections

KINDS = ("power", "white", "rank-deficient", "zero", "tiny", "huge", "steep")
ROUNDING = {F32: 1e-4, F64: 1e-12}  # of a basis, and of B Bᵀ relative to C
NO_CHANCE = 1e-15  # of a certificate to fail: there are many updates in hours
MISTAKES = {
    "NaN": lambda d, dtype: torch.full((d, 2), torch.nan, dtype=dtype),
    "shape": lambda d, dtype: torch.zeros(d + 1, dtype=dtype),
    "dtype": lambda d, dtype: torch.zeros(d, dtype=torch.int64),
}


class Streaming(RuleBasedStateMachine):
    """Rules are what users do. After each, the certificate is compared with the dense covariance."""

    @initialize(
        dim=st.integers(1, 12),
        rank=st.integers(2, 13),
        decay=st.sampled_from([1.0, 0.99, 0.5, 0.0]),
        solver=st.sampled_from(SOLVERS),
        dtype=st.sampled_from([F32, F64]),
        certificate=st.sampled_from(["probe", "none"]),
        buffer=st.sampled_from([None, 1, 3]),
    )
    def construct(self, dim: int, rank: int, dtype: torch.dtype, **options: Any) -> None:
        self.options = {"dim": dim, "rank": rank, "failure_probability": NO_CHANCE, **options}
        self.fd, self.steady = (FrequentDirections(**self.options, dtype=dtype) for _ in range(2))
        self.C, self.coarsest, self.dim = torch.zeros(dim, dim, dtype=F64), dtype, dim

    @rule(
        kind=st.sampled_from(KINDS),
        columns=st.integers(0, 9),
        times=st.integers(1, 4),
        seed=st.integers(0, 99),
    )
    def update(self, kind: str, columns: int, times: int, seed: int) -> None:
        """With no columns, single vectors."""
        for A in stream(kind, self.dim, columns or 1, times, seed, self.fd.dtype):
            for fd in (self.fd, self.steady):
                fd.update(A if columns else A[:, 0])
            self._add(self.options["decay"] * self.C + A.double() @ A.double().T)

    @rule()
    def update_without_columns(self) -> None:
        """A block of no columns still decays the past."""
        for fd in (self.fd, self.steady):
            fd.update(torch.zeros(self.dim, 0, dtype=fd.dtype))
        self._add(self.options["decay"] * self.C)

    @rule(rank=st.integers(2, 6), kind=st.sampled_from(KINDS), seed=st.integers(0, 99))
    def merge(self, rank: int, kind: str, seed: int) -> None:
        other = FrequentDirections(**{**self.options, "rank": rank}, dtype=self.fd.dtype)
        (A,) = stream(kind, self.dim, 5, 1, seed, self.fd.dtype)
        other.update(A)
        self.fd, self.steady = self.fd.merge(other), self.steady.merge(other)
        self._add(self.C + A.double() @ A.double().T)

    @rule(dtype=st.sampled_from([F32, F64]))
    def convert(self, dtype: torch.dtype) -> None:
        for fd in (self.fd, self.steady):
            fd.to(dtype)
        self.coarsest = F32 if F32 in (dtype, self.coarsest) else F64
        self._check()

    @rule(way=st.sampled_from(["state_dict", "torch.save", "deepcopy", "pickle"]))
    def restart(self, way: str) -> None:
        if way == "deepcopy":
            self.fd = copy.deepcopy(self.fd)
        elif way == "pickle":
            self.fd = pickle.loads(pickle.dumps(self.fd))
        else:
            state = self.fd.state_dict()
            if way == "torch.save":
                file = io.BytesIO()
                torch.save(state, file)
                file.seek(0)
                state = torch.load(file, weights_only=True)
            self.fd = FrequentDirections(**self.options, dtype=self.fd.dtype)
            self.fd.load_state_dict(state)
        self._check()

    @rule(name=st.sampled_from(list(MISTAKES)))
    def mistake(self, name: str) -> None:
        with pytest.raises(ValueError):
            self.fd.update(MISTAKES[name](self.dim, self.fd.dtype))
        state = self.fd.state_dict()
        with pytest.raises(ValueError):
            self.fd.load_state_dict({**state, "basis": state["basis"] * 1.01})
        self._check()

    def _add(self, C: Tensor) -> None:
        self.C = C
        self._check()

    def _check(self) -> None:
        assert same(self.fd, self.steady)
        fd = copy.deepcopy(self.fd)  # to read a result empties the buffer
        C, size, rounding = self.C, norm(self.C), ROUNDING[self.coarsest]
        assert all(torch.as_tensor(value).isfinite().all() for value in fd.state_dict().values())
        assert orthonormality(fd.basis) <= rounding
        assert fd.eigenvalues[-1] == 0 and (fd.eigenvalues.diff() <= 0).all() and fd.escaped_mass >= 0
        error = norm(C - fd.dense())
        assert error <= float(fd.error_bound) + 1e-14 * size, f"{error} > {fd.error_bound}"
        if size > 0:
            assert_psd_leq(fd.dense() / size, C / size, scale=1, tolerance=rounding)


TestStreaming = Streaming.TestCase
TestStreaming.settings = settings(stateful_step_count=12, derandomize=not os.environ.get("SKETCHY_FUZZ"))

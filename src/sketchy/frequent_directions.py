"""`FrequentDirections`: the streaming sketch as an object that checks its inputs."""

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sketchy.core import sketch as core
from sketchy.core.arguments import check_count, check_device, check_dtype, check_number
from sketchy.core.certificate import rounding_error
from sketchy.core.extremes import power_of_two
from sketchy.core.linalg import gaussian
from sketchy.core.members import members
from sketchy.core.operator import Compensated

CERTIFICATES = ("probe", "none")

_PROBES = 16  # more take time, fewer give a looser bound; the failure probability is the same
_LARGEST = 1e150  # squares must not overflow float64
# and sums of masses must not; in float32, roots of masses divided by the largest unit must not either
_LARGEST_MASS = {torch.float32: 1e100, torch.float64: 1e304}
_LEAST_CHUNK = 64  # columns in one update, even for a small rank


class FrequentDirections:
    """A streaming sketch of a covariance C = Σ a aᵀ, of size dim x rank, with a certified error.

    It keeps B Bᵀ, the leading directions, and ``escaped_mass`` ρ, the mass that they lost (Alg. 1; Sec. 4.3
    with ``decay`` < 1). At every moment B Bᵀ ⪯ C and ‖C - B Bᵀ‖ <= ``error_bound``. It is exact while the
    stream's rank is below ``rank``.

    Args:
        dim: length d of the vectors.
        rank: number l of columns of B, at least 2, clipped to ``dim``. After each update the last column is
            zero, so l - 1 directions are kept. At rank = dim, B Bᵀ + ρ I equals C.
        decay: β₂ in [0, 1]; each call of ``update`` replaces C by β₂ C + A Aᵀ.
        solver: ``"exact"`` (thin SVD, as in the paper) or ``"subspace"`` (a warm-started power step. It needs
            only matrix products, is about ten times faster on wide updates, and similarly accurate).
        dtype: float32 or float64, for the basis and the vectors; torch's default if not given. Squared
            quantities (eigenvalues, masses, bounds) are always float64.
        device: torch's default if not given.
        certificate: how the subspace solver bounds its error. ``"probe"``: with random probes. The bound is a
            few times the true error, and fails with at most ``failure_probability`` in each update.
            ``"none"``: by traces alone. The bound always holds, but is far larger. The bound of the exact
            solver is ρ and needs neither.
        failure_probability: of the probe bound in one update; over T updates it is at most T times this.
        seed: seed of the probes.
        buffer: single vectors are buffered, and ``buffer`` of them make one update as a block. This is much
            faster than an SVD for each vector. Reading any result first empties the buffer. ``None`` means
            ``rank``; 1 is Alg. 1 vector by vector.

    Bounds include an allowance for rounding, 8 eps ‖C‖ for each update in float32. After a thousand updates
    this is 1e-3 ‖C‖, even if the true error is smaller. To certify smaller errors, use float64.

    >>> fd = FrequentDirections(dim=3, rank=3, dtype=torch.float64)
    >>> fd.update(torch.tensor([[2.0, 0.0], [0.0, 1.0], [0.0, 0.0]], dtype=torch.float64))
    >>> fd.eigenvalues
    tensor([4., 1., 0.], dtype=torch.float64)
    >>> fd.apply(torch.tensor([6.0, 0.0, 5.0], dtype=torch.float64), power=-0.5).abs()
    tensor([3., 0., 0.], dtype=torch.float64)
    """

    def __init__(
        self,
        dim: int,
        rank: int,
        decay: float = 1.0,
        solver: str = "exact",
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        *,
        certificate: str = "probe",
        failure_probability: float = 1e-6,
        seed: int = 0,
        buffer: int | None = None,
    ) -> None:
        dim = check_count("dim", dim, 1, "at least 1")
        rank = check_count("rank", rank, 2, "at least 2 (one kept direction and the zero column)")
        if buffer is not None:
            buffer = check_count("buffer", buffer, 1, "at least 1, or None for rank")
        decay = check_number("decay", decay)
        if not 0 <= decay <= 1:
            raise ValueError(f"decay={decay}: must be in [0, 1]; 1 is a sum without decay")
        if solver not in core.SOLVERS:
            raise ValueError(f"solver={solver!r}: must be one of {core.SOLVERS}")
        if certificate not in CERTIFICATES:
            raise ValueError(f"certificate={certificate!r}: must be one of {CERTIFICATES}")
        failure_probability = check_number("failure_probability", failure_probability)
        if not 0 < failure_probability < 1:
            raise ValueError(f"failure_probability={failure_probability}: must be in (0, 1)")
        self.decay = decay
        self.solver = solver
        self.certificate = certificate
        self.failure_probability = failure_probability
        self.seed = check_count("seed", seed, 0, "at least 0")
        self.buffer = buffer if buffer is not None else min(rank, dim)
        self._sketch = core.empty(
            dim,
            rank,
            dtype=check_dtype(dtype if dtype is not None else torch.get_default_dtype()),
            device=check_device(device if device is not None else torch.get_default_device()),
        )
        self._waiting: tuple[Tensor, ...] = ()  # buffered vectors, oldest first
        self._count = 0
        self._folds = 0

    # -- options ---------------------------------------------------------------------------------

    @property
    def dim(self) -> int:
        return self._sketch.dim

    @property
    def rank(self) -> int:
        """Columns of B, clipped to ``dim``."""
        return self._sketch.rank

    @property
    def dtype(self) -> torch.dtype:
        return self._sketch.basis.dtype

    @property
    def device(self) -> torch.device:
        return self._sketch.basis.device

    @property
    def count(self) -> int:
        """The number of vectors (columns) so far."""
        return self._count

    def __repr__(self) -> str:
        return (
            f"FrequentDirections(dim={self.dim}, rank={self.rank}, decay={self.decay}, "
            f"solver={self.solver!r}, dtype={self.dtype}, device={str(self.device)!r}, count={self.count})"
        )

    # -- results ---------------------------------------------------------------------------------

    @property
    def sketch(self) -> core.Sketch:
        """The state as an immutable record, with all buffered vectors included."""
        self._fold_waiting()
        return self._sketch

    @property
    def basis(self) -> Tensor:
        """U, (dim, rank): orthonormal columns, by descending eigenvalue."""
        return self.sketch.basis

    @property
    def eigenvalues(self) -> Tensor:
        """λ, (rank,): the eigenvalues of B Bᵀ = U diag(λ) Uᵀ, descending; the last is 0; float64."""
        return self.sketch.eigenvalues

    @property
    def escaped_mass(self) -> Tensor:
        """ρ: the sum of the mass cut in each update, discounted like C; float64 scalar."""
        return self.sketch.escaped_mass

    @property
    def error_bound(self) -> Tensor:
        """The certificate: an upper bound on ‖C - B Bᵀ‖ in the operator norm; float64 scalar."""
        return self.sketch.error_bound

    @property
    def operator(self) -> Compensated:
        """B Bᵀ + ρ I: products, powers, trace, log-determinant."""
        return Compensated.of(self.sketch)

    def dense(self, compensated: bool = False) -> Tensor:
        """B Bᵀ, or B Bᵀ + ρ I, as a (dim, dim) float64 matrix."""
        B = self.basis.double() * self.eigenvalues.sqrt()
        return self.operator.to_dense() if compensated else B @ B.T

    @torch.no_grad()
    def apply(self, x: Tensor, power: float = -0.5) -> Tensor:
        """(B Bᵀ + ρ I)^power x for x (dim,) or (dim, k); zero eigenvalues stay zero (pseudo-inverse)."""
        columns = self._columns("x", x)
        return self.operator.apply(columns, power).reshape(x.shape)

    # -- updates ---------------------------------------------------------------------------------

    @torch.no_grad()
    def update(self, A: Tensor) -> None:
        """Replace C by decay * C + A Aᵀ, for A (dim,) or (dim, k), any k.

        A block is one FD-update (Alg. 1). A block that is wide compared with ``rank`` is split into chunks,
        to save memory. ``A`` must be finite.
        """
        columns = self._columns("A", A)
        k = columns.shape[-1]
        if k == 0:
            columns = columns.new_zeros(self.dim, 1)
        # if the sum is finite, all entries are; if not, the sum alone may have overflowed
        if not (torch.isfinite(columns.sum()) or torch.isfinite(columns).all()):
            raise ValueError("A has NaN or Inf entries: must be finite; the sketch is unchanged")
        if self.dtype == torch.float64 and columns.abs().max() > _LARGEST:
            raise ValueError(
                f"A has entries above {_LARGEST:.0e}: their squares would overflow; scale A down"
            )
        if k == 1 and self.buffer > 1:
            self._waiting += (columns[:, 0].clone(),)
            if len(self._waiting) >= self.buffer:
                self._fold_waiting()
        else:
            self._fold_waiting()
            decay = self.decay
            wide = (4 if self.solver == "subspace" else 2) * self.rank
            for chunk in columns.split(max(wide, _LEAST_CHUNK), dim=-1):
                self._fold(chunk, decay)
                decay = 1.0  # one call decays once
        self._count += k

    def merge(self, other: "FrequentDirections") -> "FrequentDirections":
        """A new sketch of both streams, with the options of this one; bounds and masses add up.

        ``other`` may have another rank, solver or count, but must have the same dim, decay, dtype and device.
        """
        if not isinstance(other, FrequentDirections):
            raise TypeError(f"other={type(other).__name__}: must be a FrequentDirections")
        for name in ("dim", "decay", "dtype", "device"):
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                raise ValueError(f"other.{name}={theirs}: must equal this sketch's {name}={mine}")
        merged = copy.copy(self)
        merged._sketch = core.merge(self.sketch, other.sketch)
        merged._waiting = ()
        merged._count = self._count + other._count
        merged._folds = self._folds + other._folds
        return merged

    def all_merge(self, group: Any = None) -> "FrequentDirections":
        """One sketch of the streams of all ranks of a process group, the same on all of them to the bit.

        The name is as in ``torch.distributed.all_reduce``: all ranks call it, and all get the result. This
        sketch does not change, except that its buffer is emptied. C is the sum of the ranks' covariances.
        With ``decay`` < 1, each stream has decayed at its own updates. A rank may have an empty stream.

        Sketches are merged in pairs, then pairs of pairs: a rank holds at most two, and 512 ranks take nine
        rounds. Their options must be the same (except for ``seed``, which is the first rank's), and their
        devices of one type. If not, all ranks raise the same ValueError. ``group``: all ranks if None.
        """
        ranks, own = members(group), self.sketch
        found = ranks.objects((self._agreed(), self.seed, self._count, self._folds))
        first = found[0][0]
        for i, (options, *_) in enumerate(found):
            for name, value in options.items():
                if value != first[name]:
                    raise ValueError(
                        f"{name}={value} on rank {i} of the group: must be {first[name]}, as on rank 0"
                    )
        merged = copy.copy(self)
        merged._sketch, merged._waiting = core.Sketch(**ranks.reduce(own.tensors, _merged)), ()
        _, (merged.seed, *_), counts, folds = zip(*found, strict=True)
        merged._count, merged._folds = sum(counts), sum(folds)
        return merged

    def _agreed(self) -> dict[str, Any]:
        """The options that all ranks must share."""
        names = ("dim", "rank", "decay", "dtype", "solver", "certificate", "failure_probability", "buffer")
        return {**{name: getattr(self, name) for name in names}, "device": self.device.type}

    def to(self, target: torch.device | torch.dtype | str) -> "FrequentDirections":
        """Move to a device or change the dtype, in place, as ``torch.nn.Module.to`` does."""
        if isinstance(target, torch.dtype):
            dtype, state = check_dtype(target), self.sketch
            # rounding the basis changes the sketch a little: the bound must include that
            rounding = rounding_error(state.eigenvalues, dtype) if dtype != state.basis.dtype else 0.0
            self._sketch = replace(
                state, basis=state.basis.to(dtype), error_bound=state.error_bound + rounding
            )
        else:
            device, state = check_device(target), self.sketch
            self._sketch = core.Sketch(**{name: x.to(device) for name, x in state.tensors.items()})
        return self

    def state_dict(self) -> dict[str, Any]:
        """Tensors and counters by name; loads with ``torch.load(weights_only=True)``."""
        waiting = torch.stack(self._waiting) if self._waiting else self._sketch.basis.new_empty(0, self.dim)
        return {**self._sketch.tensors, "waiting": waiting, "count": self._count, "folds": self._folds}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state. With the same options, the stream continues bit for bit."""
        if not isinstance(state, Mapping):
            raise TypeError(f"state is a {type(state).__name__}: must be a state_dict()")
        expected = self.state_dict()
        if state.keys() != expected.keys():
            raise ValueError(
                f"state has the keys {sorted(map(str, state))}: must have exactly {sorted(expected)}"
            )
        for name, mine in expected.items():
            theirs = state[name]
            if isinstance(mine, int):
                if isinstance(theirs, bool) or not isinstance(theirs, int) or theirs < 0:
                    raise ValueError(f"state[{name!r}]={theirs!r}: must be an int, at least 0")
                continue
            if not isinstance(theirs, Tensor):
                raise ValueError(f"state[{name!r}]={theirs!r}: must be a tensor")
            shape = (*theirs.shape[:1], self.dim) if name == "waiting" else tuple(mine.shape)
            if tuple(theirs.shape) != shape or theirs.dtype != mine.dtype:
                raise ValueError(
                    f"state[{name!r}] is {tuple(theirs.shape)} {theirs.dtype}: must be {shape} {mine.dtype} "
                    f"for dim={self.dim}, rank={self.rank}, dtype={self.dtype}"
                )
            if theirs.layout != torch.strided or theirs.is_meta:
                raise ValueError(f"state[{name!r}] is {theirs.layout} on {theirs.device}: must be dense")
            if not torch.isfinite(theirs).all():
                raise ValueError(f"state[{name!r}] is damaged: it has NaN or Inf entries")
        new = {name: state[name].detach().to(self.device, copy=True) for name in self._sketch.tensors}
        waiting = state["waiting"].detach().to(self.device, copy=True)
        _check_state(core.Sketch(**new), waiting, state["count"])
        self._sketch, self._waiting = core.Sketch(**new), tuple(waiting)
        self._count, self._folds = state["count"], state["folds"]

    # -- internals -------------------------------------------------------------------------------

    def _fold(self, A: Tensor, decay: float, unit: Tensor | None = None) -> None:
        """One update with A, or with unit * A."""
        probes = None
        if self.solver == "subspace" and self.certificate == "probe":
            # a seed for each update: results are reproducible, also for a resumed stream
            seed = hash((self.seed, self._folds)) % 2**63
            probes = gaussian(_PROBES, self.dim, seed=seed, like=self._sketch.basis)
        options: dict[str, Any] = {"beta2": decay, "solver": self.solver, "probes": probes}
        options["failure_probability"] = self.failure_probability
        if unit is None:
            self._sketch = core.update(self._sketch, A, **options)
        else:
            self._sketch = core.update_by_units(self._sketch, A, unit, **options)
        self._folds += 1

    def _fold_waiting(self) -> None:
        """Add the buffered vectors as one block. A vector of age i (the newest has age 0) is multiplied by
        decay^(i/2).
        """
        if not self._waiting:
            return
        k = len(self._waiting)
        weights = [self.decay ** (age / 2) for age in range(k - 1, -1, -1)]
        A = torch.stack(self._waiting, dim=-1).double()
        A, decay, unit = A * A.new_tensor(weights), self.decay**k, None
        if self.dtype == torch.float32:  # its least numbers have few digits
            past = self._sketch.eigenvalues[0]
            unit = power_of_two(A.abs().max(), past, beta2=decay, most=core.MOST)
            A = A / unit
        self._fold(A.to(self.dtype), decay, unit)
        self._waiting = ()

    def _columns(self, name: str, A: Tensor) -> Tensor:
        """``A`` as (dim, k); raises if its type, shape, layout, dtype or device is wrong."""
        if not isinstance(A, Tensor):
            raise TypeError(
                f"{name} is a {type(A).__name__}: must be a torch.Tensor (torch.as_tensor makes one)"
            )
        if A.ndim not in (1, 2) or A.shape[0] != self.dim:
            raise ValueError(
                f"{name} has the shape {tuple(A.shape)}: must be ({self.dim},) or ({self.dim}, k), "
                "one column for each vector"
            )
        if A.layout != torch.strided:
            raise ValueError(f"{name} is {A.layout}: must be dense ({name}.to_dense() makes it so)")
        if A.dtype != self.dtype or A.device != self.device:
            raise ValueError(
                f"{name} is {A.dtype} on {A.device}: must be {self.dtype} on {self.device} like the sketch "
                f"({name}.to(...) or fd.to(...) converts)"
            )
        return A.detach().reshape(self.dim, -1 if A.numel() else 0)


def _merged(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    return core.merge(core.Sketch(**first), core.Sketch(**second)).tensors


def _check_state(sketch: core.Sketch, waiting: Tensor, count: int) -> None:
    """Raise ValueError if a loaded state lacks a property that updates rely on. All entries are finite."""
    U, lam = sketch.basis, sketch.eigenvalues
    if (U.mT @ U - torch.eye(sketch.rank).to(U)).abs().max() > 1e-3:
        raise ValueError("state['basis'] is damaged: its columns must be orthonormal")
    if (lam.diff() > 0).any() or lam[-1] != 0:
        raise ValueError("state['eigenvalues'] is damaged: must be descending and end with 0")
    for name in ("eigenvalues", "escaped_mass", "error_bound"):
        low, high = (float(x) for x in getattr(sketch, name).aminmax())
        if not 0 <= low <= high <= (most := _LARGEST_MASS[U.dtype]):
            bad = low if low < 0 else high
            raise ValueError(f"state[{name!r}] is damaged: has {bad}, must be from 0 to {most}")
    if len(waiting) > count:
        raise ValueError(f"state['waiting'] is damaged: has {len(waiting)} vectors of {count}, the count")
    if waiting.numel() and waiting.abs().max() > _LARGEST:
        raise ValueError(
            f"state['waiting'] is damaged: has entries above {_LARGEST:.0e}, whose squares overflow"
        )

"""Mutants that change no result, with the reason: by file, and by the line with its ⟦change⟧.

A line without a ⟦change⟧ stands for all its mutants.
"""

from collections.abc import Iterable, Iterator

from mutant_changes import Mutant

# ruff: noqa: E501 - lines of code are quoted whole

_LAST = "there are only two axes, so the second is the last"
_NEW_AXIS = "there is only one axis, so a new second one is the last"
_EQUAL = "differs only where a computed number equals the limit exactly; there both ways are right"
_NOTHING = "zero is divided or multiplied: any number will do"
_BOTH_WAYS = "both ways give the same numbers up to rounding, at another cost"
_TUNING = "a limit between two accurate ways; four times as much is as good"
_EXACT = "scaling by a power of two is exact, needed or not"
_ZERO = "with zero, zero is added"
_ROUNDING = "a limit below which a number counts as a rounding error; its neighbours are as good"

SAME: dict[str, dict[str, str]] = {
    "src/sketchy/core/arguments.py": {
        "return torch.empty(⟦0 → 1⟧, device=device).device": "only its device is used",
    },
    "src/sketchy/core/axes.py": {
        "if self.count ⟦> → >=⟧ 1:": _BOTH_WAYS,
    },
    "src/sketchy/core/certificate.py": {
        "escaped, torch.maximum(trace / probes.shape[⟦- → ⟧1], torch.finfo(probes.dtype).eps * mass)": _LAST,
        "half = (width / 2).to(probes).unsqueeze(-1).unsqueeze(-⟦1 → 2⟧)": "both new axes have the length one",
        "size = gram.abs().sum(⟦- → ⟧1).amax(-1).sqrt()  # ‖EᵀE‖ is at most its largest row sum": "EᵀE is symmetric",
        "size = gram.abs().sum(-⟦1 → 2⟧).amax(-1).sqrt()  # ‖EᵀE‖ is at most its largest row sum": "EᵀE is symmetric",
    },
    "src/sketchy/core/corrected.py": {
        "_MOST = ⟦1000 → 1001⟧  # scales are at most 2^±_MOST, in the range of float64": _EXACT,
        "rest = energy - core.sum((-2, -1)) - left.sum(⟦- → ⟧1) - right.sum(-1)": _LAST,
        "rest = energy - core.sum((-2, -1)) - left.sum(-1) - right.sum(⟦- → ⟧1)": _LAST,
        "by_row, by_column, by_all = (size.unsqueeze(⟦- → ⟧1) if isinstance(size, Tensor) else size for size in sizes)": _NEW_AXIS,
        "return _bordered(core, left / by_row, right / by_column, (rest.unsqueeze(⟦- → ⟧1) / by_all).squeeze(-1))": _NEW_AXIS,
        "return _bordered(core, left / by_row, right / by_column, (rest.unsqueeze(-1) / by_all).squeeze(⟦- → ⟧1))": _LAST,
        "return (left.unsqueeze(⟦- → ⟧1) * moments * right).sum((-2, -1))": _NEW_AXIS,
        "mean = (mass(moments, (m, n)) / (m * n),) if rounding ⟦> → >=⟧ 0 else ()": _ZERO,
        "weight = trust / torch.where(live, raised, ⟦1.0 → 4.0⟧)": _NOTHING,
        "scale = power_of_two(top, torch.zeros_like(top), beta2=⟦0.0 → 1.0⟧, most=_MOST)": _NOTHING,
        "bottom = torch.cat([right, rest.unsqueeze(⟦- → ⟧1)], -1).unsqueeze(-2)": _NEW_AXIS,
        "bottom = torch.cat([right, rest.unsqueeze(-1)], ⟦- → ⟧1).unsqueeze(-2)": _LAST,
        "outside_from = lost / (outside.unsqueeze(⟦- → ⟧1) if isinstance(outside, Tensor) else outside)": _NEW_AXIS,
        "return _bordered(P, from_outside, outside_from, (1 - outside_from.sum(⟦- → ⟧1)).clamp(min=0))": _LAST,
    },
    "src/sketchy/core/dense.py": {
        "theta = theta * (theta ⟦> → >=⟧ empty * theta[..., :1])": _EQUAL,
    },
    "src/sketchy/core/extremes.py": {
        "return A / scale.to(A.dtype).unsqueeze(-1).unsqueeze(-⟦1 → 2⟧)": "both new axes have the length one",
        "_LOW, _HIGH = 1e-8, 1e8  # matrices with norms between them are not scaled": _EXACT,
        "if readable(A) or A.numel() == 0:": _BOTH_WAYS,
        "if numbers is not None and all(_LOW ⟦< → <=⟧ max(size, (beta2 * old) ** 0.5) < _HIGH for size, old in numbers):": _EXACT,
        "if numbers is not None and all(_LOW < max(size, (beta2 * old) ** 0.5) ⟦< → <=⟧ _HIGH for size, old in numbers):": _EXACT,
        "if numbers is not None and all(_LOW < max(size, (beta2 * old) ⟦** → *⟧ 0.5) < _HIGH for size, old in numbers):": "`power_of_two` decides again, and no less often",
        "if numbers is not None and all(_LOW < max(size, (beta2 * old) ** ⟦0.5 → 2.0⟧) < _HIGH for size, old in numbers):": "`power_of_two` decides again, and no less often",
        "return torch.where((magnitude > 0) & ((magnitude ⟦< → <=⟧ _LOW) | (magnitude > _HIGH)), power, 1.0)": _EXACT,
        "return torch.where((magnitude > 0) & ((magnitude < _LOW) | (magnitude ⟦> → >=⟧ _HIGH)), power, 1.0)": _EXACT,
        "if within(read(found[0].sum(-1)), lowest, ⟦1 → 2⟧ / lowest):": _EXACT,
        "if within(read(found[0].sum(-1)), lowest, 1 ⟦/ → *⟧ lowest):": _EXACT,
        "if not readable(A):": _BOTH_WAYS,
        "power = largest.log2().floor().clamp(max=math.frexp(info.⟦max → min⟧)[1] - 1)  # log2 may round up to one more": "the least number is minus the largest one",
        "power = largest.log2().floor().clamp(max=math.frexp(info.max)[1] - ⟦1 → 2⟧)  # log2 may round up to one more": _EXACT,
        "unit = torch.where(largest > 0, torch.exp2(power), ⟦1.0 → 4.0⟧)": _NOTHING,
    },
    "src/sketchy/core/linalg.py": {
        "failed == 0 and squared_sine ⟦> → >=⟧ _SAFE_SINE**2 and shortest > _UNEQUAL**2 * longest": _EQUAL,
        "failed == 0 and squared_sine > _SAFE_SINE**2 and shortest ⟦> → >=⟧ _UNEQUAL**2 * longest": _EQUAL,
        "return pivots is None or any(low ⟦< → <=⟧ limit * high for *_, low, high in pivots)": _EQUAL,
        "_UNEQUAL = ⟦1e-8 → 4e-08⟧": _TUNING,
        "_GRADED = ⟦10.0 → 40.0⟧": _TUNING,
        "return left_singular(T, T.shape[⟦- → ⟧1])": "T has no more than l singular vectors, so d gives them all",
        "noise = part((yield Scattered(scattered, (U,), dim=d)) / d**⟦0.5 → 2.0⟧, spreads[0])": "its length does not count: it is made orthonormal",
        "noise = part((yield Scattered(scattered, (U,), dim=d)) ⟦/ → *⟧ d**0.5, spreads[0])": "its length does not count: it is made orthonormal",
        "noise = part((yield Scattered(scattered, (U,), dim=d)) / d⟦** → *⟧0.5, spreads[0])": "its length does not count: it is made orthonormal",
        "_SHIFT = ⟦1e-14 → 4e-14⟧  # added to the diagonal of a float64 Gram matrix, relative to its trace": "only columns that depend on others up to rounding become shorter",
        "dim: int = ⟦0 → 1⟧": "it is always given",
        "return Q ⟦* → /⟧ torch.where(R.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(M).unsqueeze(-2)": "signs are 1 or -1",
        "return Q * torch.where(R.diagonal(dim1=-2, dim2=-1) ⟦< → <=⟧ 0, -1.0, 1.0).to(M).unsqueeze(-2)": "a column that depends on those before it has no sign",
        "if M.shape[-2] ⟦> → >=⟧ M.shape[-1]:": _BOTH_WAYS,
        "if M.shape[-2] > M.shape[⟦- → ⟧1]:": _BOTH_WAYS,
        "return left_singular(T, T.shape[-⟦1 → 2⟧])": "T has no more than l singular vectors, so d gives them all",
        "U, sigma = yield from solved(spreads, left_singular, T, rank=T.shape[⟦- → ⟧1])": "T has no more than l singular vectors, so d gives them all",
        "U, sigma = yield from solved(spreads, left_singular, T, rank=T.shape[-⟦1 → 2⟧])": "T has no more than l singular vectors, so d gives them all",
    },
    "src/sketchy/core/operator.py": {
        "outside = torch.where(rho ⟦> → >=⟧ floor, rho, 0.0) if self.outside else torch.zeros_like(rho)": _EQUAL,
        "return torch.where(inside ⟦> → >=⟧ floor, inside, 0.0), outside": _EQUAL,
        "return torch.where(positive, torch.where(positive, mu, ⟦1.0 → 4.0⟧) ** power, 0.0)": "the zero replaces it",
    },
    "src/sketchy/core/polar.py": {
        "X = X.div_(like(torch.where(length > 0, length, ⟦1.0 → 4.0⟧), X))": _NOTHING,
        "P = P / like(torch.where(size > 0, size, ⟦1.0 → 4.0⟧), P)": _NOTHING,
        "tall = rows is not None or (columns is None and X.shape[-2] ⟦> → >=⟧ X.shape[-1])": _BOTH_WAYS,
        "tall = rows is not None or (columns is None and X.shape[⟦- → ⟧2] > X.shape[-1])": _BOTH_WAYS,
        "tall = rows is not None or (columns is None and X.shape[-⟦2 → 3⟧] > X.shape[-1])": _BOTH_WAYS,
        "tall = rows is not None or (columns is None and X.shape[-2] > X.shape[⟦- → ⟧1])": _BOTH_WAYS,
        "tall = rows is not None or (columns is None and X.shape[-2] > X.shape[-⟦1 → 2⟧])": _BOTH_WAYS,
        "P = q @ P @ q if step ⟦< → <=⟧ steps - 1 else P": "the last P is not used",
        "P = q @ P @ q if step < steps ⟦- → +⟧ 1 else P": "the last P is not used",
        "return new.reshape(direction.shape), scale * torch.where(found > 0, length / found, ⟦0.0 → 1.0⟧)": _NOTHING,
        "if rows is not None ⟦and → or⟧ columns is not None:": _BOTH_WAYS,
    },
    "src/sketchy/core/preconditioner.py": {
        "rho = rho.unsqueeze(⟦- → ⟧1)": _NEW_AXIS,
        "values = torch.cat([lam + rho, rho], ⟦- → ⟧1)": _LAST,
        "average = (lam.sum(⟦- → ⟧1) / dim).unsqueeze(-1)": _LAST,
        "average = (lam.sum(-1) / dim).unsqueeze(⟦- → ⟧1)": _NEW_AXIS,
        "values = torch.where(values ⟦> → >=⟧ _NEVER_SEEN * largest, values, average)": _EQUAL,
        "if rounding ⟦> → >=⟧ 0:": _ZERO,
        "values = torch.where(seen, values, ⟦1.0 → 4.0⟧) ** -exponent": "its ratios are taken, and a scale of zero",
        "return (inside / outside).sub_(rest), (outside * seen).squeeze(⟦- → ⟧1)": _LAST,
        "if axis == ⟦1 → 2⟧ and x.dim() == 3:": _BOTH_WAYS,
    },
    "src/sketchy/core/quantize.py": {
        "NEAREST = 2.0⟦** → *⟧20  # a ``fade`` without effect": "any number well above 1 rounds to the nearest",
        "NEAREST = ⟦2.0 → 8.0⟧**20  # a ``fade`` without effect": "any number well above 1 rounds to the nearest",
        "NEAREST = 2.0**⟦20 → 21⟧  # a ``fade`` without effect": "any number well above 1 rounds to the nearest",
        "unit = s.double().⟦amax → amin⟧().clamp(min=torch.finfo(torch.float32).tiny)  # squares must not underflow": "any of the scales will do: squares of their ratios fit float64",
    },
    "src/sketchy/core/rank_one.py": {
        "_SAFE_SHARE = ⟦0.1 → 0.4⟧": "more vectors are orthogonalised twice: the same up to rounding",
        "if bool((beta ⟦< → <=⟧ _SAFE_SHARE * torch.linalg.vector_norm(p, dim=-1)).any()):": _EQUAL,
        "nothing = beta <= ⟦16 → 17⟧ * torch.finfo(x.dtype).eps * size": _ROUNDING,
        "nothing = beta ⟦<= → <⟧ 16 * torch.finfo(x.dtype).eps * size": _EQUAL,
        "z.masked_fill_(z ⟦<= → <⟧ NOISE * lam[:, -1:], 0.0)": _EQUAL,
        "broken = ~S.isfinite().all(-1).⟦all → any⟧(-1)  # LAPACK raises an error on nan and inf": "a bad entry of v is in every row of v vᵀ",
    },
    "src/sketchy/core/regret.py": {
        "size = pulled.square().sum(⟦- → ⟧1)": _LAST,
    },
    "src/sketchy/core/sketch.py": {
        "U = gaussian(dim, rank, seed=0, like=torch.empty(⟦0 → 1⟧, dtype=dtype, device=device))": "only its dtype and device are used",
    },
    "src/sketchy/core/whitening.py": {
        "rho = rho.unsqueeze(⟦- → ⟧1)": _NEW_AXIS,
        "mean = rho + (lam.sum(-1) / dim).unsqueeze(⟦- → ⟧1)": _NEW_AXIS,
        "mean = rho + (lam.sum(⟦- → ⟧1) / dim).unsqueeze(-1)": _LAST,
        "long = self.inside, self.inside - self.outside.unsqueeze(⟦- → ⟧1), self.outside": _NEW_AXIS,
        "rest = (norm.square() - columns.sum(⟦- → ⟧1)).clamp(min=0) * outside.square()": _LAST,
        "return ((columns * inside.square()).sum(⟦- → ⟧1) + rest).sqrt()": _LAST,
        "values = torch.cat([lam + rho, rho], ⟦- → ⟧1) / torch.where(mean > 0, mean, 1.0)": _LAST,
        "values = torch.cat([lam + rho, rho], -1) / torch.where(mean ⟦> → >=⟧ 0, mean, 1.0)": "the next line replaces it",
        "values = torch.cat([lam + rho, rho], -1) / torch.where(mean > 0, mean, ⟦1.0 → 4.0⟧)": _NOTHING,
        "gain = inside - outside.unsqueeze(⟦- → ⟧1)": _NEW_AXIS,
    },
    "src/sketchy/core/tuned/products.py": {
        "return A.baddbmm_(X, (_contiguous(Y) if _collides(A, X.shape[-⟦1 → 2⟧]) else Y).mT)": _BOTH_WAYS,
        "if not A.dim() ⟦== → !=⟧ X.dim() == Y.dim() == 3:": _BOTH_WAYS,
        "return _contiguous(X) if X.shape[-1] ⟦<= → <⟧ _FEW else X": _BOTH_WAYS,
        "if _transposed(A) ⟦and → or⟧ X.shape[-1] <= _FEW:  # with more columns, copying Yᵀ costs more than it saves": _BOTH_WAYS,
    },
    "src/sketchy/frequent_directions.py": {
        "past = self._sketch.eigenvalues[⟦0 → 1⟧]": "`update` itself scales what is extreme in this unit",
        "if (U.mT @ U - torch.eye(sketch.rank).to(U)).abs().max() ⟦> → >=⟧ 1e-3:": _EQUAL,
        "k = columns.shape[⟦- → ⟧1]": _LAST,
        "if k == 1 and self.buffer ⟦> → >=⟧ 1:": "a buffer of one is emptied at once",
        "for chunk in columns.split(max(wide, _LEAST_CHUNK), dim=⟦- → ⟧1):": _LAST,
        "A = torch.stack(self._waiting, dim=⟦- → ⟧1).double()": _NEW_AXIS,
    },
    "src/sketchy/optim/descend.py": {
        "if ⟦any → all⟧(p.dtype != direction.dtype for p in params):": "weights of a stack have one dtype",
        "return descend_in_one_pass_(p, x, move, float(lr) * decay / move if move else ⟦0.0 → 1.0⟧)": "the kernel refuses a rate of zero",
    },
    "src/sketchy/optim/parts/grafts.py": {
        "return ⟦1.0 → 4.0⟧": "moments with a decay of 1 or more are sums",
    },
    "src/sketchy/optim/parts/sketches.py": {
        'stack.own("turn"), list(good.long().unbind()) if good is not None ⟦and → or⟧ known else 1': "the same on a CPU; on an accelerator it would wait for the device",
    },
}


def is_same(mutant: Mutant) -> bool:
    """Whether the mutant is listed."""
    listed = SAME.get(mutant.file, {})
    return mutant.change in listed or mutant.unchanged in listed


def outdated(mutants: Iterable[Mutant]) -> Iterator[str]:
    """What is listed and not among all ``mutants``, because the code has changed."""
    found = {(m.file, text) for m in mutants for text in (m.change, m.unchanged)}
    yield from (f"{file}: {text}" for file, own in SAME.items() for text in own if (file, text) not in found)

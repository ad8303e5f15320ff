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
_ROUNDING = "a limit below which a number counts as a rounding error; its neighbours are as good"

SAME: dict[str, dict[str, str]] = {
    "src/sketchy/core/arguments.py": {
        "return torch.empty(⟦0 → 1⟧, device=device).device": "only its device is used",
    },
    "src/sketchy/core/extremes.py": {
        "return A / scale.to(A.dtype).unsqueeze(-1).unsqueeze(-⟦1 → 2⟧)": "both new axes have the length one",
    },
    "src/sketchy/core/linalg.py": {
        "prime = 2**31 ⟦- → +⟧ 1": "any numbers that fill the interval evenly will do",
        "for multiplier in (48271, 69621, ⟦16807 → 16808⟧):": "any numbers that fill the interval evenly will do",
        "failed == 0 and squared_sine ⟦> → >=⟧ _SAFE_SINE**2 and shortest > _UNEQUAL**2 * longest": _EQUAL,
        "failed == 0 and squared_sine > _SAFE_SINE**2 and shortest ⟦> → >=⟧ _UNEQUAL**2 * longest": _EQUAL,
        "return pivots is None or any(low ⟦< → <=⟧ limit * high for *_, low, high in pivots)": _EQUAL,
        "_UNEQUAL = ⟦1e-8 → 4e-08⟧": _TUNING,
        "_GRADED = ⟦10.0 → 40.0⟧": _TUNING,
        "return left_singular(T, T.shape[⟦- → ⟧1])": "T has no more than l singular vectors, so d gives them all",
        "noise = part((yield Scattered(scattered, (U,), dim=d)) / d**⟦0.5 → 2.0⟧, spreads[0])": "its length does not count: it is made orthonormal",
        "noise = part((yield Scattered(scattered, (U,), dim=d)) ⟦/ → *⟧ d**0.5, spreads[0])": "its length does not count: it is made orthonormal",
        "noise = part((yield Scattered(scattered, (U,), dim=d)) / d⟦** → *⟧0.5, spreads[0])": "its length does not count: it is made orthonormal",
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
    },
    "src/sketchy/core/tuned/products.py": {
        "return A.baddbmm_(X, (_contiguous(Y) if _collides(A, X.shape[-⟦1 → 2⟧]) else Y).mT)": _BOTH_WAYS,
        "if not A.dim() ⟦== → !=⟧ X.dim() == Y.dim() == 3:": _BOTH_WAYS,
        "return _contiguous(X) if X.shape[-1] ⟦<= → <⟧ _FEW else X": _BOTH_WAYS,
        "if _transposed(A) ⟦and → or⟧ X.shape[-1] <= _FEW:  # with more columns, copying Yᵀ costs more than it saves": _BOTH_WAYS,
    },
    "src/sketchy/frequent_directions.py": {
        "past = self._sketch.eigenvalues[⟦0 → 1⟧]": "`update` itself scales what is extreme in this unit",
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

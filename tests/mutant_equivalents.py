"""Mutants that change no result, with the reason: by file, and by the line with its ⟦change⟧.

A line without a ⟦change⟧ stands for all its mutants.
"""

from collections.abc import Iterable, Iterator

from mutant_changes import Mutant

# ruff: noqa: E501 - lines of code are quoted whole

_LAST = "there are only two axes, so the second is the last"
_NEW_AXIS = "there is only one axis, so a new second one is the last"
_EQUAL = "differs only where a computed number equals the limit exactly; there both ways are right"
_ONE = "all axes but the first have the length one"
_SYMMETRIC = "the matrix is symmetric"
_EVEN = "any numbers that fill the interval evenly will do"
_PANELS = "panels cut the work, and change no result"
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
        "if numbers is not None and all(_LOW ⟦< → <=⟧ max(size, (beta2 * old) ** 0.5) < _HIGH for size, old in numbers):": _EXACT,
        "if numbers is not None and all(_LOW < max(size, (beta2 * old) ** 0.5) ⟦< → <=⟧ _HIGH for size, old in numbers):": _EXACT,
        "if numbers is not None and all(_LOW < max(size, (beta2 * old) ⟦** → *⟧ 0.5) < _HIGH for size, old in numbers):": "`power_of_two` decides again, and no less often",
        "if numbers is not None and all(_LOW < max(size, (beta2 * old) ** ⟦0.5 → 2.0⟧) < _HIGH for size, old in numbers):": "`power_of_two` decides again, and no less often",
        "return torch.where((magnitude > 0) & ((magnitude ⟦< → <=⟧ _LOW) | (magnitude > _HIGH)), power, 1.0)": _EXACT,
        "return torch.where((magnitude > 0) & ((magnitude < _LOW) | (magnitude ⟦> → >=⟧ _HIGH)), power, 1.0)": _EXACT,
        "if within(read(whole.sum(-1)), lowest, ⟦1 → 2⟧ / lowest):": _EXACT,
        "if within(read(whole.sum(-1)), lowest, 1 ⟦/ → *⟧ lowest):": _EXACT,
        "if not readable(A):": _BOTH_WAYS,
        "most = math.frexp(info.⟦max → min⟧)[1] - 1  # log2 may round up to one more": "the least number is minus the largest one",
        "most = math.frexp(info.max)[1] - ⟦1 → 2⟧  # log2 may round up to one more": _EXACT,
        "unit = torch.where(largest > 0, torch.exp2(largest.log2().floor().clamp(max=most)), ⟦1.0 → 4.0⟧)": _NOTHING,
    },
    "src/sketchy/core/linalg.py": {
        "failed == 0 and squared_sine ⟦> → >=⟧ SAFE_SINE**2 and shortest > _UNEQUAL**2 * longest": _EQUAL,
        "failed == 0 and squared_sine > SAFE_SINE**2 and shortest ⟦> → >=⟧ _UNEQUAL**2 * longest": _EQUAL,
        "return pivots is None or any(low ⟦< → <=⟧ limit * high for *_, low, high in pivots)": _EQUAL,
        "_UNEQUAL = ⟦1e-8 → 4e-08⟧": _TUNING,
        "_GRADED = ⟦10.0 → 40.0⟧": _TUNING,
        "return Singular(*left_singular(T, T.shape[⟦- → ⟧1]))": "T has no more than l singular vectors, so d gives them all",
        "return Singular(*left_singular(T, T.shape[-⟦1 → 2⟧]))": "T has no more than l singular vectors, so d gives them all",
        "filled = yield from launch(_with_noise, U, live, noise.expand_as(U), size=d**-0.5)": "its length does not count: it is made orthonormal",
        "dim: int = ⟦0 → 1⟧": "it is always given",
        "return Q ⟦* → /⟧ torch.where(R.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0).to(M).unsqueeze(-2)": "signs are 1 or -1",
        "return Q * torch.where(R.diagonal(dim1=-2, dim2=-1) ⟦< → <=⟧ 0, -1.0, 1.0).to(M).unsqueeze(-2)": "a column that depends on those before it has no sign",
        "if M.shape[-2] ⟦> → >=⟧ M.shape[-1]:": _BOTH_WAYS,
        "if M.shape[-2] > M.shape[⟦- → ⟧1]:": _BOTH_WAYS,
        "U, sigma = yield from solved(spreads, left_singular, T, rank=T.shape[⟦- → ⟧1])": "T has no more than l singular vectors, so d gives them all",
        "U, sigma = yield from solved(spreads, left_singular, T, rank=T.shape[-⟦1 → 2⟧])": "T has no more than l singular vectors, so d gives them all",
    },
    "src/sketchy/core/operator.py": {
        "outside = torch.where(rho ⟦> → >=⟧ floor, rho, 0.0) if self.outside else torch.zeros_like(rho)": _EQUAL,
        "return torch.where(inside ⟦> → >=⟧ floor, inside, 0.0), outside": _EQUAL,
        "return torch.where(positive, torch.where(positive, mu, ⟦1.0 → 4.0⟧) ** power, 0.0)": "the zero replaces it",
    },
    "src/sketchy/core/members.py": {
        "while step ⟦< → <=⟧ self.count and self.index % step == 0:": "a last round, in which nobody has a partner",
    },
    "src/sketchy/core/moments.py": {
        "most = entries.amax(⟦- → ⟧1) if entries.shape[1] else root.new_zeros(len(root))  # nothing may lie here": _LAST,
        "return x / like(torch.where(length > 0, length, ⟦1.0 → 4.0⟧), x)": _NOTHING,
        "whole = yield from total(rows.sum(⟦- → ⟧1, keepdim=True), spreads[0])": _LAST,
        "share = columns / torch.where(whole > 0, whole, ⟦1.0 → 4.0⟧)": _NOTHING,
        "damped = root + damping.unsqueeze(⟦- → ⟧1)": _NEW_AXIS,
        "share = size(rows.shape[⟦- → ⟧1], spread) / entries": _LAST,
        "return _damped(root, eps * most) * filled.sqrt().unsqueeze(⟦- → ⟧1)": _NEW_AXIS,
        "return (y * like(torch.where(length > 0, wanted / length, ⟦0.0 → 1.0⟧), y)).reshape(x.shape)": _NOTHING,
        "return lengths.square().sum(⟦- → ⟧1)": _LAST,
        "return (lengths * a).square().sum(⟦- → ⟧1)": _LAST,
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
        "_ROUNDING = 2.0**-⟦10 → 11⟧": "a limit well above all rounding errors; its neighbours are as good",
        "_STEP, _ROW, _COLUMN = ⟦0.6180339887498949 → 2.4721359549995796⟧, 0.7548776662466927, 0.5698402909980532": _EVEN,
        "_STEP, _ROW, _COLUMN = 0.6180339887498949, ⟦0.7548776662466927 → 3.019510664986771⟧, 0.5698402909980532": _EVEN,
        "_STEP, _ROW, _COLUMN = 0.6180339887498949, 0.7548776662466927, ⟦0.5698402909980532 → 2.279361163992213⟧": _EVEN,
        "for start, count, by in ((first, rows, _ROW), (⟦0 → 1⟧, columns, _COLUMN))": _EVEN,
        "phase = (step.double().reshape(-1, 1) ⟦* → /⟧ _STEP + down).frac_().float()": "1 / _STEP is 1 + _STEP (golden ratio)",
        "return (phase.unsqueeze(-1) + across.float()).frac_().mul_(1 - ⟦2 → 3⟧ * _ROUNDING).add_(_ROUNDING)": "off the upper end by twice as much, which is as good",
    },
    "src/sketchy/core/rank_one.py": {
        "_SAFE_SHARE = ⟦0.1 → 0.4⟧": "more vectors are orthogonalised twice: the same up to rounding",
        "if bool((beta ⟦< → <=⟧ _SAFE_SHARE * torch.linalg.vector_norm(p, dim=-1)).any()):": _EQUAL,
        "nothing = beta <= ⟦16 → 17⟧ * torch.finfo(x.dtype).eps * size": _ROUNDING,
        "nothing = beta ⟦<= → <⟧ 16 * torch.finfo(x.dtype).eps * size": _EQUAL,
        "z.masked_fill_(z ⟦<= → <⟧ NOISE * lam[:, -1:], 0.0)": _EQUAL,
        "NOISE = ⟦1e-14 → 4e-14⟧": _ROUNDING,
        "if bool((beta < _SAFE_SHARE * torch.linalg.vector_norm(p, dim=⟦- → ⟧1)).any()):": "compares with the largest entry of p instead of its length: another safe share",
        "if bool((beta < _SAFE_SHARE * torch.linalg.vector_norm(p, dim=-⟦1 → 2⟧)).any()):": "compares with the largest entry of p instead of its length: another safe share",
        "size = torch.linalg.vector_norm(x, dim=⟦- → ⟧1, keepdim=True)": _LAST,
        "beta, rest = beta.masked_fill(nothing, 0.0), rest.masked_fill(nothing.unsqueeze(⟦- → ⟧1), 0.0)": _ONE,
        "beta, rest = beta.masked_fill(nothing, 0.0), rest.masked_fill(nothing.unsqueeze(-⟦1 → 2⟧), 0.0)": _ONE,
        "torch.div(rest, beta.clamp(min=least).unsqueeze(⟦- → ⟧1), out=basis[:, :1])": _ONE,
        "torch.div(rest, beta.clamp(min=least).unsqueeze(-⟦1 → 2⟧), out=basis[:, :1])": _ONE,
        "broken = ~S.isfinite().all(⟦- → ⟧1).all(-1)  # LAPACK raises an error on nan and inf": _SYMMETRIC,
        "broken = ~S.isfinite().all(-⟦1 → 2⟧).all(-1)  # LAPACK raises an error on nan and inf": _SYMMETRIC,
        "broken = ~S.isfinite().all(-1).all(⟦- → ⟧1)  # LAPACK raises an error on nan and inf": _LAST,
        'lam, Q = torch.linalg.eigh(S.masked_fill(broken.reshape(-1, 1, 1), ⟦0.0 → 1.0⟧), UPLO="U")': "the results of broken matrices are replaced by nan",
    },
    "src/sketchy/core/regret.py": {
        "size = pulled.square().sum(⟦- → ⟧1)": _LAST,
        "c = ((pulled * gradients).sum(⟦- → ⟧1) / size.clamp(min=torch.finfo(size.dtype).tiny)).clamp(min=0)": _LAST,
        "rise = torch.linalg.eigvalsh(torch.diff(H, dim=0, prepend=torch.zeros_like(H[:⟦1 → 2⟧])))[:, -1].clamp(min=0)": "a second zero in front has no difference to the first",
        "mismatch = torch.linalg.vector_norm(c.unsqueeze(⟦- → ⟧1) * pulled - gradients, dim=-1)": _NEW_AXIS,
        "mismatch = torch.linalg.vector_norm(c.unsqueeze(-1) * pulled - gradients, dim=⟦- → ⟧1)": _LAST,
        "return (c * (pulled * steps).sum(⟦- → ⟧1)).sum() / 2 + diameter * mismatch.sum() + diameter**2 / 2 * rise.sum()": _LAST,
        "C = gradients.mT @ (weights.unsqueeze(⟦- → ⟧1) * gradients)": _NEW_AXIS,
        "energy = (weights - curvature).clamp(min=0) @ gradients.square().sum(⟦- → ⟧1)": _LAST,
    },
    "src/sketchy/core/row_norms.py": {
        "_LEAST = ⟦1e-100 → 4e-100⟧  # of the scale of a direction, where it is squared": "a limit that keeps squares in range; its neighbours are as good",
        "unit = scale.clamp(_LEAST, ⟦1 → 2⟧ / _LEAST) * (scale > 0)": "a limit that keeps squares in range; its neighbours are as good",
        "moment = torch.lerp(moment, lengths.square() * factor.unsqueeze(⟦- → ⟧1), weight.unsqueeze(-1))": _NEW_AXIS,
        "moment = torch.lerp(moment, lengths.square() * factor.unsqueeze(-1), weight.unsqueeze(⟦- → ⟧1))": _NEW_AXIS,
        "a = (moment ⟦/ → *⟧ correction(count.clamp(min=1), decay).unsqueeze(-1)).sqrt_()": "only ratios of a to its mean count, and the correction cancels",
        "a = (moment / correction(count.clamp(min=⟦1 → 2⟧), decay).unsqueeze(-1)).sqrt_()": "only ratios of a to its mean count, and the correction cancels",
        "a = (moment / correction(count.clamp(min=1), decay).unsqueeze(⟦- → ⟧1)).sqrt_()": _NEW_AXIS,
        "return moment, a, a.sum(⟦- → ⟧1), weight": _LAST,
        "mean = (sums / m).unsqueeze(⟦- → ⟧1)": _NEW_AXIS,
        "weights = (mean / torch.add(a, mean, alpha=_ROW_EPS)).masked_fill_(mean * weight.unsqueeze(⟦- → ⟧1) == 0, 1.0)": _NEW_AXIS,
        "return weights, energy.sum(⟦- → ⟧1), torch.linalg.vecdot(energy, weights.square())": _LAST,
    },
    "src/sketchy/core/sketch.py": {
        "MOST = ⟦300 → 301⟧  # units are at most 2^±MOST: squares of them, and of float32 numbers divided by them, fit float64": _EXACT,
        "U = gaussian(dim, rank, seed=0, like=torch.empty(⟦0 → 1⟧, dtype=dtype, device=device))": "only its dtype and device are used",
        "unit = power_of_two(lam[..., 0].sqrt(), first.eigenvalues[..., 0], beta2=⟦1.0 → 4.0⟧, most=MOST)": "any power of two near these sizes will do",
    },
    "src/sketchy/core/spread.py": {
        "return (yield from total(energy.sum(⟦- → ⟧1), *spreads)).sqrt()": _LAST,
        "ranks: Ranks = Ranks((), 0, 1)": "never used: `solved` gives the ranks",
        "known = len(arguments[0]) ⟦> → >=⟧ ranks.index": "the next rank takes none of the matrices instead of the first, and gives nothing either",
        "own = [x[rows] if known else x[:⟦1 → 2⟧] for x in arguments[:count]]": "only the shapes of its results count",
        "return _shared(found, rows if known else slice(⟦0 → 1⟧, 0), len(arguments[0]), ranks)": "both are empty",
    },
    "src/sketchy/core/tasks.py": {
        "return numbers is not None and all(low ⟦< → <=⟧ x < high for row in numbers for x in row)": _EQUAL,
        "return numbers is not None and all(low < x ⟦< → <=⟧ high for row in numbers for x in row)": _EQUAL,
        "return values[⟦0 → 1⟧]": "they are all equal, and there are at least two",
    },
    "src/sketchy/core/whitening.py": {
        "rho = rho.unsqueeze(⟦- → ⟧1)": _NEW_AXIS,
        "mean = rho + (lam.sum(-1) / dim).unsqueeze(⟦- → ⟧1)": _NEW_AXIS,
        "mean = rho + (lam.sum(⟦- → ⟧1) / dim).unsqueeze(-1)": _LAST,
        "long = self.inside, self.inside - self.outside.unsqueeze(⟦- → ⟧1), self.outside": _NEW_AXIS,
        "rest = (norm.square() - columns.sum(⟦- → ⟧1)).clamp(min=0) * outside.square()": _LAST,
        "return ((columns * inside.square()).sum(⟦- → ⟧1) + rest).sqrt(), norm * outside": _LAST,
        "values = torch.cat([lam + rho, rho], ⟦- → ⟧1) / torch.where(mean > 0, mean, 1.0)": _LAST,
        "values = torch.cat([lam + rho, rho], -1) / torch.where(mean ⟦> → >=⟧ 0, mean, 1.0)": "the next line replaces it",
        "values = torch.cat([lam + rho, rho], -1) / torch.where(mean > 0, mean, ⟦1.0 → 4.0⟧)": _NOTHING,
        "gain = inside - outside.unsqueeze(⟦- → ⟧1)": _NEW_AXIS,
    },
    "src/sketchy/core/tuned/descent.py": {
        "nesterov=⟦False → True⟧,": "used only with momentum, which is 0",
        'if p.device.type ⟦!= → ==⟧ "cpu" or p.dtype != x.dtype or not (p.is_contiguous() and x.is_contiguous()):': _BOTH_WAYS,
        "if not ⟦1e-20 → 4e-20⟧ < c < 1e20:": "a moderate factor; the plain operations take the others, to the same numbers up to rounding",
        "if not 1e-20 ⟦< → <=⟧ c < 1e20:": "a moderate factor; the plain operations take the others, to the same numbers up to rounding",
        "if not 1e-20 < c ⟦< → <=⟧ 1e20:": "a moderate factor; the plain operations take the others, to the same numbers up to rounding",
        "if not 1e-20 < c < ⟦1e20 → 4e+20⟧:": "a moderate factor; the plain operations take the others, to the same numbers up to rounding",
        "dampening=⟦0.0 → 1.0⟧,": "used only with momentum, which is 0",
        "is_first_step=⟦False → True⟧,": "used only with momentum, which is 0",
    },
    "src/sketchy/core/tuned/panels.py": {
        '⟦or → and⟧ x.device.type != "cpu"': _PANELS,
        "⟦or → and⟧ x.dim() < 2": _PANELS,
        "or x.nbytes ⟦<= → <⟧ sizes.PANEL_BYTES": _PANELS,
        "or x.dim() ⟦< → <=⟧ 2": _PANELS,
        "or x.dim() < ⟦2 → 3⟧": _PANELS,
        "if size ⟦<= → <⟧ wanted:": _PANELS,
        "height = max(⟦1 → 2⟧, x.shape[1] * wanted // size)": _PANELS,
    },
    "src/sketchy/core/tuned/products.py": {
        "return A.baddbmm_(X, (_contiguous(Y) if _collides(A, X.shape[-⟦1 → 2⟧]) else Y).mT)": _BOTH_WAYS,
        "if not A.dim() ⟦== → !=⟧ X.dim() == Y.dim() == 3:": _BOTH_WAYS,
        "return _contiguous(X) if X.shape[-1] ⟦<= → <⟧ _FEW else X": _BOTH_WAYS,
        "if _transposed(A) ⟦and → or⟧ X.shape[-1] <= _FEW:  # with more columns, copying Yᵀ costs more than it saves": _BOTH_WAYS,
        "_ROWS = ⟦512 → 513⟧": _BOTH_WAYS,
        "_PADDING = ⟦8 → 9⟧": _BOTH_WAYS,
        "return _contiguous(X) if X.shape[-⟦1 → 2⟧] <= _FEW else X": _BOTH_WAYS,
        "if not A.dim() == X.dim() ⟦== → !=⟧ Y.dim() == 3:": _BOTH_WAYS,
        "if _transposed(A) and X.shape[-⟦1 → 2⟧] <= _FEW:  # with more columns, copying Yᵀ costs more than it saves": _BOTH_WAYS,
        "half = l // ⟦2 → 3⟧  # three quarters of the product are enough": _BOTH_WAYS,
        "l = L.shape[-⟦1 → 2⟧]": "the triangle is square",
        "W, half = L.new_empty(L.shape), l // ⟦2 → 3⟧  # half of the product is enough": _BOTH_WAYS,
        "if A.dim() == X.dim() == ⟦3 → 4⟧ and A.shape[-2] > _ROWS and _collides(A, X.shape[-1]):": _BOTH_WAYS,
        "if A.dim() == X.dim() == 3 and A.shape[-2] > _ROWS and _collides(A, X.shape[-⟦1 → 2⟧]):": _BOTH_WAYS,
        "return X[0].contiguous().unsqueeze(0) if X.dim() ⟦== → !=⟧ 3 and X.shape[0] == 1 else X.contiguous()": _BOTH_WAYS,
        "return X[0].contiguous().unsqueeze(0) if X.dim() == ⟦3 → 4⟧ and X.shape[0] == 1 else X.contiguous()": _BOTH_WAYS,
        'return A.device.type == "cpu" and columns <= _FEW and A.stride(-2) * A.element_size() % _PAGE == 0': _BOTH_WAYS,
        "return A.stride(-1) ⟦!= → ==⟧ 1 and A.stride(-2) == 1": _BOTH_WAYS,
        "return A.stride(-1) != ⟦1 → 2⟧ and A.stride(-2) == 1": _BOTH_WAYS,
        "return A.stride(-1) != 1 ⟦and → or⟧ A.stride(-2) == 1": _BOTH_WAYS,
        "return A.stride(-1) != 1 and A.stride(-2) ⟦== → !=⟧ 1": _BOTH_WAYS,
        "_PAGE = ⟦4096 → 4097⟧": _BOTH_WAYS,
        "_FEW = ⟦128 → 129⟧": _BOTH_WAYS,
        "_POWER = ⟦128 → 129⟧": _BOTH_WAYS,
        "return _contiguous(X) if X.shape[⟦- → ⟧1] <= _FEW else X": _BOTH_WAYS,
        "if not A.dim() == X.dim() == Y.dim() == ⟦3 → 4⟧:": _BOTH_WAYS,
        "if _transposed(A) and X.shape[⟦- → ⟧1] <= _FEW:  # with more columns, copying Yᵀ costs more than it saves": _BOTH_WAYS,
        "if _transposed(A) and X.shape[-1] ⟦<= → <⟧ _FEW:  # with more columns, copying Yᵀ costs more than it saves": _BOTH_WAYS,
        "return A.baddbmm_(X, (_contiguous(Y) if _collides(A, X.shape[⟦- → ⟧1]) else Y).mT)": _BOTH_WAYS,
        "l = L.shape[⟦- → ⟧1]": "the triangle is square",
        "if A.dim() ⟦== → !=⟧ X.dim() == 3 and A.shape[-2] > _ROWS and _collides(A, X.shape[-1]):": _BOTH_WAYS,
        "if A.dim() == X.dim() == 3 and A.shape[-⟦2 → 3⟧] > _ROWS and _collides(A, X.shape[-1]):": _BOTH_WAYS,
        "if A.dim() == X.dim() == 3 and A.shape[-2] > _ROWS and _collides(A, X.shape[⟦- → ⟧1]):": _BOTH_WAYS,
        "return A.stride(⟦- → ⟧1) != 1 and A.stride(-2) == 1": _BOTH_WAYS,
        "return A.stride(-⟦1 → 2⟧) != 1 and A.stride(-2) == 1": _BOTH_WAYS,
        "return A.stride(-1) != 1 and A.stride(-2) == ⟦1 → 2⟧": _BOTH_WAYS,
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
        "if isinstance(decay, Tensor) or decay ⟦> → >=⟧ 0:": _BOTH_WAYS,
        "if ⟦any → all⟧(p.dtype != direction.dtype for p in params):": "weights of a stack have one dtype",
    },
    "src/sketchy/optim/stack.py": {
        "if codec is not None or len(self.params) ⟦> → >=⟧ 1:": "a value is copied to itself",
        "alone = len(own) == ⟦1 → 2⟧ and value.shape == own[0].shape": _BOTH_WAYS,
        "energy = norm.reshape(len(self.params), self.layout.count).square().sum(⟦- → ⟧1)": _LAST,
        "alone = len(own) ⟦== → !=⟧ 1 and value.shape == own[0].shape": _BOTH_WAYS,
        "return rows, rows.sum(⟦- → ⟧1)": _LAST,
        "if within((yield Request(read, (size,))), ⟦- → ⟧1.0, limit):  # false for NaN": "gradients that are known to be good are treated like others, to the same numbers at another cost",
        "if within((yield Request(read, (size,))), -⟦1.0 → 4.0⟧, limit):  # false for NaN": "norms are not negative",
        "good = size ⟦< → <=⟧ limit  # false for NaN": _EQUAL,
        "if layout.count ⟦> → >=⟧ 1:": _BOTH_WAYS,
        "return which.unsqueeze(⟦- → ⟧1).expand(-1, len(x) // len(which)).reshape(-1, *[1] * (x.dim() - 1))": _NEW_AXIS,
    },
    "src/sketchy/optim/step.py": {
        'steps = (yield Request(read, (stack.steps,))) if stack.group["start_step"] > ⟦1 → 2⟧ else None': _BOTH_WAYS,
        'steps = (yield Request(read, (stack.steps,))) if stack.group["start_step"] ⟦> → >=⟧ 1 else None': _BOTH_WAYS,
        "if first ⟦> → >=⟧ 1 and plan.waits and not within(steps, first - 0.5, math.inf):": _BOTH_WAYS,
        "if first > 1 and plan.waits and not within(steps, first ⟦- → +⟧ 0.5, math.inf):": _BOTH_WAYS,
        "if within(steps, ⟦- → ⟧math.inf, first - 0.5):": _BOTH_WAYS,
        "if within(steps, -math.inf, first - ⟦0.5 → 2.0⟧):": _BOTH_WAYS,
    },
    "src/sketchy/optim/parts/entry_moments.py": {
        "least_axes: ClassVar[int] = ⟦0 → 1⟧": "only that of the sketched path is asked",
    },
    "src/sketchy/optim/parts/momentum.py": {
        "_ROUNDING = 2 / ⟦127 → 128⟧": "an estimate of rounding errors; its neighbours are as good",
        'bits = {"int8": ⟦8 → 9⟧, "int4": 4}.get(weight.options[option])': "any number but 4 means 8 bits",
    },
    "src/sketchy/optim/parts/grafts.py": {
        "by_columns: ClassVar[bool] = ⟦False → True⟧": "sums that are not used",
        "return ⟦1.0 → 4.0⟧": "moments with a decay of 1 or more are sums",
        'return state["row_moment"].sum(⟦- → ⟧1) / weights(options["betas"][1])[1]': _LAST,
    },
    "src/sketchy/optim/parts/sketches.py": {
        'if ⟦all → any⟧(axis.exact for axis in self.live) or stack.group["solver"] == "exact":': _BOTH_WAYS,
        "return None if exact is None or self.whitened else exact.stored(state).eigenvalues.sum(⟦- → ⟧1)": _LAST,
        "whitened: bool = ⟦False → True⟧  # whether each of the two axes is whitened by the other": "the default of weights without sketches, of which none can be whitened",
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

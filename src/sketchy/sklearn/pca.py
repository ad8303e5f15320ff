"""`FrequentDirectionsPCA`: PCA of a stream as a scikit-learn estimator, with certified variances.

What is sketched is the scatter S of the centred rows, in one pass: see `sketchy.sklearn.moments`. So B Bᵀ ⪯ S
and ‖S - B Bᵀ‖ <= error_bound, and by Weyl's inequality the i-th eigenvalues obey

    λ_i(B Bᵀ) <= λ_i(S) <= λ_i(B Bᵀ) + error_bound.

If the rank is the number of features, B Bᵀ + ρ I = S, and both bounds are λ_i(B Bᵀ) + ρ.

Rounding is counted, too. The sketch adds r ‖S‖ for each update (`core.certificate.rounding`). Means and
differences are float64, and relative to the mean of the first block, so that a large common offset of the
rows costs no digits. So for the matrix E of the errors of what is sketched, ‖E‖_F <= u √(Σ ‖x - origin‖² +
tr S), where u is eps of the dtype, and a few eps of float64 for each row of a block (a sum over it) and for
each block (the running mean). It changes S by at most 2 √‖S‖ ‖E‖ + ‖E‖².
"""

import copy
from typing import Any, Self

import numpy as np
import torch
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import gen_batches
from sklearn.utils.extmath import svd_flip
from sklearn.utils.validation import check_array, check_is_fitted, validate_data

from sketchy.core.arguments import check_count
from sketchy.core.certificate import rounding
from sketchy.core.members import members
from sketchy.frequent_directions import FrequentDirections
from sketchy.sklearn.moments import Moments

_DTYPES = (np.float64, np.float32)
_LEAST_RANK = 64  # by default
_FEW = 4  # eps of float64, for each row of a block and each block: a sum, a difference, a product, a root


class FrequentDirectionsPCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """PCA of rows that come in any number of batches, in rank x n_features numbers, with bounds of its error.

    A drop-in for `sklearn.decomposition.IncrementalPCA`, on `sketchy.FrequentDirections`. The results are
    the same to the bit whenever the same batches come in the same order. Sparse rows are made dense a few at
    a time, never all. The dtype of the first rows, float32 or float64, is that of the sketch.

    Args:
        n_components: number of components; None means all that the sketch has: rank - 1, or all
            features if the rank is their number.
        rank: columns of the sketch. Errors fall with it: with the exact solver ``error_bound_`` is, but for
            rounding, at most (sum of the variances after the j-th) / (rank - j), for every j < rank. None
            means 64, or 2 * n_components if that is more. It is clipped to the number of features.
        solver: "exact", or "subspace", which is faster. The bounds of "subspace" fail with a probability of
            at most 1e-6 for each update.

    Attributes:
        components_: (n_components, n_features), orthonormal; the largest entry of each is positive.
        explained_variance_: (n_components,), estimates of the largest eigenvalues of the covariance of all
            rows: those of (B Bᵀ + ρ I) / (n_samples_seen_ - 1).
        explained_variance_bounds_: (2, n_components), below and above these eigenvalues.
        explained_variance_ratio_: explained_variance_ / total_variance_.
        total_variance_: the trace of the covariance, without an error of the sketch.
        error_bound_: ‖C - B Bᵀ / (n_samples_seen_ - 1)‖ is at most this, in the operator norm, where C is
            the covariance of all rows. So is the error of the variance in any direction.
        mean_: (n_features,), of all rows.
        n_components_: the number of components.
        n_samples_seen_: the number of rows.
        sketch_: the `FrequentDirections` B of the centred rows. Batches of at least ``rank`` rows are
            fastest; single rows wait in its buffer, which reading any result empties.

    >>> import numpy as np
    >>> rows = np.array([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]]) + 7
    >>> pca = FrequentDirectionsPCA(1).partial_fit(rows[:1]).partial_fit(rows[1:])
    >>> pca.components_.round(3), pca.explained_variance_.round(3)  # 18 / (4 - 1)
    (array([[1., 0.]]), array([6.]))
    >>> low, high = pca.explained_variance_bounds_
    >>> bool(low[0] <= 6 <= high[0]), bool(high[0] - low[0] < 1e-9)
    (True, True)
    """

    def __init__(
        self, n_components: int | None = None, *, rank: int | None = None, solver: str = "exact"
    ) -> None:
        self.n_components = n_components
        self.rank = rank
        self.solver = solver

    # -- fitting ---------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None) -> Self:
        """Forget what was seen, and fit these rows."""
        return self._take(X, anew=True)

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        """Add these rows, any number of them. ``y`` is ignored."""
        return self._take(X, anew=not self.__sklearn_is_fitted__())

    def merge(self, other: "FrequentDirectionsPCA") -> "FrequentDirectionsPCA":
        """A new estimator of the rows of both; bounds add up. Neither of the two changes."""
        if not isinstance(other, FrequentDirectionsPCA):
            raise TypeError(f"other={type(other).__name__}: must be a FrequentDirectionsPCA")
        for each in (self, other):
            check_is_fitted(each)
        _check_alike(self._agreed(), other._agreed(), "other", "like this one")
        merged = copy.copy(self)
        merged._seen, between = self._seen.join(other._seen)
        merged.sketch_ = self.sketch_.merge(other.sketch_)
        merged.sketch_.update(self._columns(between[None]))
        return merged

    def all_merge(self, group: Any = None) -> "FrequentDirectionsPCA":
        """One estimator of the rows of all ranks of a `torch.distributed` group, the same on all of them.

        All ranks call it, with estimators that have seen rows. See `FrequentDirections.all_merge`.
        """
        ranks = members(group)
        found: list[Any] = ranks.objects(
            (self._agreed(), self._seen) if self.__sklearn_is_fitted__() else None
        )
        for i, one in enumerate(found):
            if one is None:
                raise ValueError(f"rank {i} of the group has seen no rows: must be fitted before all_merge")
            _check_alike(found[0][0], one[0], f"rank {i} of the group", "as on rank 0")
        merged, own = copy.copy(self), copy.copy(self.sketch_)
        merged._seen = found[0][1]
        for i, (_, seen) in enumerate(found[1:], 1):
            merged._seen, between = merged._seen.join(seen)
            if i == ranks.index:
                own.update(self._columns(between[None]))
        merged.sketch_ = own.all_merge(group)
        return merged

    def _take(self, X: Any, *, anew: bool) -> Self:
        X = validate_data(self, X, accept_sparse="csr", dtype=_DTYPES, reset=anew)
        if anew:
            self._start(X)
        for batch in gen_batches(X.shape[0], self._width):
            self._add(_dense(X[batch]))
        return self

    def _start(self, X: Any) -> None:
        """Check the parameters, and make an empty sketch for rows like X."""
        features, components = X.shape[1], self.n_components
        if components is not None:
            components = check_count("n_components", components, 1, "at least 1, or None for all")
        default = max(_LEAST_RANK, 2 * (components or 0))
        sketch = FrequentDirections(
            features,
            default if self.rank is None else self.rank,
            solver=self.solver,
            dtype=torch.float32 if X.dtype == np.float32 else torch.float64,
            device="cpu",
        )
        most = features if sketch.rank == features else sketch.rank - 1
        if components is not None and components > most:
            why = "the number of features" if most == features else "rank - 1: give a larger rank"
            raise ValueError(f"n_components={components}: must be at most {most}, {why}")
        self.n_components_, self.sketch_ = most if components is None else components, sketch
        self._seen = Moments.nothing(_dense(X[: self._width]).mean(0, dtype=float))

    @property
    def _width(self) -> int:
        """The most rows in a block. With b they are one or two updates, and memory stays small."""
        return 4 * max(self.sketch_.rank, 16) - 1

    def _add(self, rows: Any) -> None:
        """Add one block of rows: centred, and with them the difference of the means."""
        count, features = rows.shape
        vectors = np.empty((count + 1, features))
        centred = np.subtract(rows, self._seen.origin, out=vectors[:count])
        energy, mean = float(np.vdot(centred, centred)), centred.mean(0)
        centred -= mean
        squares = np.einsum("ij,ij->j", centred, centred)
        seen, vectors[count] = self._seen.join(
            Moments(self._seen.origin, mean, squares, count, energy, blocks=1)
        )
        self.sketch_.update(self._columns(vectors if count > 1 else vectors[1:]))  # one row is its mean
        self._seen = seen

    def _columns(self, vectors: Any) -> torch.Tensor:
        return torch.from_numpy(vectors).to(self.sketch_.dtype).mT

    def _agreed(self) -> dict[str, Any]:
        """What two estimators must share to be merged."""
        names = getattr(self, "feature_names_in_", None)
        shape = {"n_features_in_": self.n_features_in_, "dtype": self.sketch_.dtype}
        return self.get_params() | shape | {"feature_names_in_": None if names is None else list(names)}

    # -- results ---------------------------------------------------------------------------------

    @property
    def components_(self) -> Any:
        check_is_fitted(self)
        rows = self.sketch_.basis[:, : self.n_components_].mT.numpy()
        return np.ascontiguousarray(svd_flip(None, rows, u_based_decision=False)[1])

    @property
    def explained_variance_(self) -> Any:
        check_is_fitted(self)
        return self._eigenvalues(float(self.sketch_.escaped_mass)) / self._degrees

    @property
    def explained_variance_bounds_(self) -> Any:
        check_is_fitted(self)
        sketch, vectors, updates = self.sketch_, self._vectors_rounding, self._updates_rounding
        if sketch.rank == sketch.dim:  # B Bᵀ + ρ I = S
            low = float(sketch.escaped_mass) - updates
            high = float(sketch.escaped_mass) + updates
        else:
            low, high = -updates, float(sketch.error_bound)
        bounds = self._eigenvalues(low - vectors).clip(min=0), self._eigenvalues(high + vectors)
        return np.stack(bounds) / self._degrees

    @property
    def explained_variance_ratio_(self) -> Any:
        variance, total = self.explained_variance_, self.total_variance_
        return variance / total if total > 0 else variance

    @property
    def total_variance_(self) -> float:
        check_is_fitted(self)
        return float(self._seen.squares.sum()) / self._degrees

    @property
    def error_bound_(self) -> float:
        check_is_fitted(self)
        return (float(self.sketch_.error_bound) + self._vectors_rounding) / self._degrees

    @property
    def mean_(self) -> Any:
        check_is_fitted(self)
        return self._seen.origin + self._seen.mean

    @property
    def n_samples_seen_(self) -> int:
        check_is_fitted(self)
        return self._seen.count

    def _eigenvalues(self, shift: float) -> Any:
        return self.sketch_.eigenvalues[: self.n_components_].numpy() + shift

    @property
    def _degrees(self) -> int:
        return max(1, self._seen.count - 1)

    @property
    def _largest(self) -> float:
        """A bound on ‖S‖."""
        return float(self.sketch_.eigenvalues[0] + self.sketch_.error_bound)

    @property
    def _updates_rounding(self) -> float:
        """What rounding may change in S in all updates; it is part of the sketch's error bound."""
        sketch, block = self.sketch_, (self.sketch_.dim, self._width + 1)
        one, *_ = rounding(sketch.basis, block, traced=self.solver != "exact")
        updates = sketch.state_dict()["folds"] + self._seen.blocks  # merges, too: fewer than blocks
        return float(updates * one * self._largest)

    @property
    def _vectors_rounding(self) -> float:
        """What rounding may change in S before the updates: in means, differences, and their dtype."""
        seen = self._seen
        few = _FEW * np.finfo(float).eps * (seen.blocks + self._width)
        entries = (torch.finfo(self.sketch_.dtype).eps + few) * (seen.energy + seen.squares.sum()) ** 0.5
        return float((2 * self._largest**0.5 + entries) * entries)

    # -- transforming ----------------------------------------------------------------------------

    def transform(self, X: Any) -> Any:
        """The coordinates of centred rows along the components: (n_samples, n_components)."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=_DTYPES, reset=False)
        V = self.components_.T
        scores = X @ V - self.mean_ @ V if issparse(X) else (X - self.mean_) @ V
        return scores.astype(X.dtype, copy=False)

    def inverse_transform(self, X: Any) -> Any:
        """Rows with these coordinates: (n_samples, n_features)."""
        check_is_fitted(self)
        X = check_array(X, dtype=_DTYPES)
        if X.shape[1] != self.n_components_:
            raise ValueError(f"X has {X.shape[1]} columns: must have {self.n_components_}, one a component")
        return (X @ self.components_ + self.mean_).astype(X.dtype, copy=False)

    # -- what scikit-learn asks ------------------------------------------------------------------

    @property
    def _n_features_out(self) -> int:
        return self.n_components_

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "sketch_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _check_alike(mine: dict[str, Any], theirs: dict[str, Any], whose: str, why: str) -> None:
    for name, value in mine.items():
        if theirs[name] != value:
            raise ValueError(f"{whose} has {name}={theirs[name]}: must have {value}, {why}")


def _dense(rows: Any) -> Any:
    return np.ascontiguousarray(rows.toarray() if issparse(rows) else rows)

"""PCA of a stream with `partial_fit`, by FrequentDirections, compared with IncrementalPCA, on digits.

python examples/streaming_pca.py

Both read the rows once, in batches. FrequentDirections also bounds its error.
"""

from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA, IncrementalPCA
from sklearn.utils.validation import check_is_fitted, validate_data

import sketchy


class StreamingPCA(TransformerMixin, BaseEstimator):
    """Leading directions of centred rows. Variances are off by at most ``variance_error_bound_``."""

    def __init__(self, n_components: int = 10, rank: int = 32) -> None:
        self.n_components = n_components
        self.rank = rank

    def fit(self, X: Any, y: Any = None) -> Self:
        self.__dict__.pop("sketch_", None)
        return self.partial_fit(X)

    def partial_fit(self, X: Any, y: Any = None) -> Self:
        first = not hasattr(self, "sketch_")
        X = validate_data(self, X, dtype=np.float64, reset=first)
        if first:
            self.sketch_ = sketchy.FrequentDirections(X.shape[1], self.rank, dtype=torch.float64)
            self.mean_, self.n_samples_seen_ = np.zeros(X.shape[1]), 0
        n, k = self.n_samples_seen_, len(X)
        shift = X.mean(0) - self.mean_
        # scatter about the new mean = that of the old rows + that of the new rows + that of the two means
        rows = np.vstack([X - X.mean(0), np.sqrt(n * k / (n + k)) * shift])
        self.sketch_.update(torch.from_numpy(rows.T))
        self.mean_ = self.mean_ + shift * k / (n + k)
        self.n_samples_seen_ = n + k

        kept = slice(self.n_components)
        self.components_ = self.sketch_.basis[:, kept].T.numpy()
        self.explained_variance_ = self.sketch_.eigenvalues[kept].numpy() / max(1, n + k - 1)
        self.variance_error_bound_ = float(self.sketch_.error_bound) / max(1, n + k - 1)
        return self

    def transform(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        return (validate_data(self, X, dtype=np.float64, reset=False) - self.mean_) @ self.components_.T


def main(n_components: int = 10, rank: int = 32, batch: int = 100) -> dict[str, float]:
    """Fit all three; print and return the share of the variance in the directions of each."""
    X = load_digits().data
    exact = PCA(n_components).fit(X)
    ours, theirs = StreamingPCA(n_components, rank), IncrementalPCA(n_components)
    for rows in np.array_split(X, len(X) // batch):
        ours.partial_fit(rows)
        theirs.partial_fit(rows)

    total = X.var(0).sum()
    shares = {}
    for name, model in {"PCA": exact, "IncrementalPCA": theirs, "StreamingPCA": ours}.items():
        shares[name] = float(model.transform(X).var(0).sum() / total)
        first = model.explained_variance_[0]
        print(f"{name:14}  {shares[name]:.4%} of the variance; the largest is {first:.2f}")
    print(f"StreamingPCA's variances are too small by {ours.variance_error_bound_:.2f} at most")
    return shares


if __name__ == "__main__":
    main()

"""PCA of a stream with `partial_fit`: FrequentDirectionsPCA beside IncrementalPCA, on digits.

python examples/streaming_pca.py

Both read the rows once, in batches. FrequentDirectionsPCA also bounds the error of its variances.
"""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA, IncrementalPCA

from sketchy.sklearn import FrequentDirectionsPCA


def main(n_components: int = 10, rank: int = 32, batch: int = 100) -> dict[str, float]:
    """Fit all three; print and return the share of the variance in the directions of each."""
    X = load_digits().data
    exact = PCA(n_components).fit(X)
    ours, theirs = FrequentDirectionsPCA(n_components, rank=rank), IncrementalPCA(n_components)
    for rows in np.array_split(X, len(X) // batch):
        ours.partial_fit(rows)
        theirs.partial_fit(rows)

    total = X.var(0).sum()
    shares = {}
    for model in (exact, theirs, ours):
        name = type(model).__name__
        shares[name] = float(model.transform(X).var(0).sum() / total)
        print(
            f"{name:22}{shares[name]:.4%} of the variance; the largest is {model.explained_variance_[0]:.2f}"
        )
    low, high = ours.explained_variance_bounds_[:, 0]
    print(f"FrequentDirectionsPCA certifies that the largest is between {low:.2f} and {high:.2f}")
    return shares


if __name__ == "__main__":
    main()

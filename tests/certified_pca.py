"""Batches of rows, and the bounds of `FrequentDirectionsPCA` against the dense covariance of all of them."""

from typing import Any

import numpy as np

from cases import STREAMS, stream
from sketchy.sklearn import FrequentDirectionsPCA

FEATURES = 12
NORMAL = sorted(set(STREAMS) - {"tiny", "huge"})


def rows_of(
    kind: str, sizes: list[int], *, seed: int = 0, offset: float = 0.0, dtype: Any = float
) -> list[Any]:
    """Batches of rows of these sizes, whose common mean is far from zero, and which drift apart from it."""
    count, rng = sum(sizes), np.random.default_rng(seed)
    rows = stream(kind, FEATURES, count, 1, seed)[0].T.numpy()
    scale = np.abs(rows).max() or 1.0
    drift = np.linspace(0, scale, count)[:, None] * rng.standard_normal(FEATURES)
    rows = rows + drift + offset * scale * rng.standard_normal(FEATURES)
    return np.split(rows.astype(dtype), np.cumsum(sizes)[:-1])


def covariance(batches: list[Any]) -> Any:
    """Of all rows, in more digits than those of the estimator where the machine has them."""
    rows = np.concatenate(batches).astype(np.longdouble)
    centred = (rows - rows.mean(0)).astype(float)
    return centred.T @ centred / max(1, len(rows) - 1)


def fitted(batches: list[Any], **options: Any) -> FrequentDirectionsPCA:
    pca = FrequentDirectionsPCA(**options)
    for rows in batches:
        pca.partial_fit(rows)
    return pca


def check_certificates(pca: FrequentDirectionsPCA, batches: list[Any]) -> None:
    """Without a tolerance: rounding is part of the bounds."""
    C, count = covariance(batches), sum(map(len, batches))
    true = np.linalg.eigvalsh(C)[::-1].clip(min=0)
    low, high = pca.explained_variance_bounds_
    assert (low <= true[: len(low)]).all(), low - true[: len(low)]
    assert (true[: len(low)] <= high).all(), true[: len(low)] - high
    assert (low <= pca.explained_variance_).all() and (pca.explained_variance_ <= high).all()
    sketched = pca.sketch_.dense().numpy() / max(1, count - 1)
    assert np.linalg.norm(C - sketched, 2) <= pca.error_bound_
    assert pca.n_samples_seen_ == count
    np.testing.assert_allclose(pca.total_variance_, np.trace(C), rtol=1e-9)
    scale = np.abs(np.concatenate(batches)).max()
    np.testing.assert_allclose(pca.mean_, np.concatenate(batches).mean(0, dtype=float), atol=1e-12 * scale)
    gram = pca.components_.astype(float) @ pca.components_.astype(float).T
    np.testing.assert_allclose(
        gram, np.eye(len(gram)), atol=1e-4 if pca.components_.dtype == np.float32 else 1e-10
    )

"""`FrequentDirectionsPCA`: scikit-learn's checks, and bounds against the dense covariance of all rows."""

import pickle
import subprocess
import sys
import tracemalloc
from typing import Any

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks

from cases import SOLVERS
from certified_pca import FEATURES, NORMAL, check_certificates, covariance, fitted, rows_of
from sketchy.sklearn import FrequentDirectionsPCA

# -- what scikit-learn asks ------------------------------------------------------------------------


@parametrize_with_checks(
    [FrequentDirectionsPCA(), FrequentDirectionsPCA(rank=3), FrequentDirectionsPCA(2, solver="subspace")]
)
def test_it_passes_the_checks_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)


def test_sketchy_does_not_import_scikit_learn() -> None:
    code = "import sys, sketchy; sketchy.FrequentDirections(3, 2); sys.exit('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


def test_without_scikit_learn_the_message_says_what_to_install() -> None:
    code = "import sys; sys.modules['sklearn'] = None; import sketchy.sklearn"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "sklearn is missing; pip install '.[sklearn]' in a clone of sketchy brings it" in ended.stderr


def test_set_output_names_the_columns() -> None:
    pd = pytest.importorskip("pandas")
    X = pd.DataFrame(load_digits().data[:100, :5], columns=list("abcde"))
    pca = FrequentDirectionsPCA(2).set_output(transform="pandas")
    named = pca.fit_transform(X)
    assert (
        list(named.columns)
        == list(pca.get_feature_names_out())
        == ["frequentdirectionspca0", "frequentdirectionspca1"]
    )
    assert (named.index == X.index).all() and list(pca.feature_names_in_) == list("abcde")
    with pytest.raises(ValueError, match=r"other has feature_names_in_=\['b', .* like this one"):
        pca.merge(FrequentDirectionsPCA(2).fit(X[list("bacde")]))


# -- certificates ----------------------------------------------------------------------------------


@given(
    kind=st.sampled_from(NORMAL),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=8),
    offset=st.sampled_from((0.0, 10.0, 1e6)),
    rank=st.sampled_from((2, 4, 8, FEATURES)),
    solver=st.sampled_from(SOLVERS),
    dtype=st.sampled_from((np.float32, np.float64)),
    seed=st.integers(0, 10**6),
)
def test_bounds_hold_against_the_covariance_of_all_rows(
    kind: str, sizes: list[int], offset: float, rank: int, solver: str, dtype: Any, seed: int
) -> None:
    batches = rows_of(kind, sizes, seed=seed, offset=offset, dtype=dtype)
    check_certificates(fitted(batches, rank=rank, solver=solver), batches)


@given(
    kind=st.sampled_from(NORMAL),
    streams=st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=3), min_size=2, max_size=5),
    offset=st.sampled_from((0.0, 1e6)),
    rank=st.sampled_from((2, 5, FEATURES)),
    solver=st.sampled_from(SOLVERS),
    dtype=st.sampled_from((np.float32, np.float64)),
    seed=st.integers(0, 10**6),
)
def test_merged_bounds_hold_against_the_covariance_of_all_rows(
    kind: str, streams: list[list[int]], offset: float, rank: int, solver: str, dtype: Any, seed: int
) -> None:
    """Merged in pairs, then pairs of pairs; each stream has another mean."""
    parts = [
        rows_of(kind, sizes, seed=seed + i, offset=offset, dtype=dtype) for i, sizes in enumerate(streams)
    ]
    level = [fitted(batches, rank=rank, solver=solver) for batches in parts]
    while len(level) > 1:
        level = [a.merge(b) for a, b in zip(level[::2], level[1::2], strict=False)] + level[len(level) & ~1 :]
    check_certificates(level[0], [rows for batches in parts for rows in batches])


@pytest.mark.parametrize("kind", ["tiny", "huge"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bounds_hold_for_very_small_and_very_large_rows(kind: str, dtype: Any) -> None:
    batches = rows_of(kind, [30, 1, 50], dtype=dtype)
    check_certificates(fitted(batches, rank=5), batches)


@pytest.mark.parametrize("sizes", [[300], [150, 150], [7] * 40 + [20], [1] * 300])
def test_the_loss_is_at_most_that_of_lemma_1_in_any_batches(sizes: list[int]) -> None:
    batches = rows_of("power", sizes, seed=3)
    pca = fitted(batches, rank=6)
    C = covariance(batches) * (sum(sizes) - 1)
    spectrum = np.linalg.eigvalsh(C)[::-1]
    least = min(spectrum[k:].sum() / (6 - k) for k in range(6))
    assert 0 < float(pca.sketch_.escaped_mass) <= least * (1 + 1e-9)
    assert float(pca.sketch_.escaped_mass) == pytest.approx(pca.error_bound_ * (sum(sizes) - 1), rel=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_nothing_is_lost_while_the_rank_suffices_even_far_from_the_origin(dtype: Any) -> None:
    """A sketch of x instead of x - m, or a mean with lost digits, would be off by more than the bound."""
    batches = rows_of("rank-deficient", [40, 1, 9, 200], offset=1e4, dtype=dtype)
    pca = fitted(batches, rank=8)
    check_certificates(pca, batches)
    tolerance = 1e-10 if dtype == np.float64 else 1e-4
    assert pca.error_bound_ < tolerance * pca.explained_variance_[0]
    full = fitted(batches, rank=FEATURES)
    low, high = full.explained_variance_bounds_
    assert len(low) == FEATURES and (high - low).max() < tolerance * full.explained_variance_[0]


def test_components_and_variances_are_those_of_pca_on_digits() -> None:
    X = load_digits().data
    ours, exact = FrequentDirectionsPCA(10, rank=32).fit(X), PCA(10).fit(X)
    check_certificates(ours, [X])
    np.testing.assert_allclose(ours.explained_variance_, exact.explained_variance_, rtol=2e-3)
    np.testing.assert_allclose(ours.explained_variance_ratio_, exact.explained_variance_ratio_, rtol=2e-3)
    largest = np.abs(ours.components_).argmax(1)
    assert (ours.components_[np.arange(10), largest] > 0).all()
    cosines = np.abs((ours.components_ * exact.components_).sum(1))
    assert cosines.min() > 0.99
    np.testing.assert_allclose(np.abs(ours.transform(X)), np.abs(exact.transform(X)), atol=1.5)
    share = ours.transform(X).var(0).sum() / exact.transform(X).var(0).sum()
    assert 1 - 1e-4 < share <= 1
    back = ours.inverse_transform(ours.transform(X))
    assert ((X - back) ** 2).sum() <= 1.001 * ((X - exact.inverse_transform(exact.transform(X))) ** 2).sum()


@pytest.mark.parametrize("kind", NORMAL)
def test_estimated_variances_add_up_to_at_most_the_whole(kind: str) -> None:
    pca = fitted(rows_of(kind, [50, 50]), rank=5)
    assert pca.explained_variance_ratio_.sum() <= 1 + 1e-12


# -- batches, merges, sparse rows ------------------------------------------------------------------


def same(a: FrequentDirectionsPCA, b: FrequentDirectionsPCA) -> bool:
    names = ("components_", "explained_variance_", "explained_variance_bounds_", "mean_", "error_bound_")
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in names)


def test_results_repeat_to_the_bit_also_after_a_pickle() -> None:
    batches = rows_of("power", [30, 1, 1, 70])
    once = fitted(batches, rank=5, solver="subspace")
    part = pickle.loads(pickle.dumps(fitted(batches[:2], rank=5, solver="subspace")))
    for rows in batches[2:]:
        part.partial_fit(rows)
    assert same(once, part) and same(once, fitted(batches, rank=5, solver="subspace"))
    assert same(clone(once).fit(batches[0]), once.fit(batches[0]))  # fit forgets


def test_a_merge_changes_neither_and_one_with_few_rows_loses_nothing() -> None:
    batches = rows_of("rank-deficient", [3, 1], offset=5.0)
    a, b = (fitted([rows], rank=8) for rows in batches)
    before = pickle.dumps((a, b))
    merged, together = a.merge(b), fitted(batches, rank=8)
    assert same(a, pickle.loads(before)[0]) and same(b, pickle.loads(before)[1])
    np.testing.assert_allclose(merged.sketch_.dense(), together.sketch_.dense(), atol=1e-12)
    merged.partial_fit(batches[0])
    assert same(a, pickle.loads(before)[0]) and merged.n_samples_seen_ == 7


@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=5),
    density=st.floats(0.05, 0.9),
    form=st.sampled_from(("csr", "csc", "coo")),
    dtype=st.sampled_from((np.float32, np.float64)),
    seed=st.integers(0, 10**6),
)
def test_sparse_rows_give_what_dense_ones_give(
    sizes: list[int], density: float, form: str, dtype: Any, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    batches = [
        scipy.sparse.random_array((n, FEATURES), density=density, format=form, rng=rng, dtype=dtype)
        for n in sizes
    ]
    dense = [rows.toarray() for rows in batches]
    ours = fitted(batches, rank=6)
    assert same(ours, fitted(dense, rank=6))
    scores = ours.transform(batches[0])
    np.testing.assert_allclose(scores, ours.transform(dense[0]), atol=1e-5 if dtype == np.float32 else 1e-12)
    assert scores.dtype == dtype == ours.components_.dtype


def test_sparse_rows_are_never_dense_all_at_once() -> None:
    X = scipy.sparse.random_array((20_000, 1000), density=1e-3, format="csr", rng=np.random.default_rng(0))
    tracemalloc.start()
    FrequentDirectionsPCA(3, rank=8).fit(X).transform(X)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 0.05 * X.shape[0] * X.shape[1] * 8


def test_single_rows_wait_in_the_buffer() -> None:
    pca = fitted(rows_of("power", [1] * 100), rank=10)
    assert pca.sketch_.state_dict()["folds"] == 10


# -- mistakes --------------------------------------------------------------------------------------

X = load_digits().data[:50, 10:20]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_components": 0}, "n_components=0: must be at least 1, or None for all"),
        ({"n_components": 11}, "n_components=11: must be at most 10, the number of features"),
        ({"n_components": 5, "rank": 5}, r"n_components=5: must be at most 4, rank - 1: give a larger rank"),
        ({"rank": 1}, "rank=1: must be at least 2"),
        ({"solver": "fast"}, "solver='fast': must be one of"),
    ],
)
def test_a_wrong_parameter_is_told(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FrequentDirectionsPCA(**options).fit(X)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (FrequentDirectionsPCA(2, rank=6).fit(X), "other has rank=6: must have 5, like this one"),
        (FrequentDirectionsPCA(2, rank=5).fit(X[:, :9]), "other has n_features_in_=9: must have 10"),
        (
            FrequentDirectionsPCA(2, rank=5).fit(X.astype(np.float32)),
            "other has dtype=torch.float32: must have",
        ),
    ],
)
def test_estimators_that_differ_are_not_merged(other: FrequentDirectionsPCA, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FrequentDirectionsPCA(2, rank=5).fit(X).merge(other)


def test_other_mistakes_are_told() -> None:
    pca = FrequentDirectionsPCA(2)
    with pytest.raises(NotFittedError):
        _ = pca.explained_variance_bounds_
    with pytest.raises(NotFittedError):
        clone(pca).fit(X).merge(pca)
    fitted_before = clone(pca).fit(X)
    with pytest.raises(ValueError, match="NaN"):
        fitted_before.fit(X * np.nan)
    assert same(fitted_before, clone(pca).fit(X))
    with pytest.raises(TypeError, match="other=PCA: must be a FrequentDirectionsPCA"):
        pca.merge(PCA())
    with pytest.raises(ValueError, match="X has 3 columns: must have 2, one a component"):
        pca.fit(X).inverse_transform(X[:, :3])

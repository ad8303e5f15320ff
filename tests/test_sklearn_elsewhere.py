"""Rows that lie elsewhere, in partitions of Dask or on ranks of torch, have one certified PCA."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from torch import distributed

from certified_pca import FEATURES, check_certificates, fitted, rows_of
from examples.test_examples import example
from ranks import on_ranks
from sketchy.sklearn import FrequentDirectionsPCA

SIZES = [40, 3, 1, 70, 25]

# -- Dask ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Two worker processes on this machine."""
    reason = "Dask is not installed: pip install '.[dask]'"
    dask_distributed = pytest.importorskip("dask.distributed", reason=reason)
    cluster = dask_distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
    with cluster, dask_distributed.Client(cluster):
        yield


@pytest.mark.parametrize(("rank", "dtype"), [(4, float), (8, np.float32), (FEATURES, float)])
def test_the_certificate_of_a_dask_array_holds_for_the_covariance_of_all_rows(
    cluster: None, rank: int, dtype: Any
) -> None:
    import dask.array as da

    batches = rows_of("power", SIZES, offset=10.0, dtype=dtype)
    X = da.from_array(np.concatenate(batches), chunks=(tuple(SIZES), (5, FEATURES - 5)))
    pca = example("dask_pca").dask_pca(X, rank=rank)
    check_certificates(pca, batches)
    assert pca.error_bound_ < 0.5 * pca.explained_variance_[0]
    parts = [fitted([rows], rank=rank) for rows in batches]
    pairs = [parts[0].merge(parts[1]), parts[2].merge(parts[3]), parts[4]]
    expected = pairs[0].merge(pairs[1]).merge(pairs[2])
    np.testing.assert_array_equal(pca.explained_variance_bounds_, expected.explained_variance_bounds_)


def test_the_certificate_of_a_dask_dataframe_holds_also_if_partitions_are_empty(cluster: None) -> None:
    import dask.dataframe as dd
    import pandas as pd

    (rows,) = rows_of("drifting", [200], offset=3.0)
    table = pd.DataFrame(rows, columns=[f"x{i}" for i in range(FEATURES)])
    some = dd.from_pandas(table, npartitions=5)
    some = some.map_partitions(lambda part: part[(part.index < 30) | (part.index > 90)])  # of 40 rows each
    assert 0 in [len(part) for part in some.partitions]
    pca = example("dask_pca").dask_pca(some, rank=5)
    check_certificates(pca, [rows[:30], rows[91:]])
    assert list(pca.feature_names_in_) == list(table.columns)


# -- ranks -----------------------------------------------------------------------------------------


def check_ranks() -> None:
    index, count = distributed.get_rank(), distributed.get_world_size()
    module = example("dask_pca")
    for rank, dtype in ((4, float), (8, np.float32), (FEATURES, float)):
        streams = [rows_of("power", SIZES[i:], seed=i, offset=10.0, dtype=dtype) for i in range(count)]
        pca = module.all_ranks(streams[index], rank=rank)
        check_certificates(pca, [rows for batches in streams for rows in batches])
        found: list[Any] = [None] * count
        distributed.all_gather_object(found, pca.explained_variance_bounds_)
        assert all(np.array_equal(found[0], other) for other in found)

    pca = fitted(streams[index], rank=4 + index)
    with pytest.raises(ValueError, match="rank 1 of the group has rank=5: must have 4, as on rank 0"):
        pca.all_merge()
    if index == 1:
        pca = FrequentDirectionsPCA()
    with pytest.raises(ValueError, match="rank 1 of the group has seen no rows: must be fitted"):
        pca.all_merge()


def test_all_ranks_get_one_certified_estimator_of_the_rows_of_all() -> None:
    on_ranks(2, check_ranks)

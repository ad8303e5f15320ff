"""PCA of an array or a table that is larger than a machine: Dask partitions, sketches, a tree of merges.

python examples/dask_pca.py                 # two processes on this machine; pip install '.[dask]'

A partition is read, sketched and forgotten by one worker. Only sketches travel: rank x features numbers. The
merged one has a certificate for the covariance of all rows. `all_ranks` does the same in torch.distributed.
"""

from collections.abc import Callable, Iterable
from typing import Any

import dask
import dask.array as da
import torch
from dask.distributed import Client, LocalCluster

from sketchy.sklearn import FrequentDirectionsPCA


def partitions(rows: Any) -> list[Any]:
    """The partitions of a Dask dataframe, or of an array (n, features), as delayed tables of rows."""
    if hasattr(rows, "columns"):
        return list(rows.to_delayed())
    whole = rows.rechunk({1: -1})  # a block must have all columns of its rows
    return list(whole.to_delayed().ravel())


def fit(model: FrequentDirectionsPCA, rows: Any) -> FrequentDirectionsPCA:
    """One partition's rows; those of an empty one leave the model as it is."""
    torch.set_num_threads(1)  # workers share the cores
    return model.fit(rows) if len(rows) else model


def merge(a: FrequentDirectionsPCA, b: FrequentDirectionsPCA) -> FrequentDirectionsPCA:
    fitted = [model for model in (a, b) if hasattr(model, "sketch_")]
    return a.merge(b) if len(fitted) == 2 else (fitted or [a])[0]


def tree(leaves: Iterable[Any], join: Callable[[Any, Any], Any]) -> Any:
    """Merge in pairs, then pairs of pairs: n partitions take log₂ n rounds."""
    level = list(leaves)
    while len(level) > 1:
        pairs = [join(a, b) for a, b in zip(level[::2], level[1::2], strict=False)]
        level = pairs + level[2 * len(pairs) :]
    return level[0]


def dask_pca(rows: Any, **options: Any) -> FrequentDirectionsPCA:
    """FrequentDirectionsPCA of all rows of a Dask array or dataframe."""
    sketched, merged = dask.delayed(fit), dask.delayed(merge)
    leaves = [sketched(FrequentDirectionsPCA(**options), part) for part in partitions(rows)]
    return tree(leaves, merged).compute()


def all_ranks(blocks: Iterable[Any], **options: Any) -> FrequentDirectionsPCA:
    """The same in torch.distributed: every rank calls it with its blocks of rows, and all get the result."""
    model = FrequentDirectionsPCA(**options)
    for rows in blocks:
        model.partial_fit(rows)
    return model.all_merge()


def main(rows: int = 40_000, features: int = 100, rank: int = 32) -> FrequentDirectionsPCA:
    """Print the variances of a random array of eight blocks, made on the workers, with their bounds."""
    scale = da.arange(1, features + 1, chunks=-1) ** -1.0
    noise = da.random.default_rng(0).standard_normal((rows, features), chunks=(rows // 8, features))
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster):
        pca = dask_pca(noise * scale + 5, n_components=5, rank=rank)
    print(f"{pca.n_samples_seen_:,} rows; their covariance is known up to {pca.error_bound_:.4f}")
    for found, low, high in zip(pca.explained_variance_, *pca.explained_variance_bounds_, strict=True):
        print(f"variance {found:.4f}, certainly between {low:.4f} and {high:.4f}")
    return pca


if __name__ == "__main__":
    main()

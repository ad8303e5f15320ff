"""The process that fits one PCA for ``benchmarks.speed.pca``: one number for its time, one for its memory.

Its arguments are the method, the file of rows (float32), and columns, components, rank and batch. It writes a
JSON line: seconds, the most bytes that it needed beyond those of the libraries, and a file of the result.
"""

import ctypes
import gc
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.decomposition import PCA, IncrementalPCA, TruncatedSVD

from benchmarks.common.process import pin
from sketchy.analysis.timing import wall
from sketchy.sklearn import FrequentDirectionsPCA

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
FEW_COLUMNS = 2  # times the rank: so small that this fit leaves no memory that the next one finds
PAGE = 2**10  # bytes of a "kB" in /proc


class Rows(NamedTuple):
    """A file of rows; every method reads it itself, whole or in batches."""

    path: Path
    columns: int
    components: int
    rank: int
    batch: int

    def whole(self) -> Any:
        return np.fromfile(self.path, dtype=np.float32).reshape(-1, self.columns)

    def batches(self) -> Iterator[Any]:
        size = self.batch * self.columns
        for start in range(0, self.path.stat().st_size // 4, size):
            rows = np.fromfile(self.path, dtype=np.float32, count=size, offset=4 * start)
            yield rows.reshape(-1, self.columns)


def streamed(model: Any, rows: Rows) -> Any:
    for batch in rows.batches():
        model.partial_fit(batch)
    return model, model.mean_


def ours(solver: str, rows: Rows) -> Any:
    return streamed(FrequentDirectionsPCA(rows.components, rank=rows.rank, solver=solver), rows)


def randomized_pca(rows: Rows) -> Any:
    model = PCA(rows.components, svd_solver="randomized", random_state=0).fit(rows.whole())
    return model, model.mean_


def truncated_svd(rows: Rows) -> Any:
    """It removes no mean, so this does, in place."""
    X = rows.whole()
    X -= (mean := X.mean(0))
    model = TruncatedSVD(rows.components, random_state=0).fit(X)
    model.explained_variance_ *= len(X) / (len(X) - 1)  # it divides by n
    return model, mean


METHODS: dict[str, Callable[[Rows], Any]] = {
    "exact": lambda rows: ours("exact", rows),
    "subspace": lambda rows: ours("subspace", rows),
    "incremental": lambda rows: streamed(IncrementalPCA(rows.components), rows),
    "incremental_rank": lambda rows: streamed(IncrementalPCA(rows.rank - 1), rows),
    "randomized": randomized_pca,
    "truncated": truncated_svd,
}


def resident(field: str) -> int:
    """Bytes of this process that are in memory now (VmRSS), or were at most since the reset (VmHWM)."""
    found = re.search(rf"^{field}:\s+(\d+) kB", STATUS.read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * PAGE


def give_back() -> None:
    """Return freed memory to the system."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def main() -> None:
    method, path, *sizes = sys.argv[1:]
    rows = Rows(Path(path), *map(int, sizes))
    pin()
    small = rows._replace(path=rows.path.with_name("few"), columns=FEW_COLUMNS * rows.rank)
    METHODS[method](small)  # loads what is loaded lazily
    give_back()
    before = resident("VmRSS")
    RESET.write_text("5")
    found: list[Any] = []

    def fit() -> None:
        model, mean = METHODS[method](rows)
        result = {name: getattr(model, name) for name in ("components_", "explained_variance_")}  # reads all
        found.append((model, {**result, "mean_": mean}))

    seconds, cpu = wall(fit)
    most = resident("VmHWM") - before
    ((model, result),) = found
    certified = {}
    if isinstance(model, FrequentDirectionsPCA):
        certified["bounds"] = model.explained_variance_bounds_[:, : rows.components]
    out = rows.path.with_name(f"{method}.npz")
    np.savez(
        out,
        **{name: value[: rows.components] for name, value in result.items() if name != "mean_"},
        **certified,
    )
    print(json.dumps({"wall": seconds, "cpu": cpu, "bytes": most, "result": str(out)}))


if __name__ == "__main__":
    main()

"""The path of one gradient does not become longer. A change that makes it longer must change this test."""

import pytest

from optim.path_of_a_gradient import traced

# files, calls from file to file, kinds of records made. Lower these when they fall. About 50 and 80 of the
# calls are sums over ranks (`core.spread`), which return at once where nothing is sharded; 40 and 60 batch
# small operations for accelerators (`tasks.launch`, `core.padded`).
LONGEST = {"SketchyShampoo": (29, 204, 4), "SketchySOAP": (33, 323, 6)}


@pytest.mark.cpu_only("it counts calls on the CPU's path")
@pytest.mark.parametrize("name", LONGEST)
def test_one_gradient_passes_few_files_calls_and_records(name: str) -> None:
    path = traced(name)
    files, calls, records = LONGEST[name]
    assert len(path.files) <= files, path.files
    assert path.between.total() <= calls
    assert len(+path.records) <= records, path.records

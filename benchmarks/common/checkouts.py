"""This checkout and another one: run a worker process with the sources of either."""

import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

HERE = Path(__file__).parents[2]


def check(tree: Path) -> None:
    if not (tree / "src" / "sketchy").is_dir():
        raise ValueError(f"{tree}: has no src/sketchy, so it is no checkout of this project")


def check_source(tree: Path, source: str) -> None:
    """Raise if a worker of ``tree`` has imported sketchy from somewhere else."""
    if not Path(source).is_relative_to(tree / "src"):
        raise RuntimeError(f"{tree}: its process imported sketchy from {source}")


def command(module: str, *arguments: object) -> list[str]:
    """The command that calls ``main()`` of a module of the benchmarks. Run it in `HERE`."""
    return [sys.executable, "-c", f"from {module} import main; main()", *map(str, arguments)]


def environment(tree: Path) -> dict[str, str]:
    """The environment of a process that uses the sources of ``tree``, on one thread."""
    return {**os.environ, "PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}


def of_this_tree(module: str) -> ModuleType:
    """A module of this tree's sketchy that imports nothing of sketchy, for workers of trees without it."""
    file = Path(__file__).parents[2].joinpath("src", *module.split(".")).with_suffix(".py")
    spec = spec_from_file_location(f"this tree's {module}", file)
    assert spec is not None and spec.loader is not None, file
    loaded = module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded

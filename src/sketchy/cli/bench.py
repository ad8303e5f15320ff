"""`sketchy bench`: run a benchmark of the repository by its name."""

from pathlib import Path
from typing import Annotated, NamedTuple

from tyro.conf import Positional, Suppress, arg

from sketchy.cli.mistakes import user_mistakes
from sketchy.cli.patience import PATIENCE


def bench(
    name: Positional[Annotated[str | None, arg(metavar="[NAME]")]] = None,
    json: bool = False,
    arguments: Suppress[tuple[str, ...]] = (),
) -> None:
    """List the benchmarks of the repository, or run one: step time, scaling, training quality, and others.

    Example: sketchy bench

    Example: sketchy bench step_time -- --quick

    Runs the benchmark in the top directory of the repository, with the options that follow two dashes.
    Results go to benchmarks/results, and `sketchy report` shows them. After a Ctrl-C the same command
    continues.

    Args:
        name: The benchmark to run; without it, all are listed.
        json: Print the list as JSON.
        arguments: The options that follow --.
    """
    with user_mistakes("sketchy bench"):
        root = checkout()
        known = dict(sorted(benchmarks(root).items()))
        if name is not None and name not in known:
            raise ValueError(f"name={name!r}: no such benchmark; there are {', '.join(known)}")
    if name is not None:
        raise SystemExit(_run(root, known[name].module, arguments))
    if json:
        from json import dumps

        print(dumps({name: benchmark.summary for name, benchmark in known.items()}))
    else:
        _show(known)


class Benchmark(NamedTuple):
    module: str
    summary: str  # the first line of its docstring


def checkout() -> Path:
    """The repository at or above the working directory, else the one that contains this package."""
    places = (Path.cwd(), *Path.cwd().parents, Path(__file__).parents[3])
    for place in places:
        if (place / "benchmarks" / "__init__.py").is_file() and (place / "src" / "sketchy").is_dir():
            return place
    raise ValueError("the benchmarks are in the repository, not in the package; run this in a clone of it")


def benchmarks(root: Path) -> dict[str, Benchmark]:
    """The programs below benchmarks/, by file name: modules that end with ``if __name__ == "__main__"``.

    A folder with a ``__main__.py`` is a program with the name of the folder.
    """
    import ast

    found = {}
    for path in sorted((root / "benchmarks").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        conditions = [ast.unparse(node.test) for node in tree.body if isinstance(node, ast.If)]
        if "__name__ == '__main__'" in conditions:
            program = path.parent if path.stem == "__main__" else path.with_suffix("")
            module = ".".join(program.relative_to(root).parts)
            found[program.name] = Benchmark(module, (ast.get_docstring(tree) or "").partition("\n")[0])
    return found


def _run(root: Path, module: str, arguments: tuple[str, ...]) -> int:
    """The exit status. On a Ctrl-C the benchmark saves its work, so this waits for it, but not for long."""
    import signal
    import subprocess
    import sys
    from threading import Timer

    process = subprocess.Popen([sys.executable, "-m", module, *arguments], cwd=root)
    limit = Timer(0.8 * PATIENCE, process.kill)
    limit.daemon = True
    before = signal.signal(signal.SIGINT, lambda *_: None if limit.is_alive() else limit.start())
    try:
        status = process.wait()
    finally:
        limit.cancel()
        signal.signal(signal.SIGINT, before)
    return status if status >= 0 else 128 - status  # a signal ended it


def _show(known: dict[str, Benchmark]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table("benchmark", "what it measures", box=box.SIMPLE_HEAD)
    for name, benchmark in known.items():
        table.add_row(name, benchmark.summary)
    console = Console(markup=False, highlight=False)
    console.print(table)
    console.print("sketchy bench NAME -- OPTIONS runs one; sketchy bench NAME -- --help lists its options")

"""`sketchy bench`: the benchmarks of a checkout by name."""

from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, Suppress, arg

from sketchy.cli.mistakes import user_mistakes


def bench(
    name: Positional[Annotated[str | None, arg(metavar="NAME")]] = None,
    json: bool = False,
    arguments: Suppress[tuple[str, ...]] = (),
) -> None:
    """List the benchmarks of a checkout, or run one: step time, scaling, training quality, online learning.

    Example: sketchy bench

    Example: sketchy bench step_time -- --quick

    Runs `python -m benchmarks.NAME` at the top of the checkout; what follows -- goes to it, such as --help.
    Rows go to benchmarks/results, and `sketchy report` shows them. After a Ctrl-C the same command goes on.

    Args:
        name: Which to run; a list if not given.
        json: Print the list as JSON.
        arguments: What follows --.
    """
    with user_mistakes("sketchy bench"):
        root = checkout()
        known = benchmarks(root)
        if name is not None and name not in known:
            raise ValueError(f"name={name!r}: no such benchmark; there are {', '.join(known)}")
    if name is not None:
        raise SystemExit(_run(root, name, arguments))
    if json:
        from json import dumps

        print(dumps(known))
    else:
        _show(known)


def checkout() -> Path:
    """The repository at or above the working directory, else the one that this package is run from."""
    places = (Path.cwd(), *Path.cwd().parents, Path(__file__).parents[3])
    for place in places:
        if (place / "benchmarks" / "__init__.py").is_file() and (place / "src" / "sketchy").is_dir():
            return place
    raise ValueError("benchmarks live in the repository, not in the package; run this in a checkout of it")


def benchmarks(root: Path) -> dict[str, str]:
    """Modules that run by themselves, and the first sentence of what they say of themselves."""
    import ast

    found = {}
    for path in sorted((root / "benchmarks").glob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        asks = [ast.unparse(node.test) for node in tree.body if isinstance(node, ast.If)]
        if "__name__ == '__main__'" in asks:
            found[path.stem] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return found


def _run(root: Path, name: str, arguments: tuple[str, ...]) -> int:
    """The exit status; a Ctrl-C is the benchmark's, which may have something to save."""
    import signal
    import subprocess
    import sys

    process = subprocess.Popen([sys.executable, "-m", f"benchmarks.{name}", *arguments], cwd=root)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        status = process.wait()
    finally:
        signal.signal(signal.SIGINT, before)
    return status if status >= 0 else 128 - status  # a signal ended it


def _show(known: dict[str, str]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table("benchmark", "what it measures", box=box.SIMPLE_HEAD)
    for name, description in known.items():
        table.add_row(name, description)
    console = Console(markup=False, highlight=False)
    console.print(table)
    console.print("sketchy bench NAME -- OPTIONS runs one; sketchy bench NAME -- --help lists its options")

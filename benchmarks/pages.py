"""The tables and pictures of the docs, made from benchmarks/results and from the registries of the package.

    python -m benchmarks.pages

A table stands between ``<!-- table: NAME -->`` and ``<!-- end -->`` and is written anew. What is said of it
in words is not: read it again.
"""

import re
from collections.abc import Callable, Mapping
from functools import partial

import tyro
from rich.console import Console

from benchmarks import estimate, ideas, quality, scaling, step_report, step_time, transfer
from benchmarks.front import DOCS, Front
from benchmarks.quality import RESULTS
from sketchy import cli
from sketchy.oco import LEARNERS

TASKS = ("charlm", "autoencoder", "cifar10", "tox21", "warpeace")
_TABLE = re.compile(r"(<!-- table: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def _front(task: str) -> Front:
    return Front.of(task, RESULTS / f"quality-{task}.jsonl")


def _front_table(task: str) -> str:
    return _front(task).markdown()


def _front_picture(task: str) -> bytes:
    return _front(task).picture()


def _registered(kind: str, entries: Mapping[str, object]) -> str:
    """A row for each entry of a registry: its name and the first line of its docstring."""
    rows = [
        f"| `{name}` | {(entry.__doc__ or '').partition(chr(10))[0]} |" for name, entry in entries.items()
    ]
    return "\n".join((f"| {kind} | |", "|---|---|", *rows))


TABLES: dict[str, Callable[[], str]] = {
    "commands": lambda: _registered(
        "Command", {f"sketchy {name}": cli.command(name) for name in cli.COMMANDS}
    ),
    "learners": lambda: _registered("Learner", LEARNERS),
    "transfer": lambda: transfer.markdown(RESULTS, transfer.Options().rank),
    **{f"front {task}": partial(_front_table, task) for task in TASKS},
    "step time, block": lambda: step_report.problem_markdown(step_time.load(step_time.RESULTS), "block"),
    "asked": lambda: step_report.asked_markdown(step_time.load(step_time.RESULTS)),
    "estimate": lambda: estimate.Estimate(estimate.Options()).markdown(),
    "ideas": lambda: ideas.markdown(step_time.load(ideas.RESULTS, "idea")),
    "scaling": lambda: scaling.markdown(step_time.load(scaling.RESULTS, "variable")),
}
PICTURES: dict[str, Callable[[], bytes]] = {
    "rates.png": lambda: quality.picture(RESULTS),
    **{f"front-{task}.png": partial(_front_picture, task) for task in TASKS},
}


def tables_in(text: str) -> list[str]:
    """The names of a page's tables."""
    return [found[2] for found in _TABLE.finditer(text)]


def filled(text: str) -> str:
    """A page with its tables as the results have them."""
    return _TABLE.sub(lambda found: f"{found[1]}\n{TABLES[found[2]]()}\n\n{found[3]}", text)


def main() -> None:
    """Write the tables and draw the pictures of the docs."""
    console = Console()
    for page in sorted(DOCS.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        if (new := filled(text)) != text:
            page.write_text(new, encoding="utf-8")
            console.print(f"{page.name}: tables written")
    for name, draw in PICTURES.items():
        (DOCS / name).write_bytes(draw())
        console.print(f"{name}: drawn")


if __name__ == "__main__":
    tyro.cli(main, prog="python -m benchmarks.pages")

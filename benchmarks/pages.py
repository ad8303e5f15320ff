"""Write the tables and pictures of the docs from benchmarks/results and the registries of the package.

    python -m benchmarks.pages

Replaces what is between ``<!-- table: NAME -->`` and ``<!-- end -->``. It does not change the text around a
table: check by hand that it is still true.
"""

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import tyro
from rich.console import Console

from benchmarks.common.results import RESULTS, load
from benchmarks.quality import (
    ablation,
    budget,
    compare,
    overview,
    rate_transfer,
    rounding,
    soak,
    sweeps,
    workloads,
)
from benchmarks.quality.front import DOCS, Front
from benchmarks.registry.changes import ABLATION
from benchmarks.speed import (
    accelerator_estimate,
    pca,
    scaling,
    sharded_estimate,
    step_ideas,
    step_plot,
    step_table,
    step_time,
)
from sketchy import cli
from sketchy.analysis.doctor import page as doctor
from sketchy.experiments import quality
from sketchy.files import read_object
from sketchy.oco import LEARNERS
from sketchy.optim import options
from sketchy.optim.parts.grafts import RULES

TASKS = ("charlm", "autoencoder", "cifar10", "tox21", "warpeace")
LARGER = ("charlm_long", "gpt256", "gpt10m")  # shown where they have results
PAGES = (DOCS.parent / "README.md", *sorted(DOCS.glob("*.md")))
_TABLE = re.compile(r"(<!-- table: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def _step_times() -> list[dict[str, Any]]:
    return load(RESULTS / step_time.FILE, "problem")


def _front(task: str) -> Front:
    return Front.of(task, RESULTS / f"quality-{task}.jsonl")


def _front_table(task: str) -> str:
    return _front(task).markdown()


def _larger(task: str) -> str:
    """The table and the picture of a larger task; a sentence if it has no results."""
    if not _has_results(task):
        return f"No results yet. `python -m benchmarks.quality {task}` makes them."
    return (
        f"{_front_table(task)}\n\n![Loss against optimizer state and against time, {task}](front-{task}.png)"
    )


def _has_results(task: str) -> bool:
    return bool(quality.load(RESULTS / f"quality-{task}.jsonl"))


def _front_picture(task: str) -> bytes:
    return _front(task).picture()


def _registered(kind: str, entries: Mapping[Any, object]) -> str:
    """A row for each entry of a registry: its name and the first line of its docstring."""
    rows = [
        f"| `{name}` | {(entry.__doc__ or '').partition(chr(10))[0]} |" for name, entry in entries.items()
    ]
    return "\n".join((f"| {kind} | |", "|---|---|", *rows))


TABLES: dict[str, Callable[[], str]] = {
    "first": lambda: overview.markdown(RESULTS, _step_times()),
    "losses": lambda: overview.losses(RESULTS, TASKS),
    "commands": lambda: _registered(
        "Command", {f"sketchy {name}": cli.command(name) for name in cli.COMMANDS}
    ),
    "learners": lambda: _registered("Learner", LEARNERS),
    "options": options.table,
    "grafts": lambda: _registered("Graft", RULES),
    "transfer": lambda: rate_transfer.markdown(RESULTS, rate_transfer.Options().rank),
    **{f"front {task}": partial(_front_table, task) for task in TASKS},
    "front digits": partial(_front_table, "digits"),  # too few rows for a picture
    **{f"front {task}": partial(_larger, task) for task in LARGER},
    **{f"ablation {name}": partial(ablation.page, RESULTS, name) for name in ABLATION},
    "graft scales": lambda: ablation.scales_page(RESULTS),
    "rounding": lambda: rounding.markdown(load(rounding.FILE, "optimizer")),
    "step time, short": lambda: step_table.users_markdown(_step_times(), "block"),
    "step time, block": lambda: step_table.problem_markdown(_step_times(), "block"),
    "targets": lambda: step_table.targets_markdown(_step_times()),
    "doctor": lambda: doctor.markdown(read_object(RESULTS / "doctor.json", "checks", "steps")),
    "estimate": lambda: accelerator_estimate.Estimate(accelerator_estimate.Options()).markdown(),
    "sharded estimate": lambda: sharded_estimate.Estimate(sharded_estimate.Options()).markdown(),
    "ideas": lambda: step_ideas.markdown(load(step_ideas.FILE, "idea")),
    "scaling": lambda: scaling.markdown(load(RESULTS / scaling.FILE, "variable")),
    "sweeps": partial(sweeps.table, RESULTS),
    "budget": partial(budget.page, RESULTS),
    "pca": lambda: pca.page(RESULTS / pca.FILE),
    "soak": lambda: soak.page(RESULTS / soak.FILE),
    **{f"workload {name}": partial(workloads.finals_table, name) for name in workloads.WORKLOADS},
    **{f"search {name}": partial(workloads.trials_table, name) for name in workloads.WORKLOADS},
}
PICTURES: dict[str, Callable[[], bytes]] = {
    "first.png": lambda: overview.picture(RESULTS),
    "step-time.png": lambda: step_plot.picture(_step_times(), "block"),
    "rates.png": lambda: compare.picture(RESULTS),
    **({"ranks.png": lambda: budget.picture(RESULTS)} if budget.drawable(RESULTS) else {}),
    **{
        f"front-{task}.png": partial(_front_picture, task) for task in (*TASKS, *filter(_has_results, LARGER))
    },
    **{
        f"ablation-{name}.png": partial(ablation.picture, RESULTS, name)
        for name in ABLATION
        if ablation.drawable(RESULTS, name)
    },
    **{
        f"workload-{name}.png": partial(workloads.picture, name)
        for name in filter(workloads.drawable, workloads.WORKLOADS)
    },
}


def tables_in(text: str) -> list[str]:
    """The names of a page's tables."""
    return [found[2] for found in _TABLE.finditer(text)]


def filled(text: str) -> str:
    """A page with its tables written from the results."""
    return _TABLE.sub(lambda found: f"{found[1]}\n{TABLES[found[2]]()}\n\n{found[3]}", text)


def main() -> None:
    """Write the tables and draw the pictures of the docs."""
    console = Console()
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if (new := filled(text)) != text:
            page.write_text(new, encoding="utf-8")
            console.print(f"{page.name}: tables written")
    for name, draw in PICTURES.items():
        (DOCS / name).write_bytes(draw())
        console.print(f"{name}: drawn")


if __name__ == "__main__":
    tyro.cli(main, prog="python -m benchmarks.pages")

"""`sketchy oco`: the paper's table of online learners, on any data set."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import arg

from sketchy.cli.mistakes import user_mistakes
from sketchy.experiments.paper import GRID_POINTS, PAPER_LEARNERS, SKETCH_SIZE

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

    from sketchy.experiments.sweep import Plan


def learner_names() -> list[str]:
    """The keys of `sketchy.oco.LEARNERS`, read from the learners' files: importing them would load torch."""
    files = sorted((Path(__file__).parents[1] / "oco").glob("*.py"))
    texts = (file.read_text(encoding="utf-8") for file in files)
    return [name for text in texts for name in re.findall(r'^    name = "(.+)"$', text, re.MULTILINE)]


def oco(
    data: str,
    out: Path | None = None,
    learners: Annotated[
        tuple[str, ...], arg(help=f"Learners to run, any of {', '.join(learner_names())}.")
    ] = PAPER_LEARNERS,
    rows: int | None = None,
    sketch_size: int = SKETCH_SIZE,
    grid: int = GRID_POINTS,
    shuffle: int | None = None,
    data_dir: Path | None = None,
    download: bool = False,
    processes: int = 2,
    max_gib: float = 4.0,
) -> None:
    """Run online learners on a data set, each with a grid of settings, and rank them by average loss.

    Example: sketchy oco --data digits --rows 500 --learners ogd adagrad s-adagrad

    Writes options.json, results.jsonl, table.md and curves.png. Ctrl-C saves and stops; run the same command
    to resume. Data files may be compressed (.bz2, .gz, .xz).

    Args:
        data: a9a, cifar10, gisette_scale, mnist49, pcmac, digits, breast_cancer, or an svmlight file.
        out: Directory for the results; runs/DATA if not given.
        rows: Number of rows to use, from the first; all if not given.
        sketch_size: Rank of the sketches, the paper's l.
        grid: Number of settings for each learner, log-spaced from 1e-6 to 1.
        shuffle: Shuffle the rows with this seed; in file order if not given.
        data_dir: Directory of the data sets; if not given, $SKETCHY_DATA or the user's cache.
        download: Download the data set if it is missing.
        processes: Number of learners to run in parallel.
        max_gib: The most memory that the rows may take, in GiB.
    """
    from rich.console import Console

    from sketchy.experiments import sweep
    from sketchy.experiments.data import load
    from sketchy.experiments.pool import stop_by_signal

    out = out or Path("runs") / Path(data).name
    console = Console(markup=False, highlight=False)  # file names may look like markup
    with user_mistakes("sketchy oco"):
        names = tuple(name for word in learners for name in word.split(","))
        dataset = load(
            data, directory=data_dir, download=download, rows=rows, shuffle=shuffle, max_gib=max_gib
        )
        plan = sweep.plan(dataset, learners=names, grid=grid, sketch_size=sketch_size, shuffle=shuffle)
        if processes < 1:
            raise ValueError(f"processes={processes}: must be at least 1")
        sweep.claim(out, plan)
    for note in dataset.notes():
        console.print(f"note: {note}", style="yellow")
    complete = False
    try:
        with stop_by_signal() as stop, _progress(console) as progress:
            bars = {name: progress.add_task(name, total=plan.rows) for name in names}
            complete = sweep.run(
                plan,
                dataset,
                out,
                processes=processes,
                report=lambda name, rounds: progress.update(bars[name], completed=rounds),
                stopped=stop.is_set,
            )
    finally:
        _write(plan, out, console, picture=complete)  # it takes longer than a stop should
    if not complete:
        console.print(f"stopped; what was done is saved in {out}; run the same command to resume")
        raise SystemExit(130)


def _write(plan: "Plan", out: Path, console: "Console", *, picture: bool) -> None:
    """Write the rows, the table and, if wanted, the picture of the learners that have finished."""
    from rich import box
    from rich.table import Column, Table
    from rich.text import Text

    from sketchy.experiments import sweep, table
    from sketchy.files import write

    results = sweep.results(plan, out)
    if not results:
        return
    rows = table.rows(plan, results)
    write(out / "results.jsonl", table.jsonl(rows))
    write(out / "table.md", table.markdown(plan, rows))
    if picture:
        from sketchy.experiments import plot

        curves = table.best_curves(plan, results)
        write(out / "curves.png", plot.average_losses(curves, title=table.title(plan)))
    header, *lines = table.cells(plan, rows)
    columns = [Column(name, no_wrap=name == "learner") for name in header]
    shown = Table(*columns, title=Text(table.title(plan)), box=box.SIMPLE, title_justify="left")
    shown.caption, shown.caption_justify = Text(table.note(lines)), "left"
    for line in lines:
        shown.add_row(*line)
    console.print(shown)
    console.print(f"{out}: results.jsonl, table.md{', curves.png' if picture else ''}")


def _progress(console: "Console") -> "Progress":
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (TextColumn("{task.description:12}"), BarColumn(), MofNCompleteColumn())
    return Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console)

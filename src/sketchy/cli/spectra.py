"""`sketchy spectra`: how concentrated the gradient covariances of a training run are."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from sketchy.cli.mistakes import user_mistakes
from sketchy.cli.patience import STOPPED

if TYPE_CHECKING:
    from sketchy.analysis.spectra import Spectrum
    from sketchy.experiments.spectra import Band, Watched
    from sketchy.experiments.tasks import Task


def spectra(
    task: str = "digits",
    optimizer: Literal["AdamW", "Shampoo", "SketchyShampoo", "SketchySOAP"] = "Shampoo",
    steps: int | None = None,
    every: int | None = None,
    rate: float = 0.004,
    rank: int = 64,
    top: int | float = 0.25,
    seed: int = 0,
    save_every: float = 60.0,
    out: Path | None = None,
    from_: Annotated[Path | None, tyro.conf.arg(name="from")] = None,
    tensorboard: bool = False,
    control: bool = False,
    trials: int = 20,
    json: bool = False,
    data_dir: Path | None = None,
    download: bool = False,
) -> None:
    """Train a small network and draw the top-k mass and intrinsic dimension of its gradient covariances.

    Example: sketchy spectra --task charlm --optimizer SketchyShampoo --rank 32

    Example: sketchy spectra --control --trials 4

    These are the paper's two spectral figures. Writes spectra.jsonl (a line for each covariance at each
    recording), share.png and dimension.png. --control repeats the paper's experiment with Gaussian gradients
    instead, and writes a line of control.jsonl for each trial. 20 trials take about four minutes. It fails if
    a mean is more than three standard errors of the difference away from the paper's mean. Ctrl-C saves and
    stops; run the same command to resume. After a complete run, it starts from the beginning. A directory
    with results of other options is refused.

    Args:
        task: Task to train: digits (no download), charlm, autoencoder, cifar10, ...
        optimizer: Sketched optimizers give spectra with bounds; AdamW and Shampoo give exact ones.
        steps: Training steps; the task's default if not given.
        every: Steps between two recordings; a fortieth of all steps if not given.
        rate: Learning rate.
        rank: Rank of the sketches, the paper's l.
        top: k, as a number of eigenvalues or as a share of all; the paper uses 256 of 1024.
        seed: Seed of the network and of its batches.
        save_every: Seconds between two checkpoints; a process that is killed loses no more than this.
        out: Directory for the results; if not given, runs/spectra/TASK (or control), or that of --from.
        from_: Draw the records in this file instead of training.
        tensorboard: Also write TensorBoard files.
        control: Repeat the Gaussian control experiment.
        trials: Number of trials of the control experiment.
        json: Print only JSON.
        data_dir: Directory of the data sets; if not given, $SKETCHY_DATA or the user's cache.
        download: Download the data set if it is missing.
    """
    if control:
        _control(trials, out or Path("runs/spectra/control"), json)
        return
    from sketchy.analysis.spectra import read
    from sketchy.experiments import tasks
    from sketchy.experiments.spectra import Watched

    status, title = 0, f"{from_}"
    with user_mistakes("sketchy spectra"):
        loaded = None if from_ else tasks.load(task, directory=data_dir, download=download)
        out = out or (from_.parent if from_ else Path("runs") / "spectra" / task)
        out.mkdir(parents=True, exist_ok=True)
        path = from_ or out / "spectra.jsonl"
        if loaded is not None:
            steps = loaded.steps if steps is None else steps
            every = max(1, steps // 40) if every is None else every
            options = Watched(task, optimizer, rate, rank, top, steps, every, seed)
            status = _train(loaded, options, out, out / "tensorboard" if tensorboard else None, save_every)
            title = f"{task}, {optimizer}"
        if status == STOPPED:  # pictures take longer than a stop should
            raise SystemExit(status)
        records = read(path)
        if not records and not status:
            raise ValueError(f"{path}: no records; a run must reach a step that is a multiple of --every")
    if records:
        _show(records, title, out, json)
    if status:
        raise SystemExit(status)


def _train(task: "Task", options: "Watched", out: Path, tensorboard: Path | None, save_every: float) -> int:
    """Train and return the exit status: STOPPED if the user stopped the run, 1 if it diverged."""
    from rich.console import Console
    from rich.progress import Progress

    from sketchy.experiments.pool import one_thread, stop_by_signal
    from sketchy.experiments.spectra import watch

    with one_thread(), stop_by_signal() as stop:
        run = watch(task, options, out, tensorboard=tensorboard, stopped=stop.is_set, save_every=save_every)
        with Progress(console=Console(stderr=True)) as progress:
            bar = progress.add_task("training", total=options.steps)
            for record in run:
                progress.update(bar, completed=record.step)
    if record.diverged:
        _tell(f"the run diverged at step {record.step}; try a lower --rate")
        return 1
    if record.step < options.steps:
        _tell(f"stopped at step {record.step}; everything is saved in {out}; run the same command to resume")
        return STOPPED
    return 0


def _show(records: "Sequence[Spectrum]", title: str, out: Path, json: bool) -> None:
    """Draw the figures, and print the medians as a table or as JSON."""
    from json import dumps

    from rich import box
    from rich.console import Console
    from rich.table import Column, Table

    from sketchy.experiments import spectra as experiment
    from sketchy.files import write

    files = {"share": out / "share.png", "intrinsic_dimension": out / "dimension.png"}
    found = {}
    for value, file in files.items():
        write(file, experiment.picture(records, value, title=title))  # type: ignore[arg-type]
        found[value] = experiment.bands(records, value)  # type: ignore[arg-type]
    if json:
        print(dumps({value: [vars(band) for band in rows] for value, rows in found.items()}))
        return
    axes = list(dict.fromkeys(band.axis for band in found["share"]))
    letters = [experiment.LETTERS.get(axis, axis) for axis in axes]
    table = Table(
        "step",
        *(Column(f"{what} of {letter}") for what in ("top-k mass", "dimension") for letter in letters),
        title=f"{title}: median over the weights (first to third quartile)",
        caption=experiment.describe(records, "share"),
        box=box.SIMPLE_HEAD,
    )
    cells = {(value, band.axis, band.step): _cell(band, value) for value in files for band in found[value]}
    taken = sorted({band.step for band in found["share"]})
    for step in taken[:: -max(1, len(taken) // 8)][::-1]:  # the last step is always shown
        table.add_row(f"{step:,}", *(cells.get((value, axis, step), "") for value in files for axis in axes))
    console = Console(markup=False)
    console.print(table)
    console.print(f"Pictures: {', '.join(map(str, files.values()))}   Records: {len(records):,}", style="dim")


def _cell(band: "Band", value: str) -> str:
    numbers = band.median, band.first_quartile, band.third_quartile
    return ("{:.1%} ({:.0%}-{:.0%})" if value == "share" else "{:.1f} ({:.1f}-{:.1f})").format(*numbers)


def _control(trials: int, out: Path, json: bool) -> None:
    from json import dumps

    from rich import box
    from rich.console import Console
    from rich.progress import track
    from rich.table import Table

    from sketchy.experiments import spectra as experiment
    from sketchy.experiments.pool import stop_by_signal

    path, total = out / "control.jsonl", trials * len(experiment.PUBLISHED)
    with stop_by_signal() as stop:
        with user_mistakes("sketchy spectra --control"):
            if trials < 2:
                raise ValueError(f"trials={trials}: must be at least 2, for a standard error")
            out.mkdir(parents=True, exist_ok=True)
            work = experiment.trials(trials, path, stopped=stop.is_set)
        found = list(track(work, "drawing", total=total, console=Console(stderr=True)))
    if len(found) < total:
        done = f"{len(found)} of {total} trials are saved in {path}"
        _tell(f"stopped; {done}; run the same command to resume")
        raise SystemExit(130)
    values = {d: [value for trial, value in found if trial.columns == d] for d in experiment.PUBLISHED}
    rows = [experiment.control(columns, some) for columns, some in values.items()]
    if json:
        print(dumps([vars(row) | {"distance": row.distance, "agrees": row.agrees} for row in rows]))
    else:
        table = Table(
            title=f"Intrinsic dimension of Σ β₂ⁱ x xᵀ over {experiment.DRAWS:,} Gaussian matrices x"
            f" of {experiment.DIM} x d, β₂ = {experiment.BETA2}; mean of {trials} trials (standard error)",
            caption="apart: the difference of the means, divided by its standard error; at most 3 is allowed",
            box=box.SIMPLE_HEAD,
        )
        for column in ("d", "ours", "paper", "apart"):
            table.add_column(column, justify="right")
        for row in rows:
            table.add_row(
                str(row.columns),
                f"{row.mean:.2f} ({row.standard_error:.2f})",
                f"{row.paper_mean:.2f} ({row.paper_standard_error:.2f})",
                f"{row.distance:.1f}",
            )
        Console().print(table)
    if not all(row.agrees for row in rows):
        raise SystemExit(1)


def _tell(message: str) -> None:
    import sys

    print(message, file=sys.stderr)

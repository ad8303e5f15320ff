"""`sketchy spectra`: how concentrated are the gradient covariances of a training run?"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from sketchy.cli.mistakes import user_mistakes

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
    out: Path | None = None,
    from_: Annotated[Path | None, tyro.conf.arg(name="from")] = None,
    tensorboard: bool = False,
    control: bool = False,
    trials: int = 20,
    json: bool = False,
    data_dir: Path | None = None,
    download: bool = False,
) -> None:
    """Train a small network and draw the paper's two spectral figures: top-k mass, intrinsic dimension.

    Example: sketchy spectra --task charlm --optimizer SketchyShampoo --rank 32

    Example: sketchy spectra --control --trials 4

    Writes spectra.jsonl (a line for each covariance at each recording), share.png and dimension.png.
    --control repeats the paper's experiment with Gaussian gradients instead, a line of control.jsonl for each
    trial: 20 trials take some four minutes; it fails where a mean is not within three standard errors (ours
    and the paper's combined) of the paper's. Ctrl-C saves and stops, either of them; the same command then
    goes on from there. Once all is done it starts anew.

    Args:
        task: The network to train: digits needs no download; also charlm, autoencoder, cifar10, ...
        optimizer: Of sketched ones spectra are read out, with bounds; of AdamW and Shampoo they are exact.
        steps: Training steps; the task's own number if not given.
        every: Steps between two recordings; a fortieth of the run if not given.
        rate: Learning rate.
        rank: Rank of the sketches, the paper's l.
        top: k: a number of eigenvalues, or the share of an axis that they are; the paper has 256 of 1024.
        seed: Of the network and of its batches.
        out: Directory for the results; runs/spectra/TASK (or control), or that of the file, if not given.
        from_: Draw the records in this file, train nothing.
        tensorboard: Write TensorBoard files too.
        control: Repeat the Gaussian control experiment.
        trials: Of the control experiment.
        json: Print JSON and nothing else.
        data_dir: Where the data sets are; else $SKETCHY_DATA, else a cache of yours.
        download: Fetch the data set if it is missing.
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
            status = _train(loaded, options, out, out / "tensorboard" if tensorboard else None)
            title = f"{task}, {optimizer}"
        records = read(path)
        if not records and not status:
            raise ValueError(f"{path}: no records; a run must reach a step that --every divides")
    if records:
        _show(records, title, out, json)
    if status:
        raise SystemExit(status)


def _train(task: "Task", options: "Watched", out: Path, tensorboard: Path | None) -> int:
    """Take the steps; the exit status: 130 where somebody stopped them, 1 where the run left the numbers."""
    from rich.console import Console
    from rich.progress import Progress

    from sketchy.experiments.pool import one_thread, stop_by_signal
    from sketchy.experiments.spectra import watch

    with one_thread(), stop_by_signal() as stop:
        run = watch(task, options, out, tensorboard=tensorboard, stopped=stop.is_set)
        with Progress(console=Console(stderr=True)) as progress:
            bar = progress.add_task("training", total=options.steps)
            for record in run:
                progress.update(bar, completed=record.step)
    if record.diverged:
        _tell(f"the run left the numbers at step {record.step}; a lower --rate may help")
        return 1
    if record.step < options.steps:
        _tell(f"stopped at step {record.step}; all is saved in {out}; the same command goes on from there")
        return 130
    return 0


def _show(records: "Sequence[Spectrum]", title: str, out: Path, json: bool) -> None:
    """The figures, and the medians as a table or as JSON."""
    from json import dumps

    from rich import box
    from rich.console import Console
    from rich.table import Column, Table

    from sketchy.experiments import spectra as experiment

    files = {"share": out / "share.png", "intrinsic_dimension": out / "dimension.png"}
    found = {}
    for value, file in files.items():
        file.write_bytes(experiment.picture(records, value, title=title))  # type: ignore[arg-type]
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
    for step in taken[:: -max(1, len(taken) // 8)][::-1]:  # the last one always
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

    with user_mistakes("sketchy spectra --control"):
        if trials < 2:
            raise ValueError(f"trials={trials}: must be at least 2, for a standard error")
        out.mkdir(parents=True, exist_ok=True)
    path, total = out / "control.jsonl", trials * len(experiment.PUBLISHED)
    with stop_by_signal() as stop:
        work = experiment.trials(trials, path, stopped=stop.is_set)
        found = list(track(work, "drawing", total=total, console=Console(stderr=True)))
    if len(found) < total:
        done = f"{len(found)} of {total} trials are saved in {path}"
        _tell(f"stopped; {done}, and the same command goes on from there")
        raise SystemExit(130)
    values = {d: [value for trial, value in found if trial.columns == d] for d in experiment.PUBLISHED}
    rows = [experiment.control(columns, some) for columns, some in values.items()]
    if json:
        print(dumps([vars(row) | {"distance": row.distance, "agrees": row.agrees} for row in rows]))
    else:
        table = Table(
            title=f"Intrinsic dimension of Σ β₂ⁱ x xᵀ over {experiment.DRAWS:,} Gaussian matrices x"
            f" of {experiment.DIM} x d, β₂ = {experiment.BETA2}; mean of {trials} trials (standard error)",
            caption="apart: the difference in standard errors, ours and the paper's combined; 3 are allowed",
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

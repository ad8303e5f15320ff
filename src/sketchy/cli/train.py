"""`sketchy train`: train one of the paper's three workloads."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from sketchy.cli.mistakes import user_mistakes
from sketchy.cli.patience import STOPPED

if TYPE_CHECKING:
    from sketchy.cli.training import How
    from sketchy.experiments.workloads.record import Record
    from sketchy.experiments.workloads.run import Settings

SET = arg(name="set", metavar="NAME=VALUE ...")


def train(
    workload: Positional[Literal["gnn", "resnet50", "conformer"]] = "gnn",
    scale: Literal["paper", "quarter", "tiny"] = "paper",
    data: str | None = None,
    optimizer: str = "s-shampoo",
    lr: float | None = None,
    weight_decay: float | None = None,
    set_: Annotated[tuple[str, ...], SET] = (),
    seed: int = 0,
    best: Path | None = None,
    seeds: int = 5,
    out: Path | None = None,
    save_every: float = 10.0,
    tensorboard: bool = False,
    spectra: int | None = None,
    dry_run: bool = False,
    data_dir: Path | None = None,
    device: str | None = None,
    threads: int = 1,
    workers: int = 0,
) -> None:
    """Train ResNet-50, the Conformer or the graph network of the paper, with any of six optimizers.

    Example: sketchy train gnn --scale tiny --optimizer sketchy-soap --lr 0.003

    Example: sketchy train resnet50 --dry-run

    Example: sketchy train gnn --best runs/gnn --seeds 5

    One process, or several: torchrun --nproc-per-node 8 -m sketchy train ... The global batch stays the same.
    Writes options.json, metrics.jsonl (a line for each look at held-out rows) and record.json (times and
    sizes). Ctrl-C and SIGTERM save and stop, SIGUSR1 saves; run the same command to resume: the numbers are
    those of a run that never stopped. --best takes the settings that `sketchy tune` has found, for each of
    its optimizers, and writes finals.jsonl; any number of processes may share that folder.

    Args:
        workload: gnn (molecules), resnet50 (images) or conformer (speech).
        scale: Sizes of network, batch, blocks and sketches: the paper's, a quarter, or a test's.
        data: Data set; the scale's if not given. "synthetic" needs no files. --dry-run lists all.
        optimizer: adamw, shampoo (dense), s-shampoo (the paper's, with its settings), sketchy-shampoo,
            sketchy-soap (with ours) or muon.
        lr: Learning rate; if not given, that of the scale.
        weight_decay: Decoupled weight decay; if not given, that of the scale.
        set_: Other settings, such as steps=500 batch=256 precision=bfloat16. --dry-run lists all.
        seed: Seed of the network, its rows, augmentation and dropout.
        best: Directory of a `sketchy tune`: run its best settings.
        seeds: With --best: number of seeds of each optimizer.
        out: Directory for the results; if not given, runs/WORKLOAD-SCALE/OPTIMIZER-SEED.
        save_every: Minutes between two checkpoints.
        tensorboard: Also write TensorBoard files.
        spectra: Also record the spectra of the gradients' covariances, so many times, in spectra.jsonl.
        dry_run: Print weights, steps, optimizer memory and data, and train nothing.
        data_dir: Directory of the data sets; if not given, $SKETCHY_DATA or the user's cache.
        device: Device, such as cpu or cuda; if not given, cuda if there is one.
        threads: Threads of torch on a CPU.
        workers: Processes that read and augment rows ahead.
    """
    from json import dumps

    import torch

    from sketchy.cli.training import How, named, run_one, tell
    from sketchy.experiments.workloads.ranks import joined
    from sketchy.experiments.workloads.run import Settings
    from sketchy.experiments.workloads.search import preset

    torch.set_num_threads(threads)
    with user_mistakes("sketchy train"), joined(device) as ranks:
        rates = {"lr": lr, "weight_decay": weight_decay}
        given = {name: value for name, value in rates.items() if value is not None} | named(set_)
        how = How(ranks, data_dir, workers, save_every, tensorboard, spectra)
        if best is not None:
            _finals(workload, best, seeds, given, how)
            return
        chosen = preset(workload, scale)
        settings = Settings(
            workload, scale, data or chosen.data, optimizer, seed, chosen.scale.changed(given)
        )
        if dry_run:
            _describe(settings, data_dir)
            return
        folder = out or Path("runs") / f"{workload}-{scale}" / f"{optimizer}-{seed}"
        record = run_one(settings, folder, how)
    if ranks.first:
        if record.looks:
            print(dumps(_summary(settings, record, folder)))
        if not record.over:
            tell(f"stopped after step {record.step:,}; run the same command to resume")
    if not record.over:
        raise SystemExit(STOPPED)
    if record.ended != "finished":
        raise SystemExit(1)


def _summary(settings: "Settings", record: "Record", folder: Path) -> dict[str, Any]:
    look = record.looks[-1]
    return {
        "out": str(folder),
        "ended": record.ended or "stopped",
        "step": record.step,
        "validation_loss": look.validation_loss,
        "validation_metric": look.validation_metric,
        "test_loss": look.test_loss,
        "test_metric": look.test_metric,
        "optimizer_bytes": record.optimizer_bytes,
        "seconds": record.seconds,
    }


def _finals(name: str, best: Path, seeds: int, changes: dict[str, Any], how: "How") -> None:
    """Run the best settings of a search, and write their rows."""
    from sketchy.cli.training import opened, run_all, tell
    from sketchy.experiments.workloads.search import Search, finals
    from sketchy.experiments.workloads.search_table import FINAL_ROWS, final_row, write_rows

    search = Search.read(best)
    if search.workload != name:
        raise ValueError(f"best={best}: is a search of {search.workload}, not of {name}")
    pieces = finals(search, best, seeds, changes)
    data = opened(search.workload, search.data, search.scale, how.data_dir)

    def rows() -> None:
        write_rows(best / FINAL_ROWS, search, pieces, final_row)

    finished = run_all(pieces, data, how, test=True, after=rows)
    if how.ranks.first:
        rows()
        tell(f"{best / FINAL_ROWS}; sketchy report {best} draws them")
    if not finished:
        raise SystemExit(STOPPED)


def _describe(settings: "Settings", data_dir: Path | None) -> None:
    """Weights, steps, optimizer memory and data of a run."""
    from dataclasses import asdict

    from rich import box
    from rich.console import Console
    from rich.table import Table

    from sketchy.analysis.memory import human
    from sketchy.cli.training import opened
    from sketchy.experiments.workloads.optimizers import planned_bytes
    from sketchy.experiments.workloads.registry import workload
    from sketchy.experiments.workloads.run import meta_network

    found = workload(settings.workload)
    if settings.data not in found.sources:
        opened(settings.workload, settings.data, settings.scale, data_dir)  # raises
    network, scale = meta_network(settings), settings.scale
    table = Table(box=box.SIMPLE, show_header=False)
    table.add_row("network", f"{sum(p.numel() for p in network.parameters()):,} weights")
    table.add_row("steps", f"{scale.steps:,} of {scale.batch:,} rows, {scale.micro_batch:,} at a time")
    table.add_row(f"{settings.optimizer}'s state", human(planned_bytes(settings.optimizer, network, scale)))
    for name, source in found.sources.items():
        table.add_row(f"--data {name}", source.about)
    values = ", ".join(f"{name}={value}" for name, value in asdict(scale).items())
    table.add_row("--set", values)
    console = Console(markup=False, highlight=False)
    console.print(table)
    data = opened(settings.workload, settings.data, scale, data_dir)
    counts = (len(data.train), len(data.validation), len(data.test))
    per_epoch = counts[0] // scale.batch
    if per_epoch == 0:
        raise ValueError(f"batch={scale.batch}: there are only {counts[0]} rows to train on")
    console.print(
        f"{settings.data}: {counts[0]:,} rows to train, {counts[1]:,} to validate, {counts[2]:,} to test"
        f" ({data.note}); {scale.steps / per_epoch:.1f} epochs of {per_epoch:,} steps"
    )

"""`sketchy tune`: search the settings of optimizers on one of the paper's three workloads."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional

from sketchy.cli.mistakes import user_mistakes
from sketchy.cli.patience import STOPPED
from sketchy.cli.train import SET

if TYPE_CHECKING:
    from sketchy.experiments.workloads.search import Search


def tune(
    workload: Positional[Literal["gnn", "resnet50", "conformer"]] = "gnn",
    scale: Literal["paper", "quarter", "tiny"] = "paper",
    data: str | None = None,
    optimizers: tuple[str, ...] = ("adamw", "shampoo", "s-shampoo"),
    trials: int | None = None,
    seed: int = 0,
    set_: Annotated[tuple[str, ...], SET] = (),
    out: Path | None = None,
    save_every: float = 10.0,
    json: bool = False,
    data_dir: Path | None = None,
    device: str | None = None,
    threads: int = 1,
    workers: int = 0,
) -> None:
    """Search the settings of several optimizers on a workload of the paper, with equal budgets.

    Example: sketchy tune gnn --scale quarter --trials 16 --out runs/gnn

    Trial i of every optimizer is the same point of the paper's ranges: row i of one Sobol sequence. Any
    number of processes, on any number of machines, may run this command on one shared folder: each trial is
    done once. Ctrl-C and SIGTERM save and stop; run the same command to resume, also with more trials or
    other optimizers. Prints what each optimizer spent and its best trial, chosen on validation rows, and
    writes trials.jsonl (a line for each trial). Then `sketchy train --best` runs the best settings with
    several seeds.

    Args:
        workload: gnn (molecules), resnet50 (images) or conformer (speech).
        scale: Sizes of network, batch, blocks and sketches: the paper's, a quarter, or a test's.
        data: Data set; the scale's if not given.
        optimizers: Any of adamw, shampoo, s-shampoo, sketchy-shampoo, sketchy-soap and muon.
        trials: Trials of each optimizer; the scale's number if not given.
        seed: Seed of the Sobol sequence.
        set_: Settings that are not searched, such as tuning_steps=500.
        out: Directory for the results; if not given, runs/WORKLOAD-SCALE-tuned.
        save_every: Minutes between two checkpoints of a trial.
        json: Print the table as JSON.
        data_dir: Directory of the data sets; if not given, $SKETCHY_DATA or the user's cache.
        device: Device, such as cpu or cuda; if not given, cuda if there is one.
        threads: Threads of torch on a CPU.
        workers: Processes that read and augment rows ahead.
    """
    import torch

    from sketchy.cli.training import How, named, opened, run_all, tell
    from sketchy.experiments.workloads.claims import DEAD
    from sketchy.experiments.workloads.ranks import joined
    from sketchy.experiments.workloads.search import Search, finished, preset
    from sketchy.experiments.workloads.search_table import TRIAL_ROWS, trial_row, write_rows

    torch.set_num_threads(threads)
    out = out or Path("runs") / f"{workload}-{scale}-tuned"
    with user_mistakes("sketchy tune"), joined(device) as ranks:
        chosen = preset(workload, scale)
        names = tuple(name for word in optimizers for name in word.split(","))
        count = chosen.tuning.trials if trials is None else trials
        search = Search(workload, scale, data or chosen.data, names, count, seed, named(set_))
        pieces = search.pieces(out)
        rows = opened(workload, search.data, search.scale, data_dir)
        if ranks.first:
            search.claim(out)

        def write() -> None:
            write_rows(out / TRIAL_ROWS, search, pieces, trial_row)

        ranks.from_first(None)
        how = How(ranks, data_dir, workers, save_every)
        complete = run_all(pieces, rows, how, test=False, give_up=chosen.tuning.give_up, after=write)
        if not ranks.first:
            return
        write()
        done = len(list(finished(pieces)))
    _show(Search.read(out), out, json)
    if not complete:
        tell(f"stopped; {done} of {len(pieces)} trials are in {out}; run the same command to resume")
        raise SystemExit(STOPPED)
    if done < len(pieces):
        tell(
            f"{done} of {len(pieces)} trials have ended; other processes do the rest, or died less than"
            f" {DEAD:.0f} seconds ago: then run the same command again"
        )


def _show(search: "Search", out: Path, json: bool) -> None:
    from json import dumps

    from rich import box
    from rich.console import Console
    from rich.table import Column, Table

    from sketchy.experiments.workloads.search_table import points, spent

    tables = {"spent": spent(search, out), "best": points(search, out)}
    if json:
        rows = {
            name: [dict(zip(cells.header, line, strict=True)) for line in cells.lines]
            for name, cells in tables.items()
        }
        print(dumps(rows))
        return
    console = Console(markup=False, highlight=False)
    for cells, about in zip(
        tables.values(),
        (
            "losses: first to third quartile of the trials that did not fail",
            "in brackets: the place in its range, in percent",
        ),
        strict=True,
    ):
        first = Column(cells.header[0], no_wrap=True)
        shown = Table(first, *cells.header[1:], box=box.SIMPLE_HEAD, caption=about, padding=(0, 1, 0, 0))
        for line in cells.lines:
            shown.add_row(*line)
        console.print(shown)

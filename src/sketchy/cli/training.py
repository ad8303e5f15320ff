"""What `sketchy train` and `sketchy tune` share: data, progress, and many runs in one folder."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sketchy.experiments.workloads import folder as folders
from sketchy.experiments.workloads.ranks import Ranks
from sketchy.experiments.workloads.registry import workload
from sketchy.experiments.workloads.run import Run, Settings
from sketchy.experiments.workloads.scale import GiveUp, Scale
from sketchy.experiments.workloads.search import Piece
from sketchy.experiments.workloads.signals import listening
from sketchy.experiments.workloads.work import work

if TYPE_CHECKING:
    from rich.progress import Progress

    from sketchy.experiments.workloads.record import Record
    from sketchy.experiments.workloads.workload import Data


@dataclass(frozen=True)
class How:
    """How to run, which changes no numbers."""

    ranks: Ranks
    data_dir: Path | None = None
    workers: int = 0
    save_every: float = 10.0  # minutes
    tensorboard: bool = False
    spectra: int | None = None


ONE = "training"  # the name of a run that is alone: a log has its looks, too


def named(words: Sequence[str]) -> dict[str, str]:
    """The settings of --set."""
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise ValueError(f"set={word}: must be NAME=VALUE, such as steps=500")
        found[name] = value
    return found


def opened(name: str, data: str, scale: Scale, data_dir: Path | None) -> "Data":
    """The data set of a workload. If it is missing, the error says how to get it."""
    from sketchy.experiments.data import data_directory

    sources = workload(name).sources
    if data not in sources:
        raise ValueError(f"data={data!r}: {name} has no such data set; there are {', '.join(sources)}")
    return sources[data].open(data_directory(data_dir), scale)


def run_one(settings: Settings, folder: Path, how: How) -> "Record":
    """Train in a folder, from where it was stopped."""
    data = opened(settings.workload, settings.data, settings.scale, how.data_dir)
    with listening() as asked:
        run = Run(settings, data, how.ranks, workers=how.workers)
        steps = _steps(run, folder, how, asked)
        with _bars(how.ranks) as progress:
            return _follow(run, steps, progress, ONE)


def run_all(
    pieces: Sequence[Piece],
    data: "Data",
    how: How,
    *,
    test: bool,
    give_up: GiveUp | None = None,
    after: Callable[[], None] = lambda: None,
) -> bool:
    """Do all pieces that no other process does. Returns whether it was not asked to stop.

    ``after`` is called by the first rank when a piece has ended.
    """
    with listening() as asked, _bars(how.ranks) as progress:
        total = progress.add_task("all runs", total=len(pieces), loss="")

        def count() -> None:
            done = sum(folders.ended(piece.folder) is not None for piece in pieces)
            progress.update(total, completed=done)

        def do(piece: Piece) -> bool:
            count()
            run = Run(piece.settings, data, how.ranks, test=test, give_up=give_up, workers=how.workers)
            record = _follow(run, _steps(run, piece.folder, how, asked), progress, piece.name)
            if record.over and how.ranks.first:
                after()
            return record.over

        finished = work(pieces, how.ranks, do)
        count()
    return finished


def tell(message: str) -> None:
    print(message, file=sys.stderr)


def _steps(run: Run, folder: Path, how: How, asked: folders.Asked) -> "Iterator[Record]":
    return folders.steps(
        run,
        folder,
        asked=asked,
        save_every=60 * how.save_every,
        tensorboard=how.tensorboard,
        spectra=how.spectra,
        tell=tell if how.ranks.first else lambda message: None,
    )


def _follow(run: Run, steps: "Iterator[Record]", progress: "Progress", name: str) -> "Record":
    """Take the steps, and show them: as a bar, or as lines for a log file."""
    bar = progress.add_task(name, total=run.record.steps, completed=run.record.step, loss="")
    looks, log = 0, run.ranks.first and not progress.console.is_terminal
    try:
        for record in steps:
            progress.update(bar, completed=record.step, loss=_last(record))
            if log and ((name == ONE and len(record.looks) > looks) or record.over):
                rate = record.step / max(record.seconds, 1e-9)
                tell(f"{name}: step {record.step:,} of {record.steps:,}, {rate:.2f}/s, {_last(record)}")
            looks = len(record.looks)
    finally:
        progress.remove_task(bar)
    if run.record.why and run.ranks.first:
        tell(f"{name}: {run.record.ended}: {run.record.why}")
    return run.record


def _last(record: "Record") -> str:
    look = record.looks[-1] if record.looks else None
    return f"loss {look.validation_loss:.4f}, metric {look.validation_metric:.4f}" if look else ""


@contextmanager
def _bars(ranks: Ranks) -> "Iterator[Progress]":
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Any) -> Text:
            return Text("" if not task.speed else f"{task.speed:.2f}/s")

    columns = (TextColumn("{task.description:18}"), BarColumn(bar_width=20), MofNCompleteColumn(), Rate())
    times = (TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.fields[loss]}"))
    with Progress(*columns, *times, console=Console(stderr=True), disable=not ranks.first) as progress:
        yield progress

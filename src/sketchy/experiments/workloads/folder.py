"""A run in a folder: options.json, metrics.jsonl, checkpoints, and record.json when it has ended."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sketchy.experiments import resume
from sketchy.experiments.workloads import checkpoints
from sketchy.experiments.workloads.record import Look, Record
from sketchy.experiments.workloads.run import Run
from sketchy.experiments.workloads.watched import Watch
from sketchy.files import append, read_object, write
from sketchy.optim.scalars import write_scalars

METRICS, RECORD = "metrics.jsonl", "record.json"
SAVE_EVERY = 600.0  # seconds
Asked = Callable[[], tuple[bool, bool]]  # whether to stop, and whether to save


def ended(folder: Path) -> Record | None:
    """The record of a run that has ended."""
    path = folder / RECORD
    return Record.from_dict(read_object(path, "looks")) if path.exists() else None


def steps(
    run: Run,
    folder: Path,
    *,
    asked: Asked = lambda: (False, False),
    save_every: float = SAVE_EVERY,
    tensorboard: bool = False,
    spectra: int | None = None,
    tell: Callable[[str], None] = lambda message: None,
) -> Iterator[Record]:
    """Take the steps that are missing in ``folder``, and yield the record after each of them.

    Options are checked at once: a folder of others is refused. The run is saved every ``save_every`` seconds
    and when it is ``asked``; when it is asked to stop, the iteration ends, and the same call resumes. Then
    all numbers are those of a run that never stopped. Each rank calls this; the first one writes.
    """
    ranks, options = run.ranks, run.settings.options()
    if ranks.first:
        resume.claim(folder, options, results=METRICS)
    known, covariances = ended(folder), None
    if known is None:
        state, complaints = checkpoints.newest(folder, ranks.device)
        if state is not None:
            run.load_state_dict(state)
            covariances = state.get("covariances")
            tell(f"resumed after step {run.record.step:,}")
        for complaint in complaints:
            tell(complaint)
    else:
        run.record = known
    if ranks.sums(run.record.step)[0] != ranks.world * run.record.step:  # all have read before one writes
        raise ValueError(f"out={str(folder)!r}: must be on a file system that all ranks share")
    if ranks.first:
        _rewrite(folder / METRICS, run)
    watch = Watch(run, folder, spectra, covariances) if spectra is not None and ranks.first else None

    def save_state() -> None:
        state = run.state_dict()
        if watch is not None:
            state["covariances"] = watch.monitor.state_dict()
        if ranks.first:
            checkpoints.write(folder, state)

    def stepping() -> Iterator[Record]:
        if known is not None:
            yield known
            return
        saved, lines = time.monotonic(), len(run.record.looks)
        following = nullcontext() if watch is None else watch.following()
        with _writer(folder if tensorboard and ranks.first else None) as writer, following:
            for record in _saved_on_error(run, save_state):
                if ranks.first:
                    for look in record.looks[lines:]:
                        append(folder / METRICS, line(run, look))
                        _scalars(writer, look)
                lines = len(record.looks)
                yield record
                due = ranks.first and time.monotonic() - saved >= save_every
                stop, save = (total > 0 for total in ranks.sums(*map(float, _flags(asked(), due))))
                if not record.over and (stop or save):
                    save_state()
                    saved = time.monotonic()
                if stop:
                    break
        if ranks.first and run.record.over:
            write(folder / RECORD, json.dumps(run.record.to_dict(), indent=1) + "\n")
            checkpoints.clear(folder)

    return stepping()


def _saved_on_error(run: Run, save_state: Callable[[], None]) -> Iterator[Record]:
    """The steps of a run. If a file can't be read, what was done before is saved."""
    try:
        yield from run
    except (ValueError, OSError):
        if run.ranks.world == 1:  # other ranks may be in the middle of a step
            save_state()
        raise


def _flags(asked: tuple[bool, bool], due: bool) -> tuple[bool, bool]:
    stop, save = asked
    return stop, save or due


def line(run: Run, look: Look) -> dict[str, Any]:
    """A line of metrics.jsonl."""
    names = ("workload", "preset", "data", "optimizer", "seed")
    return {name: getattr(run.settings, name) for name in names} | asdict(look)


def _rewrite(path: Path, run: Run) -> None:
    """Leave only looks up to the checkpoint: later ones will be taken again."""
    write(path, "".join(f"{json.dumps(line(run, look))}\n" for look in run.record.looks))


@contextmanager
def _writer(folder: Path | None) -> Iterator[Any]:
    if folder is None:
        yield None
        return
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        from sketchy.extras import missing

        raise ImportError(missing(error.name or "tensorboard", "spectra"), name=error.name) from error
    with SummaryWriter(str(folder / "tensorboard")) as writer:
        yield writer


def _scalars(writer: Any, look: Look) -> None:
    if writer is not None:
        values = {name: value for name, value in asdict(look).items() if name != "step" and value is not None}
        write_scalars(writer, values, look.step)

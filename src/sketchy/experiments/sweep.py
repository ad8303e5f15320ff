"""Sweeps with equal budgets: every learner runs its whole grid in one pass over the data, and can be resumed.

The grids are those of the paper's Appendix A: 49 settings for each learner. A learner with its grid is one
piece of work with one checkpoint file. Pieces run in parallel processes, with one thread each.
"""

import math
import tempfile
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import sketchy
from sketchy import oco
from sketchy.experiments import resume
from sketchy.experiments.data import Dataset
from sketchy.experiments.paper import GRID_POINTS as GRID_POINTS
from sketchy.experiments.paper import GRID_RANGE as GRID_RANGE
from sketchy.experiments.paper import PAPER_LEARNERS as PAPER_LEARNERS
from sketchy.experiments.paper import SKETCH_SIZE as SKETCH_SIZE
from sketchy.experiments.pool import Report, Stopped, spread
from sketchy.files import START_AGAIN, damaged, load, read_object, save

CHUNK = 64  # rounds between two checks of the clock and of stop requests
SAVE_EVERY = 20.0  # seconds
_CHECKPOINTS = "checkpoints"


@dataclass(frozen=True)
class Plan:
    """Everything that determines the results of a sweep; saved as ``options.json``."""

    data: str
    rows: int
    dim: int
    data_sha256: str
    shuffle: int | None = None
    learners: tuple[str, ...] = PAPER_LEARNERS
    grid: int = GRID_POINTS
    sketch_size: int = SKETCH_SIZE
    sketchy: str = sketchy.__version__
    torch: str = torch.__version__


@dataclass(frozen=True)
class Result:
    """The results of one learner for the P settings of its grid, with curves of up to 100 points."""

    learner: str
    eta: Tensor  # (P,)
    delta: Tensor  # (P,)
    sums: oco.Sums
    curve_rounds: list[int]
    curve: Tensor  # (points, P): average loss up to that round
    seconds: float  # of one process, for all P settings


def plan(
    data: Dataset,
    *,
    learners: tuple[str, ...] = PAPER_LEARNERS,
    grid: int = GRID_POINTS,
    sketch_size: int = SKETCH_SIZE,
    shuffle: int | None = None,
) -> Plan:
    """A valid plan for these rows. ``shuffle``, the seed they were shuffled with, is only recorded."""
    _check_learners(learners)
    if grid < 1:
        raise ValueError(f"grid={grid}: must be at least 1, the number of settings for each learner")
    for name in learners:  # raises if the learner refuses an option
        oco.make(name, data.dim, eta=1.0, delta=1.0, sketch_size=sketch_size)
    return Plan(data.name, data.rows, data.dim, data.digest(), shuffle, tuple(learners), grid, sketch_size)


def settings(learner: str, points: int = GRID_POINTS) -> tuple[Tensor, Tensor]:
    """The grid of a learner, as eta (points,) and delta (points,). All learners have equally many points.

    A learner that needs delta shares its points between eta and delta; the others have delta = 0.

    >>> settings("ogd", 4)[0]
    tensor([1.0000e-06, 1.0000e-04, 1.0000e-02, 1.0000e+00], dtype=torch.float64)
    >>> settings("ada-fd", 4)
    (tensor([1.0000e-06, 1.0000e+00, 1.0000e-06, 1.0000e+00], dtype=torch.float64),
     tensor([1.0000e-06, 1.0000e-06, 1.0000e+00, 1.0000e+00], dtype=torch.float64))
    """
    if not oco.LEARNERS[learner].needs_delta:
        return _log_spaced(points), torch.zeros(points, dtype=torch.float64)
    lines = math.isqrt(points)  # one for each delta; if points is not a square, the first lines get one more
    lengths = [points // lines + (i < points % lines) for i in range(lines)]
    eta = torch.cat([_log_spaced(length) for length in lengths])
    return eta, _log_spaced(lines).repeat_interleave(torch.tensor(lengths))


def run(
    plan: Plan,
    data: Dataset,
    directory: Path,
    *,
    processes: int = 1,
    report: Report = lambda learner, rounds: None,
    stopped: Stopped = lambda: False,
) -> bool:
    """Play all rounds of the plan that are not yet in ``directory``. Returns whether all were played.

    ``report`` is called with the number of rounds that a learner has played. When ``stopped`` returns True,
    every learner is saved. A resumed sweep gives the same numbers, bit for bit.
    """
    # slow learners first, so that none of them is still running when all others have finished
    names = sorted(plan.learners, key=lambda name: not oco.LEARNERS[name].uses_sketch_size)
    with tempfile.TemporaryDirectory(prefix="sketchy-") as scratch:
        stream = Path(scratch) / "rows.pt"  # processes map this file: the rows are in memory only once
        torch.save({"X": data.X, "y": data.y}, stream)
        return spread(partial(_play, plan, stream, directory), names, processes, report, stopped)


def results(plan: Plan, directory: Path) -> list[Result]:
    """The results of the learners that have finished, in the order of the plan."""
    found = []
    for name in plan.learners:
        state = _load(plan, directory, name)
        if state and state["round"] == plan.rows:
            eta, delta = settings(name, plan.grid)
            rounds, curve = state["curve_rounds"], torch.stack(state["curve"])
            found.append(Result(name, eta, delta, _sums(state), rounds, curve, state["seconds"]))
    return found


def claim(directory: Path, plan: Plan) -> None:
    """Write the plan into a directory. Raises ValueError if it has results of another, or damaged ones."""
    resume.claim(directory, asdict(plan), results=_CHECKPOINTS)
    results(plan, directory)


def claimed(directory: Path) -> Plan:
    """The plan that a directory holds. Its learners exist, and so their names are names of files inside."""
    path = directory / resume.OPTIONS
    known = read_object(path)
    with damaged(str(path), "remove its directory to start again"):
        found = Plan(**{**known, "learners": tuple(known["learners"])})
        _check_learners(found.learners)
        return found


def _check_learners(learners: tuple[str, ...]) -> None:
    if not learners or len(set(learners)) < len(learners) or not set(learners) <= set(oco.LEARNERS):
        given = " ".join(map(str, learners))
        raise ValueError(f"learners={given!r}: must be distinct ones of {', '.join(oco.LEARNERS)}")


def _log_spaced(points: int) -> Tensor:
    low, high = (math.log10(end) for end in GRID_RANGE)
    if points == 1:
        return torch.tensor([10 ** ((low + high) / 2)], dtype=torch.float64)
    return 10 ** torch.linspace(low, high, points, dtype=torch.float64)


def _play(plan: Plan, stream: Path, directory: Path, name: str, report: Report, stopped: Stopped) -> bool:
    """Play one learner's rounds from its last checkpoint on. Returns whether all were played."""
    rows = torch.load(stream, mmap=True, weights_only=True)
    eta, delta = settings(name, plan.grid)
    learner = oco.make(name, plan.dim, eta=eta, delta=delta, sketch_size=plan.sketch_size)
    looks = set(oco.checkpoints(plan.rows))
    at = sorted({*looks, *range(CHUNK, plan.rows, CHUNK)})
    state = _load(plan, directory, name) or {"curve_rounds": [], "curve": [], "seconds": 0.0}
    before = _sums(state) if "round" in state else None
    if before:
        report(name, before.round)
        if before.round == plan.rows:
            return True
        with damaged(str(checkpoint(directory, name)), START_AGAIN):
            learner.load_state_dict(state["learner"])
    spent, began = state["seconds"], time.perf_counter()
    saved = began
    for sums in oco.play(learner, oco.loss.logistic, rows["X"], rows["y"], at=at, after=before):
        if sums.round in looks:
            state["curve_rounds"].append(sums.round)
            state["curve"].append(sums.average_loss)
        now, done, stop = time.perf_counter(), sums.round == plan.rows, stopped()
        if done or stop or now - saved > SAVE_EVERY:
            state |= {"round": sums.round, "loss": sums.loss, "mistakes": sums.mistakes}
            state |= {"seconds": spent + now - began, "learner": {} if done else learner.state_dict()}
            save(checkpoint(directory, name), state)
            saved = now
        report(name, sums.round)
        if stop and not done:
            return False
    return True


def _load(plan: Plan, directory: Path, name: str) -> dict[str, Any] | None:
    """The checkpoint of a learner, with what `_play` saves; None if there is none."""
    path = checkpoint(directory, name)
    state = load(path, "round", "loss", "mistakes", "curve_rounds", "curve", "seconds", "learner")
    with damaged(str(path), START_AGAIN):
        if state and not 0 < state["round"] <= plan.rows:
            raise ValueError(f"round={state['round']}: must be from 1 to {plan.rows}")
        if state and len(state["curve"]) != len(state["curve_rounds"]):
            raise ValueError(f"{len(state['curve_rounds'])} rounds and {len(state['curve'])} losses")
        for sums in (state["loss"], state["mistakes"], *state["curve"]) if state else ():
            if tuple(sums.shape) != (plan.grid,):
                raise ValueError(f"sums of the shape {tuple(sums.shape)}: must be ({plan.grid},)")
    return state


def checkpoint(directory: Path, name: str) -> Path:
    """The checkpoint file of a learner."""
    return directory / _CHECKPOINTS / f"{name}.pt"


def _sums(state: dict[str, Any]) -> oco.Sums:
    return oco.Sums(state["round"], state["loss"], state["mistakes"])

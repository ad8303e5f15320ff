"""The search for good settings: the same points for all optimizers, and equal budgets.

Trial i of every optimizer has the same place, from 0 to 1, in each of its ranges: row i of one scrambled
Sobol sequence. The best trial is chosen on validation rows, among the first n: those that every optimizer has
finished.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

import sketchy
from sketchy.experiments.resume import OPTIONS, claim, refuse_others
from sketchy.experiments.workloads import folder, optimizers
from sketchy.experiments.workloads.record import Record, badness
from sketchy.experiments.workloads.registry import workload
from sketchy.experiments.workloads.run import Settings
from sketchy.experiments.workloads.scale import Preset, Scale
from sketchy.files import damaged, read_object, write

TRIALS, FINALS = ".trials", ".finals"  # folders of single runs; hidden, because `sketchy report` shows sums
TUNING_SEED = 0  # of networks and rows in all trials; finals have 1, 2, ...


@dataclass(frozen=True)
class Piece:
    """A run of a search, in a folder of its own."""

    optimizer: str
    number: int  # of the trial, or the seed of a final run
    settings: Settings
    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name


@dataclass(frozen=True)
class Search:
    """Everything that determines the trials; saved as options.json."""

    workload: str
    preset: str
    data: str
    optimizers: tuple[str, ...]
    trials: int
    seed: int = 0  # of the Sobol sequence
    changes: Mapping[str, Any] = field(default_factory=dict)  # of the preset's scale
    sketchy: str = sketchy.__version__
    torch: str = str(torch.__version__)

    def __post_init__(self) -> None:
        for name in self.optimizers:
            optimizers.check(name)
        if not self.optimizers or len(set(self.optimizers)) < len(self.optimizers):
            raise ValueError(f"optimizers={' '.join(self.optimizers)!r}: must be distinct ones, at least one")
        if self.trials < 1:
            raise ValueError(f"trials={self.trials}: must be at least 1")
        if searched := self.changes.keys() & set(self.dimensions):
            raise ValueError(f"{min(searched)}: is searched, so it can't be set")

    @cached_property
    def chosen(self) -> Preset:
        return preset(self.workload, self.preset)

    @cached_property
    def scale(self) -> Scale:
        """The settings that are not searched."""
        return self.chosen.scale.changed(self.changes)

    @cached_property
    def dimensions(self) -> list[str]:
        """All settings that are searched for any optimizer."""
        own = self.chosen.tuning.own.values()
        return sorted({*self.chosen.tuning.ranges, *(name for ranges in own for name in ranges)})

    def point(self, optimizer: str, trial: int) -> dict[str, float | str]:
        """The settings of a trial."""
        places = dict(zip(self.dimensions, self._places[trial].tolist(), strict=True))
        ranges = self.chosen.tuning.of(optimizer)
        return {name: found.at(places[name]) for name, found in ranges.items()}

    def share(self, optimizer: str, name: str, trial: int) -> float:
        """Where the point of a trial lies in a range, from 0 to 1."""
        return float(self._places[trial][self.dimensions.index(name)])

    @cached_property
    def _places(self) -> Tensor:
        engine = SobolEngine(len(self.dimensions), scramble=True, seed=self.seed)
        return engine.draw(self.trials, dtype=torch.float64)

    def pieces(self, out: Path) -> list[Piece]:
        """All trials. Every optimizer's first trial comes before any second one."""
        found = []
        for trial in range(self.trials):
            for optimizer in self.optimizers:
                scale = self.scale.changed({**self.point(optimizer, trial), "steps": self.scale.tuning_steps})
                settings = Settings(self.workload, self.preset, self.data, optimizer, TUNING_SEED, scale)
                found.append(Piece(optimizer, trial, settings, out / TRIALS / f"{optimizer}-{trial:04}"))
        return found

    def claim(self, out: Path) -> None:
        """Write the options into a folder. Raises ValueError if it holds a search of others.

        Trials and optimizers may be added later: points don't depend on them.
        """
        if not (out / OPTIONS).exists():
            claim(out, asdict(self), results=TRIALS)
            return
        known = Search.read(out)
        grown = {"optimizers": known.optimizers, "trials": known.trials}
        refuse_others(out, asdict(self) | grown, results=TRIALS)
        names = tuple(dict.fromkeys((*known.optimizers, *self.optimizers)))
        both = replace(self, optimizers=names, trials=max(self.trials, known.trials))
        if both != known:
            write(out / OPTIONS, json.dumps(asdict(both), indent=2) + "\n")

    @classmethod
    def read(cls, out: Path) -> "Search":
        """The search in a folder."""
        path = out / OPTIONS
        if not path.exists():
            raise ValueError(f"{out}: holds no search; `sketchy tune` makes one")
        known = read_object(path)
        with damaged(str(path), "remove its directory to start again"):
            return cls(**{**known, "optimizers": tuple(known["optimizers"])})


def preset(name: str, scale: str) -> Preset:
    presets = workload(name).presets
    if scale not in presets:
        raise ValueError(f"scale={scale!r}: must be one of {', '.join(presets)}")
    return presets[scale]


# ---- results


@dataclass(frozen=True)
class Best:
    """The best trial of an optimizer, among the first ``trials``."""

    optimizer: str
    trial: int
    trials: int
    point: Mapping[str, float | str]
    record: Record


def finished(pieces: Sequence[Piece]) -> Iterator[tuple[Piece, Record]]:
    """The runs that have ended."""
    for piece in pieces:
        if (record := folder.ended(piece.folder)) is not None:
            yield piece, record


def common(search: Search, out: Path) -> int:
    """How many first trials all optimizers have finished: the budget that may be compared."""
    done = {(piece.optimizer, piece.number) for piece, _ in finished(search.pieces(out))}
    full = (all((name, trial) in done for name in search.optimizers) for trial in range(search.trials))
    return next((trial for trial, all_done in enumerate(full) if not all_done), search.trials)


def best(search: Search, out: Path) -> list[Best]:
    """The best trial of each optimizer that did not always fail, all with the same number of trials."""
    trials = common(search, out)
    if trials == 0:
        raise ValueError(f"{out}: no trial that all of {', '.join(search.optimizers)} have finished")
    metric = workload(search.workload).metric
    found: dict[str, tuple[float, Best]] = {}
    for piece, record in finished(search.pieces(out)):
        if piece.number >= trials:
            continue
        bad = badness(record, metric, search.chosen.tuning)
        known = found.get(piece.optimizer)
        if math.isfinite(bad) and (known is None or bad < known[0]):
            point = search.point(piece.optimizer, piece.number)
            found[piece.optimizer] = bad, Best(piece.optimizer, piece.number, trials, point, record)
    return [found[name][1] for name in search.optimizers if name in found]


def finals(search: Search, out: Path, seeds: int, changes: Mapping[str, Any]) -> list[Piece]:
    """The best setting of each optimizer with seeds that were not tuned on."""
    if seeds < 1:
        raise ValueError(f"seeds={seeds}: must be at least 1")
    if searched := changes.keys() & set(search.dimensions):
        raise ValueError(f"{min(searched)}: was searched, so it can't be set")
    if not (winners := best(search, out)):
        raise ValueError(f"{out}: all trials failed")
    found = []
    for seed in range(TUNING_SEED + 1, TUNING_SEED + 1 + seeds):
        for each in winners:
            scale = search.scale.changed({**each.point, **changes})
            settings = Settings(search.workload, search.preset, search.data, each.optimizer, seed, scale)
            found.append(Piece(each.optimizer, seed, settings, out / FINALS / f"{each.optimizer}-{seed}"))
    return found

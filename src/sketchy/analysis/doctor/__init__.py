"""Examine the device at hand: are steps right on it, what do they start there, and how long do they take?

`examine` gives a dictionary of plain values, which is what `sketchy doctor` writes; `page.markdown` shows it.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch

from sketchy.analysis.doctor import blocks, cases, checks
from sketchy.analysis.doctor.machine import about
from sketchy.analysis.doctor.steps import race
from sketchy.core.arguments import check_count

Tell = Callable[[str, int, int], None]  # what is being done, how many pieces are done, and of how many


@dataclass(frozen=True)
class Setup:
    """The device, the size of the blocks that are timed, and how long to take."""

    device: torch.device
    width: int
    layers: int
    rank: int
    steps: int  # of the checks
    seeds: int
    rounds: int  # of the timing

    @classmethod
    def of(
        cls, device: torch.device, width: int | None, layers: int | None, rank: int, quick: bool
    ) -> "Setup":
        """GPT-2 small on an accelerator, and less on a CPU or if it must be quick; what is given is kept."""
        usual = (64, 1) if quick else (256, 4) if device.type == "cpu" else (768, 12)
        width = usual[0] if width is None else width
        layers = usual[1] if layers is None else layers
        check_count("width", width, 8, "at least 8: the width of the blocks")
        check_count("layers", layers, 1, "at least 1: the number of blocks")
        check_count("rank", rank, 2, "at least 2: the rank of the sketches")
        steps, seeds, rounds = (3, 1, 3) if quick else (6, 3, 15)
        return cls(device, width, layers, rank, steps, seeds, rounds)

    @property
    def size(self) -> blocks.Size:
        return blocks.Size(self.width, self.layers, self.rank)


def examine(setup: Setup, tell: Tell = lambda *_: None) -> dict[str, Any]:
    """Check, count and time on a device. What goes wrong there is a result, too."""
    found: dict[str, Any] = {
        "machine": about(setup.device),
        "setup": {**asdict(setup), "device": str(setup.device)},
    }
    chosen = cases.cases(setup.device)
    total, done = len(chosen) + len(blocks.CONTENDERS) + setup.rounds, 0

    def telling(what: str, pieces: Iterable[Any]) -> Iterator[Any]:
        nonlocal done
        for piece in pieces:
            tell(f"{what} {getattr(piece, 'name', '')}".strip(), done, total)
            yield piece
            done += 1

    effort = checks.Effort(setup.steps, setup.seeds)
    rows = [row for case in telling("checking", chosen) for row in checks.check(case, setup.device, effort)]
    contenders, rounds = telling("counting", blocks.CONTENDERS), telling("timing", range(setup.rounds))
    steps = race(setup.size, setup.device, contenders, rounds)
    tell("done", total, total)
    found["checks"] = [asdict(row) for row in rows]
    found["steps"] = [asdict(step) for step in steps]
    return found

"""The paper's spectral figures for a run of a workload: records in spectra.jsonl, and a Gaussian control."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sketchy.analysis.spectra import SpectrumMonitor, read
from sketchy.experiments.spectra import gaussian_dimension
from sketchy.experiments.workloads.run import Run
from sketchy.files import write
from sketchy.optim import Shampoo

SPECTRA, CONTROL = "spectra.jsonl", "gaussian.jsonl"
BETA2 = 0.999  # of the paper's figures
COLUMNS = (1, 64)  # of the Gaussian matrices, as in the paper


class Watch:
    """Records the spectra of a run ``times`` times, evenly, at steps where inverse roots were just taken.

    Those of dense Shampoo are its own factors, with its β₂. For other optimizers the monitor keeps factors
    with the same blocks and β₂ = 0.999. k is a quarter of the block size: 256 of 1024, as in the paper.
    """

    def __init__(self, run: Run, folder: Path, times: int, covariances: dict[str, Any] | None) -> None:
        if times < 1:
            raise ValueError(f"spectra={times}: must be at least 1")
        self.run, self.folder = run, folder
        scale, step = run.scale, run.record.step
        period = scale.roots_every
        every = max(1, run.record.steps // times // period) * period
        path = folder / SPECTRA
        known = [record for record in read(path) if record.step <= step] if path.exists() else []
        write(path, "".join(f"{json.dumps(asdict(record))}\n" for record in known))
        own = isinstance(run.optimizer, Shampoo)
        self.monitor = SpectrumMonitor(
            run.optimizer if own else run.network,
            every,
            path,
            top=max(1, scale.block_size // 4),
            beta2=BETA2,
            exact_up_to=scale.block_size,
            block_size=scale.block_size,
            resumed_at=step,
        )
        if covariances:
            self.monitor.load_state_dict(covariances)

    @contextmanager
    def following(self) -> Iterator[None]:
        with self.monitor:
            yield
        if self.run.record.over:
            self.draw()

    def draw(self) -> None:
        """Write what Gaussian gradients give after as many steps: the control of the paper's Sec. 5.2."""
        scale, draws = self.run.scale, self.run.record.step
        beta2 = scale.beta2 if isinstance(self.run.optimizer, Shampoo) else BETA2
        common = {"dim": scale.block_size, "draws": draws, "beta2": beta2}
        rows = [
            {"columns": columns, **common, "dimension": gaussian_dimension(columns, seed=0, **common)}  # type: ignore[arg-type]
            for columns in COLUMNS
        ]
        write(self.folder / CONTROL, "".join(f"{json.dumps(row)}\n" for row in rows))

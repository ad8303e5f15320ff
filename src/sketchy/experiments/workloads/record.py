"""What is known of a run: looks, times and sizes."""

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self

from sketchy.experiments.workloads.scale import Tuning
from sketchy.experiments.workloads.workload import Metric, Score

Ended = Literal["", "finished", "diverged", "gave up"]


@dataclass(frozen=True)
class Look:
    """The held-out rows after a number of steps: a line of metrics.jsonl."""

    step: int
    train_loss: float | None  # mean since the last look, with dropout and augmentation; None at step 0
    lr: float
    gradient_norm: float  # of the last step, before clipping
    validation_loss: float
    validation_metric: float
    test_loss: float | None = None  # None in trials: settings are not chosen on test rows
    test_metric: float | None = None
    seconds: float = 0.0  # of training up to here, without looks


@dataclass
class Record:
    """A run up to now."""

    steps: int  # planned
    step: int = 0  # taken
    looks: list[Look] = field(default_factory=list)
    ended: Ended = ""  # empty while it runs
    why: str = ""
    weights: int = 0
    optimizer_bytes: int = 0
    seconds: float = 0.0  # of training, without looks, on the wall
    cpu_seconds: float = 0.0  # of this process, the same
    optimizer_seconds: float = 0.0  # of it in optimizer.step()
    look_seconds: float = 0.0
    peak_bytes: int = 0  # of memory: of the device, or of the process

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """The inverse of `dataclasses.asdict`."""
        return cls(**{**values, "looks": [Look(**look) for look in values["looks"]]})

    @property
    def over(self) -> bool:
        return self.ended != ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def score(self, metric: Metric) -> Score:
        """The last look at the validation rows; the worst score if the run failed."""
        if self.ended in ("diverged", "gave up") or not self.looks:
            return Score(math.inf, metric.worst)
        return Score(self.looks[-1].validation_loss, self.looks[-1].validation_metric)


def badness(record: Record, metric: Metric, tuning: Tuning) -> float:
    """A number to choose by: the lowest is best. Infinite if the run failed."""
    score = record.score(metric)
    if not math.isfinite(score.loss) or tuning.chosen_by == "loss":
        return score.loss
    return -score.metric if metric.higher_is_better else score.metric

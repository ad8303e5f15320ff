"""The spectrum monitor as a callback of Lightning and of the Hugging Face Trainer.

Both follow one of our optimizers if the run has one, and otherwise the model. Processes beside the first one
read gradients, too (sharded ones need all), but write nothing.
"""

from collections.abc import Iterable
from typing import Any

from torch import nn

from sketchy.analysis.spectra import SpectrumMonitor
from sketchy.optim.engine import Engine


class Watch:
    """A monitor for as long as a run trains."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.monitor: SpectrumMonitor | None = None
        self.saved: dict[str, Any] = {}  # covariances of an earlier part of the run

    def begin(self, model: nn.Module, optimizers: Iterable[Any], step: int, writer: Any, first: bool) -> None:
        self.end()
        # Accelerate wraps optimizers
        inner = (getattr(optimizer, "optimizer", optimizer) for optimizer in optimizers)
        source = next((optimizer for optimizer in inner if isinstance(optimizer, Engine)), model)
        options = {"tensorboard": writer, **self.options, "resumed_at": step}
        if not first:
            options |= {"tensorboard": None, "path": None}
        self.monitor = SpectrumMonitor(source, **options)
        if self.saved:
            self.monitor.load_state_dict(self.saved)
        self.monitor.__enter__()

    def end(self) -> None:
        if self.monitor is not None:
            self.monitor.close()


def lightning_callback(**options: Any) -> Any:
    """A callback for Lightning's ``Trainer(callbacks=[...])`` that records spectra while it trains.

    ``options`` are those of `SpectrumMonitor`, such as ``every`` and ``path``. Numbers also go to the
    trainer's logger, unless ``tensorboard`` is given. The callback's ``monitor`` has the records. Checkpoints
    contain the covariances of a monitored model, so a resumed run goes on with them.
    """
    from lightning.pytorch.callbacks import Callback

    class SpectrumCallback(Callback):
        def __init__(self) -> None:
            self._watch = Watch(options)

        @property
        def monitor(self) -> SpectrumMonitor | None:
            return self._watch.monitor

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            first, logger = trainer.is_global_zero, trainer.logger
            self._watch.begin(pl_module, trainer.optimizers, trainer.global_step, logger, first)

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            self._watch.end()

        def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
            self._watch.end()

        def state_dict(self) -> dict[str, Any]:
            return {} if self.monitor is None else self.monitor.state_dict()

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            self._watch.saved = state_dict

    return SpectrumCallback()


def trainer_callback(**options: Any) -> Any:
    """A callback for the Hugging Face ``Trainer(callbacks=[...])`` that records spectra while it trains.

    ``options`` are those of `SpectrumMonitor`, such as ``every``, ``path`` and ``tensorboard``. The
    callback's ``monitor`` has the records. After a resume, the covariances of a model (with another optimizer
    than ours) begin anew.
    """
    from transformers import TrainerCallback

    class SpectrumCallback(TrainerCallback):
        def __init__(self) -> None:
            self._watch = Watch(options)

        @property
        def monitor(self) -> SpectrumMonitor | None:
            return self._watch.monitor

        def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            model, optimizer = others["model"], others["optimizer"]
            self._watch.begin(model, [optimizer], state.global_step, None, state.is_world_process_zero)

        def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            self._watch.end()

    return SpectrumCallback()

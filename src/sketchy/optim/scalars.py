"""What a run looks like from inside, as numbers for TensorBoard, Weights & Biases and other writers."""

from collections.abc import Mapping
from typing import Any

from sketchy.optim.engine import Engine


def log(optimizer: Engine, writer: Any, step: int | None = None) -> dict[str, float]:
    """Write the numbers of an optimizer's report to a writer, and return them.

    The writer is TensorBoard's ``SummaryWriter``, a run of Weights & Biases (or the module ``wandb``), or a
    logger of Lightning. It gets ``sketchy/skipped``, and for each sketched parameter
    ``sketchy/escaped/NAME`` and ``sketchy/error/NAME``: the columns *escaped* and *error <=* of the report.
    Reading them waits for the device, so call this every hundred steps or so.

    Args:
        optimizer: one of ours.
        writer: an object with ``add_scalar``, ``log_metrics`` or ``log``.
        step: the number on the horizontal axis; by default the optimizer's number of steps.
    """
    report = optimizer.report()
    values = {"sketchy/state_bytes": float(report.bytes), "sketchy/skipped": float(report.skipped)}
    for row in report:
        if row.escaped_share is not None:
            values[f"sketchy/escaped/{row.name}"] = row.escaped_share
        if row.certified_error is not None:
            values[f"sketchy/error/{row.name}"] = row.certified_error
    write_scalars(writer, values, _steps(optimizer) if step is None else step)
    return values


def is_writer(writer: Any) -> bool:
    """Whether `write_scalars` knows how to write to it."""
    return any(hasattr(writer, way) for way in ("add_scalar", "log_metrics", "log"))


def write_scalars(writer: Any, values: Mapping[str, float], step: int) -> None:
    """Hand numbers to a writer, in the way that it knows."""
    if hasattr(writer, "add_scalar"):  # TensorBoard
        for name, value in values.items():
            writer.add_scalar(name, value, step)
    elif hasattr(writer, "log_metrics"):  # Lightning
        writer.log_metrics(dict(values), step=step)
    elif hasattr(writer, "log"):  # Weights & Biases
        writer.log(dict(values), step=step)
    else:
        raise TypeError(
            f"writer is a {type(writer).__name__}: must have add_scalar (TensorBoard), log_metrics"
            " (Lightning) or log (Weights & Biases)"
        )


def _steps(optimizer: Engine) -> int:
    """The number of steps taken, bad gradients not counted."""
    return max((int(state["step"]) for state in optimizer.state.values() if "step" in state), default=0)

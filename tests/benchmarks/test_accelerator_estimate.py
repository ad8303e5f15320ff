"""The estimate for accelerators counts what a step reads and writes."""

import pytest
import torch
from benchmarks.speed import accelerator_estimate

from sketchy import SketchyShampoo, SketchySOAP


def test_reads_and_writes_are_counted_and_views_and_products_are_not() -> None:
    x, y = (torch.empty(8, 4, device="meta") for _ in range(2))
    with accelerator_estimate.Traffic() as found:
        x + y  # two read, one written
        x.add_(y)  # two read, one written
        x.copy_(y)  # one read, one written
        torch._foreach_add_([x], [y])
        x.mT.reshape(-1)  # a copy: one read, one written
        x.view(-1)
        x @ y.mT
    assert found.bytes == (3 + 3 + 2 + 3 + 2) * 8 * 4 * 4
    assert found.operations == 6


@pytest.mark.parametrize("kind", [SketchyShampoo, SketchySOAP])
def test_traffic_grows_with_the_weights(kind: type[torch.optim.Optimizer]) -> None:
    two, eight = (accelerator_estimate.traffic(kind, [(1024, 512)], layers, 16).bytes for layers in (2, 8))
    weight = 4 * 1024 * 512
    assert 10 * weight < two / 2 < 60 * weight
    assert eight == pytest.approx(4 * two, rel=0.05)  # long stacks copy once more or less


def test_the_table_has_both_devices_and_what_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    accelerator_estimate.main(["--width", "256", "--layers", "2"])
    printed = " ".join(capsys.readouterr().out.split())
    assert all(
        word in printed for word in ("A100", "H100", "SketchySOAP", "batches of eigenproblems", "launches")
    )


@pytest.mark.parametrize("options", [{"rank": 1}, {"width": 8}, {"layers": 0}, {"tokens": -5}], ids=str)
def test_sizes_that_cannot_be_are_refused(
    options: dict[str, int], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        accelerator_estimate.main(
            [word for name, value in options.items() for word in (f"--{name}", str(value))]
        )
    assert stop.value.code == 2
    assert "must be at least" in capsys.readouterr().err


def test_every_assumption_is_an_argument_and_counts(capsys: pytest.CaptureFixture[str]) -> None:
    options: dict[str, object] = {"width": 128, "layers": 1, "rank": 8, "tokens": 64}

    def ratios(**changed: object) -> list[float]:
        estimate = accelerator_estimate.Estimate(accelerator_estimate.Options(**options | changed))
        return [float(line[2]) for line in estimate.lines()]

    usual = ratios()
    assert ratios(batch_ms=1000.0) > usual and ratios(launch_us=1e6) > usual
    assert ratios(training=1.0) > usual
    assert len(ratios(devices=("mine",), bandwidth=(1e12,), fp32=(1e13,), tf32=(1e14,), bf16=(2e14,))) == 2
    with pytest.raises(SystemExit):
        accelerator_estimate.main(["--devices", "mine"])
    assert "bandwidth: 2 numbers for 1 devices" in capsys.readouterr().err


def test_a_batch_of_eigenproblems_serves_all_layers() -> None:
    shapes = [(96, 64), (64, 64)]
    one, four = (accelerator_estimate.traffic(SketchySOAP, shapes, layers, 16).batches for layers in (1, 4))
    assert one == four <= len(shapes)

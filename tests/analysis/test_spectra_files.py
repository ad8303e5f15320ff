"""Records on disk and in TensorBoard, and resumed runs."""

import dataclasses
import io
import json

import pytest
import torch
from watched import BETA2, Loop, Net, follow, gradients, sgd

from sketchy.analysis.spectra import SpectrumMonitor, read


def test_lines_are_appended_whole_and_read_back(tmp_path):
    path = tmp_path / "deep" / "spectra.jsonl"
    for resumed_at in (0, 8):
        loop = Loop()
        with SpectrumMonitor(loop.net, every=4, path=path, resumed_at=resumed_at) as monitor:
            loop.plain(sgd(loop.net))
        assert monitor.records == []  # the file has them
    records = read(path)
    assert [r.step for r in records if r.parameter == "0.weight" and r.axis == "left"] == [4, 8, 12, 16]
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        dataclasses.asdict(record) for record in records
    ]


def test_each_recording_is_on_disk_at_once(tmp_path):
    loop, path = Loop(), tmp_path / "spectra.jsonl"
    optimizer = sgd(loop.net)
    with SpectrumMonitor(loop.net, every=1, path=path):
        for step in range(3):
            loop.loss(step).backward()
            optimizer.step()
            assert len(read(path)) == 4 * (step + 1)


def test_a_last_line_that_was_cut_off_is_left_out_and_a_stray_line_is_named(tmp_path):
    loop, path = Loop(), tmp_path / "spectra.jsonl"
    with SpectrumMonitor(loop.net, every=8, path=path):
        loop.plain(sgd(loop.net))
    whole = path.read_text()
    path.write_text(whole + whole[:40])
    assert len(read(path)) == 4
    path.write_text(whole + '{"step": 3}\n')
    with pytest.raises(ValueError, match=r"line 5: damaged \(not a record of SpectrumMonitor\); remove"):
        read(path)


def test_a_weight_without_mass_has_no_shares_and_its_line_is_still_json(tmp_path):
    net, path = Net(3, 4), tmp_path / "spectra.jsonl"
    follow(net, net.weight, [torch.zeros(3, 4)], path=path)
    for line in path.read_text().splitlines():
        assert json.loads(line, parse_constant=pytest.fail)["share"] is None
    assert all(record.intrinsic_dimension is None and record.trace == 0 for record in read(path))


class Writer:
    def __init__(self) -> None:
        self.seen: dict[str, float] = {}

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.seen[tag] = value


class Run(Writer):
    """A run of Weights & Biases; it takes all numbers of a step at once."""

    add_scalar = property()  # type: ignore[assignment]  # it has none

    def log(self, values: dict[str, float], step: int) -> None:
        assert step not in self.__dict__.setdefault("steps", [])
        self.steps.append(step)
        self.seen |= values


@pytest.mark.parametrize("kind", [Writer, Run])
def test_scalars_go_to_a_writer(kind):
    net, stream, writer = Net(6, 8), gradients(4, (6, 8)), kind()
    records = follow(net, net.weight, stream, tensorboard=writer).records
    assert len(writer.seen) == 8
    assert writer.seen["intrinsic_dimension/weight/left"] == records[0].intrinsic_dimension


def test_tensorboard_files_hold_the_records(tmp_path):
    pytest.importorskip("tensorboard", reason="the spectra extra brings tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    net, stream = Net(6, 8), gradients(4, (6, 8))
    records = follow(net, net.weight, stream, tensorboard=tmp_path).records
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    (event,) = events.Scalars("share/weight/right")
    assert event.step == 4 and event.value == pytest.approx(records[1].share, rel=1e-6)


# ---- resumed


def resumed(shape, steps, at, **options):
    """The records of a run whose monitor is saved to a file and loaded into another monitor."""
    stream, net = gradients(steps, shape), Net(*shape)
    first = follow(net, net.weight, stream[:at], every=1, beta2=BETA2, **options)
    saved = io.BytesIO()
    torch.save(first.state_dict(), saved)
    saved.seek(0)
    second = SpectrumMonitor(net, every=1, resumed_at=at, beta2=BETA2, **options)
    second.load_state_dict(torch.load(saved, weights_only=True))
    optimizer = sgd(net)
    with second:
        for gradient in stream[at:]:
            net.weight.grad = gradient
            optimizer.step()
    whole = follow(net, net.weight, stream, every=1, beta2=BETA2, **options)
    return first.records + second.records, whole.records


@pytest.mark.parametrize("options", [{}, {"exact_up_to": 0, "rank": 4}, {"block_size": 5}], ids=str)
def test_a_monitor_that_was_saved_and_loaded_records_what_one_that_went_on_does(options):
    parts, whole = resumed((12, 16), 9, 5, **options)
    assert parts == whole and {record.step for record in parts} == set(range(1, 10))


def test_covariances_of_other_settings_are_refused():
    net, stream = Net(12, 16), gradients(3, (12, 16))
    saved = follow(net, net.weight, stream, exact_up_to=0, rank=4).state_dict()
    with pytest.raises(
        ValueError, match=r"'weight' are left_basis 1x12x4.*not left_covariance 1x12x12.*: give the monitor"
    ):
        SpectrumMonitor(net).load_state_dict(saved)

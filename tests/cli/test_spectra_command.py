import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("tyro")
pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")

from sketchy.analysis.spectra import Spectrum, SpectrumMonitor, read
from sketchy.cli.spectra import spectra
from sketchy.experiments import spectra as experiment
from sketchy.experiments import tasks
from sketchy.experiments.training import Record, train


def printed(capsys) -> dict:
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("optimizer", ["AdamW", "Shampoo", "SketchyShampoo", "SketchySOAP"])
def test_a_run_writes_a_line_for_each_covariance_and_two_figures(optimizer, tmp_path, capsys):
    spectra(optimizer=optimizer, steps=12, every=4, rank=8, out=tmp_path)
    records = read(tmp_path / "spectra.jsonl")
    assert [(r.step, r.parameter, r.axis, r.dim) for r in records] == [
        (step, f"{i}.weight", axis, dim)
        for step in (4, 8, 12)
        for i, shape in ((0, (128, 64)), (2, (64, 128)), (4, (10, 64)))
        for axis, dim in zip(("left", "right"), shape, strict=True)
    ]
    for r in records:
        assert r.share_low <= r.share <= r.share_high <= 1
        assert 1 <= r.intrinsic_low <= r.intrinsic_dimension <= r.intrinsic_high <= r.dim
        assert r.top == -(-r.dim // 4)
        assert r.trace > 0
    for figure in ("share.png", "dimension.png"):
        assert (tmp_path / figure).read_bytes().startswith(b"\x89PNG")
    assert "top-k mass of L" in capsys.readouterr().out


def test_sketches_agree_with_the_exact_run_within_their_bounds(tmp_path):
    """AdamW does not depend on sketches, so the same run can be recorded exactly and by sketches."""
    found = []
    for exact_up_to in (1024, 0):
        path = tmp_path / f"{exact_up_to}.jsonl"
        monitors = []

        def make(model, path=path, exact_up_to=exact_up_to, monitors=monitors):
            monitor = SpectrumMonitor(model, 10, path, exact_up_to=exact_up_to, rank=16)
            monitors.append(monitor.__enter__())
            return torch.optim.AdamW(model.parameters(), 0.004)

        train(tasks.load("digits"), make, steps=30)
        monitors[0].close()
        found.append(read(path))
    sketched = 0
    for exact, other in zip(*found, strict=True):
        sketched += other.rank < other.dim
        assert other.share_low - 1e-5 <= exact.share <= other.share_high + 1e-5
        assert other.intrinsic_low * (1 - 1e-5) <= exact.intrinsic_dimension
        assert exact.intrinsic_dimension <= other.intrinsic_high * (1 + 1e-5)
    assert sketched == 3 * 5


def test_json_is_all_that_is_printed_and_a_file_gives_it_again(tmp_path, capsys):
    spectra(steps=8, every=4, out=tmp_path, json=True)
    first = printed(capsys)
    assert {(band["axis"], band["step"]) for band in first["share"]} == {
        (axis, step) for axis in ("left", "right") for step in (4, 8)
    }
    (tmp_path / "share.png").unlink()
    spectra(from_=tmp_path / "spectra.jsonl", json=True)
    assert printed(capsys) == first and (tmp_path / "share.png").exists()


def test_a_second_run_replaces_the_lines_of_the_first(tmp_path):
    for _ in range(2):
        spectra(steps=4, every=4, out=tmp_path)
    assert len(read(tmp_path / "spectra.jsonl")) == 6


def record(step: int, axis: str, share: float | None, low: float, high: float) -> Spectrum:
    bounds = None if share is None else 1 / high, None if share is None else 1 / low
    return Spectrum(
        step, "w", 0, axis, 8, 4, 2, share, low, high, share and 1 / share, *bounds, None, 0.0, 0.0, 0
    )  # fmt: skip


def test_bands_are_the_median_and_the_quartiles_of_the_bounds():
    shares = (0.1, 0.2, 0.3, 0.4, 0.9)
    records = [record(5, "left", s, s - 0.05, s + 0.05) for s in shares] + [record(5, "left", None, 0, 0)]
    (band,) = experiment.bands(records, "share")
    assert (band.axis, band.step, band.covariances) == ("left", 5, 5)
    assert band.median == 0.3 and band.mean == pytest.approx(0.38)
    assert band.first_quartile == pytest.approx(0.15) and band.third_quartile == pytest.approx(0.45)


MISTAKES = [
    ({"task": "nope"}, "task='nope': no such task"),
    ({"steps": 0}, "steps=0: must be at least 1"),
    ({"every": 0}, "every=0: must be at least 1"),
    ({"top": 1.5}, "top=1.5: must be a number"),
    ({"optimizer": "SketchyShampoo", "rank": 1}, "rank=1: must be an int, at least 2"),
    ({"steps": 3, "every": 4}, "no records; a run must reach a step that is a multiple of --every"),
    ({"from_": Path("nowhere.jsonl")}, "nowhere.jsonl"),
    ({"control": True, "trials": 1}, "trials=1: must be at least 2, for a standard error"),
]


@pytest.mark.parametrize(("options", "message"), MISTAKES)
def test_mistakes_are_one_line_and_exit_code_2(options, message, tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        spectra(**{"out": tmp_path, **options})
    assert stop.value.code == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("sketchy spectra")]
    assert len(lines) == 1 and message in lines[0]


def test_a_mistake_leaves_the_lines_of_an_earlier_run_alone(tmp_path):
    spectra(steps=4, every=4, out=tmp_path)
    with pytest.raises(SystemExit):
        spectra(steps=4, optimizer="SketchyShampoo", rank=1, out=tmp_path)
    assert len(read(tmp_path / "spectra.jsonl")) == 6


def test_a_run_that_leaves_the_numbers_is_drawn_so_far_and_exits_with_1(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        spectra(optimizer="AdamW", steps=40, every=1, rate=1e36, out=tmp_path)
    assert stop.value.code == 1 and "diverged at step" in capsys.readouterr().err


def options(optimizer: str = "Shampoo", **changes) -> experiment.Watched:
    plain = {"task": "digits", "rate": 0.004, "rank": 8, "top": 0.25, "steps": 12, "every": 3, "seed": 0}
    return experiment.Watched(optimizer=optimizer, **{**plain, **changes})


def watched(out: Path, options: experiment.Watched, *, until: int | None = None) -> tuple[Record, str]:
    """The record of a run that is stopped after a number of steps, and its lines."""
    out.mkdir(exist_ok=True)
    steps = iter(range(options.steps))
    run = experiment.watch(
        tasks.load("digits"), options, out, stopped=lambda: until is not None and next(steps) + 1 >= until
    )
    *_, record = run
    return record, (out / "spectra.jsonl").read_text()


@pytest.mark.parametrize("optimizer", ["AdamW", "Shampoo", "SketchyShampoo", "SketchySOAP"])
def test_stopped_twice_and_resumed_equals_never_stopped(optimizer, tmp_path):
    whole, lines = watched(tmp_path / "whole", options(optimizer))
    part, some = watched(tmp_path / "part", options(optimizer), until=5)
    assert part.step == 5 and lines.startswith(some) and 0 < len(some) < len(lines)
    with (tmp_path / "part" / "spectra.jsonl").open("a") as file:  # as a crash after the checkpoint leaves it
        file.write(lines[len(some) :][:700])
    assert watched(tmp_path / "part", options(optimizer), until=3)[0].step == 8
    resumed, same = watched(tmp_path / "part", options(optimizer))
    assert same == lines and resumed.curve == whole.curve
    assert resumed.optimizer_bytes == whole.optimizer_bytes and resumed.seconds > part.seconds
    assert not (tmp_path / "part" / "checkpoint.pt").exists()


def test_a_stopped_run_is_not_gone_on_with_by_other_options(tmp_path, capsys):
    _, lines = watched(tmp_path, options(), until=5)
    with pytest.raises(SystemExit) as stop:
        spectra(optimizer="Shampoo", steps=12, every=3, rank=9, out=tmp_path)
    assert stop.value.code == 2
    assert "holds results of other options (rank was 8 and is now 9); choose" in capsys.readouterr().err
    assert (tmp_path / "spectra.jsonl").read_text() == lines
    spectra(steps=12, every=3, rank=8, out=tmp_path)
    assert {r.step for r in read(tmp_path / "spectra.jsonl")} == {3, 6, 9, 12}


def test_a_finished_run_is_not_erased_by_other_options(tmp_path, capsys):
    spectra(steps=4, every=2, out=tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for change, says in (
        ({"steps": 6}, "steps was 4 and is now 6"),
        ({"optimizer": "AdamW"}, "optimizer was Shampoo and is now AdamW"),
        ({"rate": 0.1, "seed": 3}, "rate was 0.004 and is now 0.1; seed was 0 and is now 3"),
    ):
        with pytest.raises(SystemExit) as stop:
            spectra(**{"steps": 4, "every": 2, "out": tmp_path, **change})
        assert stop.value.code == 2
        assert f"holds results of other options ({says}); choose" in capsys.readouterr().err
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_run_of_unknown_options_is_not_erased(tmp_path, capsys):
    spectra(steps=4, every=2, out=tmp_path)
    (tmp_path / "options.json").unlink()
    with pytest.raises(SystemExit):
        spectra(steps=4, every=2, out=tmp_path)
    assert "holds spectra.jsonl but not its options.json" in capsys.readouterr().err
    assert len(read(tmp_path / "spectra.jsonl")) == 12


def test_options_that_are_refused_claim_no_directory(tmp_path):
    for mistake in ({"every": 0}, {"steps": 0}, {"top": 1.5}, {"save_every": -1.0}):
        with pytest.raises(SystemExit):
            spectra(**{"steps": 4, "every": 2, "out": tmp_path, **mistake})
    spectra(steps=4, every=2, out=tmp_path)


KILLED = """
import sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
from test_spectra_command import experiment, options, tasks

for record in experiment.watch(
    tasks.load("digits"), options(sys.argv[2]), Path(sys.argv[1]), save_every=float(sys.argv[3])
):
    print(record.step, flush=True)
    time.sleep(0.02)
"""


@pytest.mark.parametrize(
    ("optimizer", "seconds"), [("Shampoo", 0.1), ("SketchySOAP", 0.0), ("AdamW", 0.1), ("Shampoo", 60.0)]
)
def test_killed_at_any_moment_and_resumed_equals_never_killed(optimizer, seconds, tmp_path):
    """By SIGKILL, which no process can catch: what was saved by time is all there is."""
    _, lines = watched(tmp_path / "whole", options(optimizer))
    out, here = tmp_path / "part", Path(__file__)
    path = [here.parent, here.parents[1], Path(experiment.__file__).parents[2]]
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(out), optimizer, str(seconds)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))},
        stdout=subprocess.PIPE,
        text=True,
    )
    for line in process.stdout:
        if int(line) >= 10:
            process.kill()
            break
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert (out / "checkpoint.pt").exists() == (seconds < 60)
    steps = [record.step for record in experiment.watch(tasks.load("digits"), options(optimizer), out)]
    assert steps[-1] == 12 and (steps[0] > 1) == (seconds < 60)
    assert (out / "spectra.jsonl").read_text() == lines


DAMAGES = {
    "empty": lambda path: path.write_bytes(b""),
    "junk": lambda path: path.write_bytes(b"\x80junk" * 99),
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:-99]),
    "another": lambda path: torch.save([1, 2], path),
    "keys": lambda path: torch.save({"run": {}}, path),
    "inner keys": lambda path: torch.save({"run": {}, "covariances": {}}, path),
    "inner kinds": lambda path: torch.save({"run": {"model": 3}, "covariances": {}}, path),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_named_and_changes_nothing(damage, tmp_path, capsys):
    _, lines = watched(tmp_path, options(), until=5)
    DAMAGES[damage](tmp_path / "checkpoint.pt")
    with pytest.raises(SystemExit) as stop:
        spectra(steps=12, every=3, rank=8, out=tmp_path)
    (said,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("sketchy spectra")]
    assert stop.value.code == 2 and said.endswith("; remove it to start again")
    assert f"{tmp_path / 'checkpoint.pt'}: damaged (" in said
    assert (tmp_path / "spectra.jsonl").read_text() == lines


@pytest.mark.parametrize("line", ["[]", "{}", '{"run": {}}', "\x80", "{"])
def test_damaged_trials_of_the_control_are_named(line, tmp_path, capsys):
    (tmp_path / "control.jsonl").write_text(f"{line}\n")
    with pytest.raises(SystemExit) as stop:
        spectra(control=True, trials=2, out=tmp_path)
    said = capsys.readouterr().err
    assert stop.value.code == 2 and f"{tmp_path / 'control.jsonl'}, line 1: damaged" in said


# ---- the control experiment


@pytest.mark.parametrize("columns", [1, 3])
def test_the_fast_control_is_the_plain_sum(columns):
    dim, draws, beta2, seed = 24, 5000, 0.99, 3
    rng = torch.Generator().manual_seed(seed)
    C, age = torch.zeros(dim, dim, dtype=torch.float64), 0
    while age < draws:  # the same numbers in the same order, one matrix at a time
        count = min(draws - age, max(1, 4096 // columns))
        X = torch.randn(dim, count * columns, generator=rng).double()
        for x in X.split(columns, dim=1):
            C += beta2**age * x @ x.T
            age += 1
    expected = float(C.trace() / torch.linalg.eigvalsh(C)[-1])
    value = experiment.gaussian_dimension(columns, seed=seed, dim=dim, draws=draws, beta2=beta2)
    assert value == pytest.approx(expected, rel=1e-6)


def test_without_decay_the_control_follows_the_law_of_large_gaussian_matrices():
    """λ_max / (tr C / d) → (1 + √(d / n))² for n columns in all (Marchenko and Pastur)."""
    value = experiment.gaussian_dimension(64, seed=0, dim=256, draws=16, beta2=1.0)
    assert value == pytest.approx(256 / (1 + (256 / 1024) ** 0.5) ** 2, rel=0.03)


def test_the_standard_error_and_the_distance_are_as_defined():
    row = experiment.control(1, [323.0, 325.0, 327.0])
    assert row.mean == 325.0 and row.standard_error == pytest.approx(2 / 3**0.5)
    assert row.distance == pytest.approx((325 - 324.63) / (4 / 3 + 0.52**2) ** 0.5)
    assert row.agrees and not experiment.control(64, [800.0, 801.0, 802.0]).agrees


def test_three_trials_of_one_column_land_near_the_paper():
    """A reduced version: the slow test has all twenty, and 64 columns too."""
    row = experiment.control(1, [experiment.gaussian_dimension(1, seed=trial) for trial in range(3)])
    assert abs(row.mean - row.paper_mean) < 3 * (20 / 3 + 1) ** 0.5 * row.paper_standard_error


def test_a_stopped_control_draws_what_is_missing_and_a_finished_one_begins_anew(tmp_path, monkeypatch):
    drawn = []
    draw = lambda columns, seed: drawn.append((columns, seed)) or columns + seed / 3  # noqa: E731
    monkeypatch.setattr(experiment, "gaussian_dimension", draw)
    path, whole = tmp_path / "part", list(experiment.trials(3, tmp_path / "whole"))
    everything, drawn[:] = list(drawn), []
    assert list(experiment.trials(3, path, stopped=lambda: len(drawn) == 4)) == whole[:4]
    assert list(experiment.trials(3, path)) == whole
    assert drawn == everything
    assert list(experiment.trials(3, path)) == whole and drawn == everything * 2


def test_a_control_that_misses_the_paper_fails(tmp_path, monkeypatch, capsys):
    values = iter((324.0, 325.0, 700.0, 701.0))
    monkeypatch.setattr(experiment, "gaussian_dimension", lambda columns, seed: next(values))
    with pytest.raises(SystemExit) as stop:
        spectra(control=True, trials=2, out=tmp_path)
    assert stop.value.code == 1
    out = capsys.readouterr().out
    assert "324.50 (0.50)" in out and "324.63 (0.52)" in out and "862.13 (0.25)" in out


@pytest.mark.slow
def test_the_control_lands_within_three_standard_errors_of_the_paper(tmp_path, capsys):
    spectra(control=True, json=True, out=tmp_path)
    rows = printed(capsys)
    assert [row["columns"] for row in rows] == [1, 64]
    assert all(row["trials"] == 20 and row["distance"] <= 3 for row in rows)

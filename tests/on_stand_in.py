"""Steps and the doctor on a device with values: `test_stand_in` runs this with SKETCHY_DEVICE=standin."""

from pathlib import Path

import pytest
import torch

from optim.optimizers import CASES, Case, gradient, weights
from sketchy.analysis.doctor import checks
from sketchy.analysis.doctor.cases import CASES as CHECKED
from sketchy.cli import main
from stand_in import NAME, crossings

STEPS = 5


def test_the_device_refuses_what_a_gpu_refuses_and_notes_what_makes_a_host_wait() -> None:
    host, there = torch.ones(2), torch.ones(2, device=NAME)
    with crossings() as found:
        there.add_(there * 2.0).sub_(torch.tensor(1.0))
        there[torch.zeros(1, dtype=torch.int64, device=NAME)] += 1.0
    assert found == []
    for wrong in (lambda: host + there, lambda: host.add_(there), lambda: torch.stack([there, host])):
        with pytest.raises(RuntimeError, match="same device"):
            wrong()
    with pytest.raises(TypeError, match="numpy"):
        there.numpy()
    waits = (
        lambda: there.tolist(),
        lambda: bool(there[0] > 0),
        lambda: torch.equal(there, there),
        lambda: there.nonzero(),
        lambda: there[there > 0],
        lambda: there[torch.tensor([0])],
        lambda: there.copy_(host),
        lambda: host.to(NAME),
        lambda: torch.tensor([1.0], device=NAME),
    )
    for wait in waits:
        with crossings() as found:
            wait()
        assert found
    assert host.tolist() == [1, 1] and type(host.to(NAME).cpu()) is torch.Tensor


@pytest.mark.parametrize("case", CASES, ids=str)
def test_after_the_first_one_a_step_copies_nothing_and_no_step_reads_a_value(case: Case) -> None:
    params = [torch.nn.Parameter(p.detach().to(NAME)) for p in weights()]
    optimizer = case.make(params)
    for step in range(STEPS):
        for i, p in enumerate(params):
            p.grad = gradient(p.cpu(), i, step).to(NAME)
        with crossings() as found:
            optimizer.step()
        if step == 0:  # the first bases of sketches are random, and drawn by the host
            assert set(found) <= {"aten.copy_.default"} and len(found) <= 2 * len(params)
        else:
            assert found == []
    own = [(name, x) for state in optimizer.state.values() for name, x in state.items()]
    assert {name for name, x in own if x.device.type != NAME} == {"turn"}


@pytest.mark.parametrize("case", CHECKED, ids=lambda case: case.name)
def test_steps_agree_with_the_cpu_and_with_float64(case: checks.Case) -> None:
    for row in checks.check(case, torch.device(NAME), checks.Effort(steps=3, seeds=1)):
        assert not row.failed and not row.error and row.skipped


def test_the_doctor_finds_the_device_and_nothing_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda device=None: None)  # torch's has no Python
    main(["doctor", "--quick", "--out", str(tmp_path)])
    said = capsys.readouterr().out
    assert f"on `{NAME}" in said and "All checks passed." in said

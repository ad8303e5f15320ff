"""`sketchy doctor`: it finds what is wrong on a device, and says what is right; no test looks at a time."""

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("tyro")

from core.test_matmul_precision import RoundedProducts
from sketchy.analysis import operations
from sketchy.analysis.doctor import blocks, cases, checks, machine, page, steps
from sketchy.analysis.timing import clock_of, interleave
from sketchy.cli import main
from sketchy.core.tasks import readable
from sketchy.optim import SketchyShampoo
from sketchy.optim.engine import Engine

CPU = torch.device("cpu")
SHAMPOO = cases.CASES[0]
EFFORT = checks.Effort(steps=3, seeds=1)


def status(*words: str) -> int:
    try:
        main(["doctor", "--device", "cpu", "--quick", *words])
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """One optimizer is checked, and three contenders are timed: AdamW, ours, and an absent one."""
    monkeypatch.setattr(cases, "CASES", (SHAMPOO,))
    names = (blocks.ADAMW, "SketchyShampoo", "SOAP (heavyball), refreshed every 2nd step")
    chosen = [contender for contender in blocks.CONTENDERS if contender.name in names]
    monkeypatch.setattr(blocks, "CONTENDERS", tuple(chosen))


def weight(optimizer: Engine, i: int) -> torch.Tensor:
    return optimizer.param_groups[0]["params"][i]


def only_there(monkeypatch: pytest.MonkeyPatch, wrong: Any) -> None:
    """``wrong(optimizer)`` runs after each step on the path of an accelerator."""
    right = Engine.step

    def step(self: Engine, closure: Any = None) -> Any:
        result = right(self, closure)
        if not readable(torch.empty(0)):
            with torch.no_grad():
                wrong(self)
        return result

    monkeypatch.setattr(SketchyShampoo, "step", step)


@pytest.mark.usefixtures("short")
def test_a_healthy_device_passes_and_peers_may_be_absent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "heavyball", None)
    assert status("--out", str(tmp_path / "new")) == 0
    said = capsys.readouterr()
    found = json.loads((tmp_path / "new" / "doctor.json").read_text())
    assert {row["weights"] for row in found["checks"]} == {"float32", "bfloat16"}
    assert all(row["skipped"] and not row["failed"] and not row["error"] for row in found["checks"])
    adamw, ours, absent = found["steps"]
    assert ours["operations"] > adamw["operations"] > 0 and ours["launches_on_meta"] > 100
    assert len(ours["milliseconds"]) == len(ours["over_adamw"]) == 3
    assert absent["note"] == "not installed" and absent["milliseconds"] is None and not absent["failed"]
    assert said.out.rstrip() == (tmp_path / "new" / "doctor.md").read_text().rstrip() == page.markdown(found)
    assert "All checks passed." in said.out and "not installed" in said.out and torch.__version__ in said.out


@pytest.mark.usefixtures("short")
def test_a_device_that_is_wrong_fails_and_the_user_learns_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(optimizer: Engine) -> None:
        weight(optimizer, 0).mul_(1.01)

    only_there(monkeypatch, wrong)
    assert status("--out", str(tmp_path)) == 1
    said = capsys.readouterr()
    assert "please open an issue with" in said.err and "doctor.json" in said.err
    assert "- SketchyShampoo, float32 weights: to the CPU, to float64" in said.out
    row = json.loads((tmp_path / "doctor.json").read_text())["checks"][0]
    assert {"cpu", "float64"} <= set(row["failed"]) and row["farthest"] == "wide.weight"


@pytest.mark.parametrize(
    ("wrong", "failed"),
    [
        (
            lambda o: o.param_groups[0]["params"][3].fill_(torch.nan),
            {"cpu", "float64", "reloaded", "skipped"},
        ),
        (lambda o: weight(o, 5).add_(1e-3), {"cpu", "float64", "skipped"}),
        (lambda o: None, set()),
    ],
    ids=["not finite", "moves with bad gradients", "none"],
)
def test_each_check_finds_its_fault(wrong: Any, failed: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    only_there(monkeypatch, wrong)
    row, _ = checks.check(SHAMPOO, CPU, EFFORT)
    assert set(row.failed) == failed and not row.error
    json.dumps(vars(row), allow_nan=False)


def test_a_state_that_is_not_loaded_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SketchyShampoo, "load_state_dict", lambda *_: None)
    row, _ = checks.check(SHAMPOO, CPU, EFFORT)
    assert row.failed == ["reloaded"]


def test_an_error_of_the_device_is_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(optimizer: Engine) -> None:
        raise RuntimeError("no kernel\nand more")

    only_there(monkeypatch, broken)
    rows = checks.check(SHAMPOO, CPU, EFFORT)
    assert [row.error for row in rows] == ["RuntimeError: no kernel"] * 2
    assert readable(torch.empty(0))

    contender = blocks.Contender("broken", lambda named, rank: broken(None), ours=True)  # type: ignore[arg-type]
    (step,) = steps.race(blocks.Size(8, 1, 2), CPU, [contender], range(2))
    assert step.failed and step.note == "RuntimeError: no kernel"
    found = {"checks": [vars(row) for row in rows], "steps": [vars(step)]}
    assert len(page.failures(found)) == 3


def test_products_in_tf32_are_seen_as_wrong_and_are_not_judged_where_they_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = SketchyShampoo.step

    def step(self: Engine, closure: Any = None) -> Any:
        with nullcontext() if readable(torch.empty(0)) else RoundedProducts():
            return right(self, closure)

    monkeypatch.setattr(SketchyShampoo, "step", step)
    row, _ = checks.check(SHAMPOO, CPU, EFFORT)
    assert row.failed == ["cpu", "float64"]
    row, _ = checks.check(cases.TF32[0], CPU, EFFORT)
    assert not row.failed and row.allowed and row.float64 and row.float64 < row.allowed


def test_few_bits_and_every_kind_of_optimizer_are_checked() -> None:
    assert {case.kind for case in cases.CASES} == {
        "SketchyShampoo",
        "Shampoo",
        "SketchySOAP",
        "SketchyAdagrad",
    }
    assert len(cases.cases(torch.device("cuda"))) == len(cases.CASES) + 2
    params = [(name, torch.nn.Parameter(torch.zeros(shape))) for name, shape in cases.WEIGHTS.items()]
    paths = {row.name: row.path for row in SHAMPOO.made(params).report()}
    assert [name for name, path in paths.items() if path == "adam"] == ["norm.weight", "embed_tokens.weight"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--device nothing", "device='nothing': cannot be used"),
        ("--device meta", "device='meta': cannot be used"),
        ("--device cuda:77", "device='cuda:77': cannot be used"),
        ("--width 4", "width=4: must be at least 8"),
        ("--layers 0", "layers=0: must be at least 1"),
        ("--rank 1", "rank=1: must be at least 2"),
        ("--out FILE", "File exists"),
    ],
)
def test_a_mistake_is_told_in_one_sentence(
    words: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()
    assert (
        status(
            *words.replace("FILE", str(file)).split(), *([] if "out" in words else ["--out", str(tmp_path)])
        )
        == 2
    )
    said = capsys.readouterr()
    assert says in said.err and said.err.count("\n") == 1 and said.out == ""


def test_the_default_is_smaller_on_a_cpu_and_what_is_given_is_kept() -> None:
    from sketchy.analysis.doctor import Setup

    sizes = {kind: Setup.of(torch.device(kind), None, None, 64, False).size for kind in ("cpu", "cuda")}
    assert (sizes["cuda"].width, sizes["cuda"].layers) == (768, 12)
    assert sizes["cpu"].width < 768
    assert Setup.of(CPU, 32, 3, 8, True).size == blocks.Size(32, 3, 8)


def test_the_machine_is_described_without_names_of_hosts_and_paths() -> None:
    import platform

    shown = json.dumps(machine.about(CPU))
    assert torch.__version__ in shown and "highest" in shown
    assert platform.node() not in shown.split('"') and str(Path.cwd()) not in shown


# ---- what a profiler sees on a device that we don't have


def event(name: str, start: float, kind: str = "CPU") -> Any:
    return SimpleNamespace(
        name=name, device_type=f"DeviceType.{kind}", time_range=SimpleNamespace(start=start, end=start + 1)
    )


def test_kernels_copies_and_waits_of_a_call_are_told_apart() -> None:
    span = event(operations.SPAN, 10)
    span.time_range.end = 100
    events = [
        span,
        event("cudaDeviceSynchronize", 5),  # before the call
        event("aten::mm", 20),
        event("cudaLaunchKernel", 21),
        event("cuLaunchKernelEx", 22),
        event("cudaMemcpyAsync", 23),
        event("cudaStreamSynchronize", 24),
        event("cudaStreamWaitEvent", 25),  # the device waits, not the host
        event("cudaDeviceSynchronize", 101),  # the profiler's own
        event(operations.SPAN, 30, "CUDA"),  # the mark of the host, as the device shows it
        event("ampere_sgemm_32x32", 31, "CUDA"),
        event("void at::native::vectorized_elementwise_kernel", 120, "CUDA"),  # it runs after the call
        event("Memcpy DtoH (Device -> Pageable)", 32, "CUDA"),
        event("Memset (Device)", 33, "CUDA"),
    ]
    found = operations.work_of(events)
    assert found.kernels == 2
    assert found.launches == {"cudaLaunchKernel": 1, "cuLaunchKernelEx": 1}
    assert found.copies == {"Memcpy DtoH": 1}
    assert found.waits == {"cudaStreamSynchronize": 1}
    assert operations.device_work(lambda: None, CPU) is None


def test_a_page_of_a_device_has_its_kernels() -> None:
    work = {"kernels": 1971, "launches": {}, "copies": {"Memcpy DtoH": 2}, "waits": {}}
    step = {**vars(steps.Step("SketchySOAP", True)), "milliseconds": [1.0, 2.0, 3.0], "device": work}
    setup = {"steps": 3, "layers": 12, "width": 768, "rank": 64, "rounds": 3}
    found = {"machine": {**machine.about(CPU), "device": "cuda"}, "setup": setup, "steps": [step]}
    row = checks.Row("SketchySOAP", "float32", 1e-5, allowed=1e-4, failed=["cpu"])
    shown = page.markdown({**found, "checks": [vars(row)]})
    assert "| 1,971 | 2 Memcpy DtoH | 0 |" in shown and "not finite ✗" in shown
    assert "path of an accelerator" not in shown


def test_times_are_interleaved_and_have_a_clock_for_each_device() -> None:
    calls = ""

    def say(letter: str) -> None:
        nonlocal calls
        calls += letter

    found = interleave({"a": lambda: say("a"), "b": lambda: say("b")}, rounds=range(2), repeats=1)
    assert calls == "aabbaabb"  # a warm-up each
    assert all(len(times.rounds) == len(times.cpu) == 2 for times in found.values())
    assert clock_of(CPU)(lambda: say("c"))[0] >= 0 and calls.endswith("c")

"""The examples for many processes: torchrun starts them, here with two, connected by gloo."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]
ROOT = Path(__file__).parents[2]
# One rounding of the gradients, in one process, moves the losses of these runs by 2e-3.
ROUNDING = 5e-3
FSDP2 = ("--steps", "20", "--rank", "8", "--every", "10", "--folder")


def start(ranks: int, name: str, *options: str, cwd: Path) -> subprocess.Popen[str]:
    """Start an example by torchrun."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launcher = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
    address = ["--master-addr=127.0.0.1", f"--master-port={port}"]
    # some virtual machines announce AMX and forbid it
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "OMP_NUM_THREADS": "1"}
    environment.pop("SKETCHY_DATA", None)
    return subprocess.Popen(
        [*launcher, *address, str(ROOT / "examples" / f"{name}.py"), *options],
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run(ranks: int, name: str, *options: str, cwd: Path) -> str:
    """What an example prints; it must succeed."""
    process = start(ranks, name, *options, cwd=cwd)
    try:
        printed, _ = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 0, printed[-3000:]
    return printed


def losses(printed: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", printed)]


def tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint in parts, by name."""
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    whole = path.with_suffix(".pt")
    dcp_to_torch_save(path, whole)
    found: dict[str, Tensor] = {}

    def collect(value: Any, name: str) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                collect(inner, f"{name}.{key}")
        elif isinstance(value, Tensor):
            found[name] = value

    collect(torch.load(whole, weights_only=True), "")
    return found


def assert_same_bits(path: Path, other: Path) -> None:
    ours, theirs = tensors(path), tensors(other)
    assert ours.keys() == theirs.keys() and any("left_basis" in name for name in ours)
    assert [name for name, value in ours.items() if not torch.equal(value, theirs[name])] == []


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[float]]:
    """The folder of a run of 20 steps on two processes, and its losses."""
    folder = tmp_path_factory.mktemp("fsdp2")
    return folder, losses(run(2, "fsdp2_torchrun", *FSDP2, str(folder), cwd=folder))


def test_fsdp2_on_two_processes_trains_like_one(
    uninterrupted: tuple[Path, list[float]], tmp_path: Path
) -> None:
    one = losses(run(1, "fsdp2_torchrun", *FSDP2, str(tmp_path), cwd=tmp_path))
    assert uninterrupted[1] == pytest.approx(one, rel=ROUNDING) and one[-1] < 0.9 * one[0]


def test_fsdp2_resumes_to_the_bit_from_the_newest_complete_checkpoint(
    uninterrupted: tuple[Path, list[float]], tmp_path: Path
) -> None:
    shutil.copytree(uninterrupted[0] / "step-000010", tmp_path / "step-000010")
    shutil.copytree(uninterrupted[0] / "step-000010", tmp_path / "step-000020.part")  # a run was killed here
    (tmp_path / "step-000020.part" / ".metadata").write_bytes(b"half")
    printed = run(2, "fsdp2_torchrun", *FSDP2, str(tmp_path), cwd=tmp_path)
    assert "step   10" in printed and "step    0" not in printed
    assert_same_bits(tmp_path / "step-000020", uninterrupted[0] / "step-000020")


def test_fsdp2_resumes_on_three_processes(uninterrupted: tuple[Path, list[float]], tmp_path: Path) -> None:
    """Sixteen rows of a batch, and the rows of the weights, do not divide by three."""
    shutil.copytree(uninterrupted[0] / "step-000010", tmp_path / "step-000010")
    run(3, "fsdp2_torchrun", *FSDP2, str(tmp_path), cwd=tmp_path)
    before = tensors(tmp_path / "step-000010")
    ours, theirs = tensors(tmp_path / "step-000020"), tensors(uninterrupted[0] / "step-000020")
    for name, value in theirs.items():
        if name.startswith(".model") and value.ndim > 1:  # gradients of a key's bias are rounding only
            assert (ours[name] - value).norm() < 1e-3 * (value - before[name]).norm(), name


def test_accelerate_under_fsdp2_resumes_to_the_bit_and_has_the_losses_of_one_process(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    options = ("--epochs", "2", "--double")  # in float64, rounding does not grow to anything visible
    two = run(2, "accelerate_fsdp2", *options, cwd=tmp_path)
    assert "differ from those without by 0.0\n" in two and "FSDP2: True" in two
    one = run(1, "accelerate_fsdp2", *options, cwd=tmp_path)
    assert losses(two) == pytest.approx(losses(one), abs=2e-6) and losses(one)[1] < 0.8 * losses(one)[0]


def test_lightning_under_fsdp2_resumes_to_the_bit_and_has_the_losses_of_one_process(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    options = ("--epochs", "2", "--double")
    two = run(2, "lightning_fsdp2", *options, cwd=tmp_path)
    assert "the same at every step on 2 processes" in two and "NOT" not in two
    one = losses(run(1, "lightning_fsdp2", *options, cwd=tmp_path))
    assert losses(two) == pytest.approx(one, abs=2e-6) and one[1] < 0.5 * one[0]


def ranks_of(process: subprocess.Popen[str]) -> list[int]:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    return [int(pid) for pid in children.read_text().split()]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the processes in Linux's /proc")
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_ends_the_run_with_an_error_and_the_run_resumes_to_the_bit(
    victim: int, uninterrupted: tuple[Path, list[float]], tmp_path: Path
) -> None:
    process = start(2, "fsdp2_torchrun", *FSDP2, str(tmp_path), cwd=tmp_path)
    try:
        end = time.monotonic() + 120
        while not (tmp_path / "step-000010").exists():
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.005)
        ranks = ranks_of(process)
        os.kill(ranks[victim], signal.SIGKILL)
        printed, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode != 0 and "SIGKILL" in printed, printed[-2000:]
    assert not any(Path(f"/proc/{pid}").exists() for pid in ranks)
    assert not (tmp_path / "step-000020").exists()

    run(2, "fsdp2_torchrun", *FSDP2, str(tmp_path), cwd=tmp_path)
    assert_same_bits(tmp_path / "step-000020", uninterrupted[0] / "step-000020")

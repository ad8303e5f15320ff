"""Wheel and sdist can be built, and the README's lines run where only the wheel and torch are installed."""

import json
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
EVERYTHING_ELSE = Path(torch.__file__).parents[
    1
]  # torch and what it needs; our editable install is a .pth there
USE = """
import importlib.metadata as metadata, json, torch
from torch import nn
model = nn.Sequential(nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 10))
model(torch.randn(8, 40)).square().mean().backward()
{lines}
optimizer.step()
about = metadata.metadata("sketchy-optim")
print(json.dumps([sketchy.__file__, about["Version"], about["Description"] or about.get_payload()]))
"""


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from the sdist."""
    pytest.importorskip("build")
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return out


def test_the_readmes_lines_run_in_an_empty_environment(dist: Path, tmp_path: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    install = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(python),
        "install",
        "--no-deps",
        "--no-index",
        str(wheel),
    ]
    subprocess.run(install, check=True, capture_output=True)
    (site,) = (tmp_path / "env").glob("lib/python*/site-packages")
    (site / "torch_of_the_tests.pth").write_text(f"{EVERYTHING_ELSE}\n")
    (lines,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    asked = [str(python), "-c", USE.format(lines=lines)]
    done = subprocess.run(asked, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report, _, last = done.stdout.strip().rpartition("\n")
    home, version, description = json.loads(last)
    assert "sketch" in report and Path(home).is_relative_to(site) and version in wheel.name
    assert "](docs/" not in description and "/blob/main/docs/" in description


def test_the_wheel_has_the_package_only_and_the_sdist_what_builds_it(dist: Path) -> None:
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    inside = zipfile.ZipFile(wheel).namelist()
    assert "sketchy/py.typed" in inside and any(name.endswith("licenses/LICENSE") for name in inside)
    assert {name.partition("/")[0].partition("-")[0] for name in inside} == {"sketchy", "sketchy_optim"}
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"hatch_build.py", "README.md", "pyproject.toml", "src/sketchy/__init__.py"} <= names
    assert not any(name.startswith((".venv", "runs/", "site/", "dist/")) for name in names)

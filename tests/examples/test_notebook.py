"""The notebook runs from top to bottom in a fresh kernel, and what it shows is what its words say."""

import re
from pathlib import Path
from typing import Any

import pytest

PATH = Path(__file__).parents[2] / "examples" / "from_adamw.ipynb"


@pytest.fixture(scope="module")
def notebook() -> Any:
    nbformat = pytest.importorskip("nbformat")
    return nbformat.read(PATH, as_version=4)


def printed(notebook: Any) -> str:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return "".join(output.get("text", "") for output in outputs)


def losses(text: str, name: str) -> list[float]:
    (line,) = re.findall(rf"^{name} .*: .*$", text, re.MULTILINE)
    return [float(loss) for loss in re.findall(r": ([\d.]+)", line)]


@pytest.mark.filterwarnings("default")  # of Jupyter's packages
def test_it_runs_and_learns(notebook: Any, tmp_path: Path) -> None:
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("sklearn")
    done = nbclient.NotebookClient(
        notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    text = printed(done)
    adamw, ours = losses(text, "AdamW"), losses(text, "SketchySOAP")
    assert min(ours) < min(adamw) < 0.2
    assert min(ours) not in (ours[0], ours[-1]) and min(adamw) not in (
        adamw[0],
        adamw[-1],
    )  # inside of the grid
    assert "6 weights have their state back" in text


def test_it_is_stored_with_its_pictures_and_stays_small(notebook: Any) -> None:
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), "`make notebook` runs it"
    kinds = [kind for cell in code for output in cell.outputs for kind in output.get("data", {})]
    assert kinds.count("image/png") == 2 and PATH.stat().st_size < 200_000
    assert not any(output.output_type == "error" for cell in code for output in cell.outputs)


def test_what_it_says_of_memory_is_so(notebook: Any) -> None:
    found = re.findall(r"^ *([\d,]+)  (.+)$", printed(notebook), re.MULTILINE)
    held = {name: int(count.replace(",", "")) for count, name in found}
    assert held["SketchySOAP, rank 16"] < held["AdamW"] < held["SketchySOAP, rank 64"]

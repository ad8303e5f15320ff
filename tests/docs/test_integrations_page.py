"""docs/integrations.md shows what is in the examples, word for word."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "integrations.md").read_text(encoding="utf-8")
BLOCKS = [
    (name, block)
    for section in PAGE.split("\n## ")[1:]
    for name in re.findall(r"^`examples/(\w+\.py)`$", section, flags=re.MULTILINE)
    for block in re.findall(r"^```python\n(.*?)^```$", section, flags=re.MULTILINE | re.DOTALL)
]


def squeezed(code: str) -> str:
    """Without what a formatter may change when code is indented less: spaces, and commas before brackets."""
    return re.sub(r",(?=[)\]}])", "", re.sub(r"\s", "", code))


@pytest.mark.parametrize(("name", "block"), BLOCKS)
def test_every_block_is_an_excerpt_of_its_example(name: str, block: str) -> None:
    assert squeezed(block) in squeezed((ROOT / "examples" / name).read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_every_example_has_a_row_and_an_excerpt(path: Path) -> None:
    assert f"| `examples/{path.name}` |" in PAGE
    assert path.name in {name for name, _ in BLOCKS}

"""docs/optimizers.md lists the options as they are."""

from pathlib import Path

import pytest

from sketchy.optim import OPTIONS

PAGE = (Path(__file__).parents[2] / "docs" / "optimizers.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_is_on_the_page_with_its_default_and_meaning(name: str) -> None:
    option = OPTIONS[name]
    assert f"| `{name}` | `{option.default!r}` | {option.meaning} |" in PAGE

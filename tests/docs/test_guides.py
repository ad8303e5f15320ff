"""The guides name options, optimizers and functions that exist."""

import re
from pathlib import Path

import pytest

import sketchy
from sketchy.optim import OPTIONS

DOCS = Path(__file__).parents[2] / "docs"
GUIDES = ["migrating.md", "choosing.md", "faq.md", "integrations.md"]
MIGRATING = (DOCS / "migrating.md").read_text(encoding="utf-8")


def test_the_middle_column_of_the_migration_tables_holds_options_of_ours() -> None:
    rows = [line.strip("|").split("|") for line in MIGRATING.splitlines() if line.startswith("| ")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row[1])}
    assert {"lr", "rank", "graft_scale"} <= named <= OPTIONS.keys()


@pytest.mark.parametrize("page", GUIDES)
def test_what_a_guide_calls_ours_is_there(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    names = set(re.findall(r"\bsketchy\.(\w+)\(", text)) | set(re.findall(r"`(Sketchy\w+|Shampoo)`", text))
    assert names and all(hasattr(sketchy, name) for name in names)
    settings = set(re.findall(r"`(\w+)=[^`]+`", text)) - {"sparse", "weights_only", "optimizers"}
    assert settings - {"gradient_clip_val", "compile", "split", "no_decay"} <= OPTIONS.keys()

"""Tables of measurements in the docs are those of benchmarks/results."""

from pathlib import Path

import pytest

from benchmarks import pages

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {page.name: page.read_text(encoding="utf-8") for page in sorted(DOCS.glob("*.md"))}


@pytest.mark.parametrize("page", [name for name, text in PAGES.items() if pages.tables_in(text)])
def test_tables_are_as_the_results_have_them(page: str) -> None:
    assert pages.filled(PAGES[page]) == PAGES[page], "python -m benchmarks.pages writes them"


def test_every_table_and_every_picture_is_shown() -> None:
    shown = [name for text in PAGES.values() for name in pages.tables_in(text)]
    assert sorted(shown) == sorted(pages.TABLES)
    assert all(any(f"]({name})" in text for text in PAGES.values()) for name in pages.PICTURES)


def test_both_tables_of_a_task_have_the_same_best_rate_and_loss() -> None:
    """The one of loss against memory, and the one of ours at AdamW's rate."""
    lines_of_rates = pages.TABLES["transfer"]().splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines_of_rates]
    tables = {task: pages.TABLES[f"front {task}"]() for task in pages.TASKS}
    compared = [(row[0], row[1], row[3]) for row in rows if row and row[0] in tables]
    assert len(compared) == 3 * len(tables)
    for task, optimizer, loss_at_rate in compared:
        header, _, *lines = [
            line.strip("| ").split(" | ") for line in tables[task].splitlines() if "|" in line
        ]
        (found,) = (dict(zip(header, line, strict=True)) for line in lines if line[0] == optimizer)
        assert loss_at_rate == f"{found['loss']} at {found['best rate'].strip('*')}", (task, optimizer)


def test_a_table_is_written_between_its_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(pages.TABLES, "some", lambda: "| new |")
    text = "before\n<!-- table: some -->\n\n| old |\n\n<!-- end -->\nafter"
    assert pages.filled(text) == "before\n<!-- table: some -->\n\n| new |\n\n<!-- end -->\nafter"

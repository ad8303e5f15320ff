"""The site: five groups of pages, formulas without a script, code in docstrings shown as code."""

import re
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")

DOCS = Path(__file__).parents[2] / "docs"
GROUPS = ["Start", "Guides", "Results", "Reference", "Develop"]


class Loader(yaml.SafeLoader):  # type: ignore[misc, name-defined]
    """mkdocs.yml may have tags of Python objects."""


CONFIG = yaml.load((DOCS.parent / "mkdocs.yml").read_text(encoding="utf-8"), Loader)


def test_the_navigation_has_five_groups_that_fit_a_small_screen() -> None:
    assert [name for group in CONFIG["nav"] for name in group] == GROUPS
    assert all(1 < len(pages) < 12 for group in CONFIG["nav"] for pages in group.values())


def test_there_is_a_light_and_a_dark_version() -> None:
    assert [palette["scheme"] for palette in CONFIG["theme"]["palette"]] == ["default", "slate"]
    assert all(
        "prefers-color-scheme" in palette["media"] and palette["toggle"]
        for palette in CONFIG["theme"]["palette"]
    )


def test_a_page_loads_nothing_from_elsewhere() -> None:
    assert CONFIG["theme"]["font"] is False and "extra_javascript" not in CONFIG
    assert all((DOCS / name).exists() for name in CONFIG["extra_css"])


def test_the_home_page_has_install_code_and_picture() -> None:
    home = (DOCS / "index.md").read_text(encoding="utf-8").partition("\n## ")[0]
    assert "pip install ." in home and "sketchy.SketchySOAP(" in home and "](first.png)" in home


def test_every_formula_becomes_mathml() -> None:
    pytest.importorskip("latex2mathml")
    from docs.formulas import on_page_content

    for page in DOCS.glob("*.md"):
        text = page.read_text(encoding="utf-8")
        for formula in re.findall(r"\\[(\[].+?\\[)\]]", text, re.DOTALL):
            shown = on_page_content(f'<span class="arithmatex">{formula}</span>')
            assert shown.startswith("<math") and "\\" not in shown, (page.name, formula)


def test_doctests_are_shown_as_code() -> None:
    pytest.importorskip("griffe")
    from docs.docstrings import fenced

    text = "One.\n\n>>> a = [\n...     1]\n>>> a\n[1]\n\n>>> 2\n2\n\nTwo."
    assert fenced(text) == "One.\n\n```pycon\n>>> a = [\n...     1]\n>>> a\n[1]\n\n>>> 2\n2\n```\n\nTwo."


def test_the_api_page_has_every_option_with_the_default_of_its_class() -> None:
    griffe = pytest.importorskip("griffe")
    from docs.docstrings import Docstrings

    found = griffe.load(
        "sketchy", search_paths=[DOCS.parent / "src"], extensions=griffe.load_extensions(Docstrings)
    )
    cls = found["optim.sketchy_soap.SketchySOAP"]
    shown = {parameter.name: parameter.default for parameter in cls.parameters}
    assert shown["whiten"] == "True" and shown["row_norm"] == "0.95" and shown["rank"] == "None"

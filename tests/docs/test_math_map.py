"""docs/math.md is true: its names exist, its tests exist, and no cited paper item is missing from it."""

import ast
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "math.md").read_text(encoding="utf-8")
ITEM = re.compile(r"\b(Alg\.|Lemma|Thm|Cor|Obs\.|Remark|Sec\.) ?(\d+(?:\.\d+)?)")


def items(text: str) -> set[str]:
    return {f"{kind} {number}" for kind, number in ITEM.findall(text)}


def rows(section: str) -> list[list[str]]:
    body = PAGE.split(f"## {section}\n")[1].split("\n## ")[0]
    lines = [line for line in body.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


IMPLEMENTED, PROMISED = rows("Implemented"), rows("Promised, and checked")


def resolve(name: str) -> object:
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        return found
    raise AssertionError(f"{name} does not exist")


@pytest.mark.parametrize("row", IMPLEMENTED + PROMISED, ids=lambda row: row[0][:40])
def test_every_function_and_test_in_the_map_exists(row):
    names, tests = re.findall(r"`([^`]+)`", row[-2]), re.findall(r"`([^`]+)`", row[-1])
    assert names and tests
    for name in names:
        resolve(name)
    for test in tests:
        path, function = test.split("::")
        assert f"def {function}(" in (ROOT / path).read_text(encoding="utf-8"), test


@pytest.mark.parametrize("row", IMPLEMENTED, ids=lambda row: row[0])
def test_implementing_functions_name_their_item(row):
    for name in re.findall(r"`([^`]+)`", row[-2]):
        docstring = resolve(name).__doc__ or ""
        assert items(row[0]) <= items(docstring), f"{name} does not name {row[0]}"


@pytest.mark.parametrize("path", sorted((ROOT / "src").rglob("*.py")), ids=lambda p: p.stem)
def test_every_item_cited_in_a_docstring_has_a_row(path):
    mapped = set().union(*(items(" ".join(row)) for row in IMPLEMENTED + PROMISED))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, documented):
            missing = items(ast.get_docstring(node) or "") - mapped
            assert not missing, (
                f"{getattr(node, 'name', path.stem)} cites {missing}, which docs/math.md lacks"
            )

"""docs/optimizers.md lists the options as they are."""

import ast
import re
from pathlib import Path

import pytest

import sketchy
from sketchy.optim import OPTIONS
from sketchy.optim.engine import Engine

PAGE = (Path(__file__).parents[2] / "docs" / "optimizers.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", OPTIONS)
def test_every_option_is_on_the_page_with_its_default_and_meaning(name: str) -> None:
    option = OPTIONS[name]
    assert f"| `{name}` | `{option.default!r}` | {option.meaning} |" in PAGE


@pytest.mark.parametrize("cls", [sketchy.SketchyAdagrad, sketchy.SketchyShampoo, sketchy.SketchySOAP])
def test_what_a_class_has_otherwise_is_on_the_page(cls: type[Engine]) -> None:
    said = re.search(rf"`{cls.__name__}`: `([^`]+)`", PAGE)
    assert said is not None
    call = ast.parse(f"dict({said[1]})", mode="eval").body
    assert isinstance(call, ast.Call)
    assert {k.arg: ast.literal_eval(k.value) for k in call.keywords} == cls.changed

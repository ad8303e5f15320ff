"""For the API page: doctests are shown as code, and signatures of optimizers with every option."""

import inspect
import re
from importlib import import_module
from typing import Any

import griffe

_DOCTEST = re.compile(r"(?:^>>> .*\n(?:^\S.*\n?)*)(?:\n?^>>> .*\n?(?:^\S.*\n?)*)*", re.MULTILINE)
_KINDS = {
    inspect.Parameter.POSITIONAL_OR_KEYWORD: griffe.ParameterKind.positional_or_keyword,
    inspect.Parameter.KEYWORD_ONLY: griffe.ParameterKind.keyword_only,
}


def fenced(text: str) -> str:
    """Doctests as blocks of code; without this, Markdown takes ``>>>`` for quotations.

    >>> print(fenced("Words.\\n\\n>>> 1 + 1\\n2").replace("`", "'"))
    Words.
    <BLANKLINE>
    '''pycon
    >>> 1 + 1
    2
    '''
    """
    return _DOCTEST.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", text).rstrip("\n")


class Docstrings(griffe.Extension):
    """mkdocs.yml names it."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        if any(str(base) == "Engine" for base in cls.bases) and "__init__" not in cls.members:
            cls.set_member("__init__", _constructor(cls))


def _constructor(cls: griffe.Class) -> griffe.Function:
    """With the options that the real class takes, and their defaults."""
    real = getattr(import_module(cls.module.path), cls.name)
    parameters = [griffe.Parameter("self")]
    for name, found in inspect.signature(real).parameters.items():
        default = None if found.default is found.empty else repr(found.default)
        parameters.append(griffe.Parameter(name, kind=_KINDS[found.kind], default=default))
    return griffe.Function("__init__", parameters=griffe.Parameters(*parameters))
